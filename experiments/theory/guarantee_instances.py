"""The MDPs and policies that the table of guarantees is run on: random ones, and the named toys."""

import jax
import numpy as np

import tabular
from tabular.guarantees import search, toys
from tabular.guarantees.cells import Case

SMALL_SHAPE = (2, 4, 2)  # where violations are looked for first; also the shape of token trees


def random_cases(
    rng: np.random.Generator, turns: str, shape: tuple[int, int, int], ties: search.Ties, count: int
) -> Case:
    """Draw a stack of N cases with policies that belong to the class.

    Multi-turn: random MDPs with rewards in (0, 1), of which half pay at the last turn only, half end
    episodes early and half have nearly certain transitions.
    Single-turn: two prompts, responses of two tokens out of two, of which half
    have a token that ends the response. Noise on values has standard deviation 0.5. Hidden states:
    at every turn the policy tells apart two kinds of states, drawn at random, or none.
    """
    mdp = (_multi_turn if turns == "multi-turn" else _single_turn)(rng, shape, count)
    contexts = np.broadcast_to(np.arange(shape[1]), (count, *shape[:2]))
    if ties == "hidden":
        contexts = rng.integers(rng.integers(1, 3, (count, 1, 1)), size=(count, *shape[:2]))
    directions = rng.normal(size=(count, *shape, 3))
    logits = rng.normal(size=(count, *shape))
    if ties == "shared":
        logits = np.broadcast_to(logits[:, :1], logits.shape)
    elif ties == "linear":
        logits = np.einsum("nhsad,nd->nhsa", directions, rng.normal(size=(count, 3)))
    logits = np.take_along_axis(logits, contexts[..., None], axis=2)
    policy = np.exp(logits - logits.max(-1, keepdims=True))
    policy /= policy.sum(-1, keepdims=True)
    noise = 0.5 * rng.normal(size=(count, *shape[:2]))
    return Case(mdp, policy, features(ties, contexts, directions), np.array(contexts), noise)


def features(ties: search.Ties, contexts: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Features of a class for a stack of cases [N, H, S, A, H S A]; directions if it is linear."""
    if ties == "linear":
        return toys.linear_features(directions)
    shape = directions.shape[1:4]
    if ties == "shared":
        shared = toys.shared_features(shape)
        return np.broadcast_to(shared, (len(directions), *shared.shape))
    return toys.table_features(contexts, shape[2])


def _multi_turn(rng, shape, count):
    """Drawn by numpy: a compiled generator costs more than all its draws."""
    late, ends, sharp = rng.random((3, count, 1, 1, 1)) < 0.5
    rows = rng.exponential(size=(count, *shape, shape[1])) ** np.where(sharp, 8.0, 1.0)[..., None]
    rows /= rows.sum(-1, keepdims=True)
    rows *= np.where(ends, 1.0 - 0.5 * rng.random((count, *shape)), 1.0)[..., None]
    rewards = rng.random((count, *shape))
    rewards[:, :-1] *= np.where(late, 0.0, 1.0)
    return jax.vmap(tabular.TurnMDP)(rows, rewards, _dirichlet(rng, (count, shape[1])))


def _single_turn(rng, shape, count):
    num_prompts = shape[1] // 2
    rewards, stops = rng.random((count, num_prompts, 4)), rng.random(count) < 0.5
    return toys.token_mdp(rewards, _dirichlet(rng, (count, num_prompts)), 2, 2, stops)


def _dirichlet(rng, shape):
    draws = rng.exponential(size=shape)
    return draws / draws.sum(-1, keepdims=True)


def pool(rng: np.random.Generator, turns: str, ties: search.Ties, count: int) -> Case:
    """Cases of the smallest shape to look for violations in; named instances come first."""
    drawn = random_cases(rng, turns, SMALL_SHAPE, ties, count)
    for place, instance in enumerate(named(turns, ties).values()):
        instance = toys.padded(instance, *SMALL_SHAPE[:2])
        drawn = jax.tree.map(lambda leaf, new, at=place: _set(leaf, at, new), drawn, instance)
    return drawn


def named(turns: str, ties: search.Ties) -> dict[str, Case]:
    """The named instances that belong to a column, by name."""
    found = toys.named_cases()
    hidden = found.pop("toy_hidden_action")
    if turns == "single-turn":
        shared = {"two_prompts": toys.two_prompts(), "two_lengths": toys.two_lengths()}
        return shared if ties == "linear" else {}
    return {"table": found, "hidden": {"toy_hidden_action": hidden}}.get(ties, {})


def _set(leaf, place, new):
    leaf = np.array(leaf)
    leaf[place] = new
    return leaf
