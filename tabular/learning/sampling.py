"""Episodes drawn at random: boundary states of trunks, and returns of actions tried there.

Where enumeration gives expectations, these functions give what a run sees. Every reward is paid as 1
with probability r_h(s, a) and as 0 otherwise, the outcome of a verifier, so rewards of the MDP have
to lie in 0..1. Functions take uniform draws instead of keys: a learner draws once for all it does,
which compiles several times faster than a generator in every loop. All work under `jit` and `vmap`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from tabular.mdp import TurnMDP, check_policy, is_concrete


def check_outcomes(mdp: TurnMDP) -> None:
    """Raise ValueError unless rewards lie in 0..1; traced rewards are not looked at."""
    if is_concrete(mdp.rewards):
        rewards = np.asarray(mdp.rewards)
        outside = (rewards < 0) | (rewards > 1)
        if outside.any():
            index = tuple(int(i) for i in np.argwhere(outside)[0])
            raise ValueError(
                f"rewards{list(index)} is {rewards[index]}: sampled rewards are 0 or 1, so give "
                "means from 0 to 1"
            )


def pick(probabilities: jax.Array, draws: jax.Array) -> jax.Array:
    """Index of the outcome that a uniform draw in [0, 1) selects, int.

    Args:
      probabilities: [..., K]; rows may sum to less than 1.
      draws: [...].

    Returns:
      [...] in 0..K, where K stands for the deficit of a row that sums to less than 1.
    """
    return (jnp.cumsum(probabilities, -1) <= draws[..., None]).sum(-1)


def pick_action(policy: jax.Array, draws: jax.Array) -> jax.Array:
    """As `pick` for rows that sum to 1 up to rounding: always a valid index."""
    return pick(policy[..., :-1], draws)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform draws in [0, 1), float64; drawn flat because that compiles faster than several axes."""
    return jax.random.uniform(key, (math.prod(shape),), dtype=jnp.float64).reshape(shape)


def trunk_states(draws: jax.Array, mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Boundary states of independent episodes, [N, H] int; S where the episode has ended.

    Args:
      draws: [2 H + 1, N] uniform in [0, 1): the start, then action and move of every turn.
      mdp: the MDP.
      policy: [H, S, A] action probabilities.

    Raises:
      ValueError: malformed policy, or another number of draws.
    """
    policy = check_policy(mdp, policy)
    num_trunks = _check_draws(draws, (2 * mdp.num_turns + 1,))
    moves = draws[1:].reshape(mdp.num_turns, 2, num_trunks)
    first = pick_action(jnp.broadcast_to(mdp.start, (num_trunks, mdp.num_states)), draws[0])

    def step(here, turn):
        transitions, probabilities, (act, move) = turn
        row = jnp.where(here < mdp.num_states, here, 0)
        following = pick(transitions[row, pick_action(probabilities[row], act)], move)
        return jnp.where(here < mdp.num_states, following, mdp.num_states), here

    return jax.lax.scan(step, first, (mdp.transitions, policy, moves))[1].T


def returns_from(
    draws: jax.Array,
    mdp: TurnMDP,
    policy: jax.Array,
    turn: int | jax.Array,
    states: jax.Array,
    actions: jax.Array,
) -> jax.Array:
    """Sampled returns of actions taken at a boundary and continued by a policy, [N].

        r_h + ... + r_{H-1},   a_h given, a_t ~ pi_t(. | s_t) for t > h      (RTPO, Eqs. 7, 8)

    Args:
      draws: [H, 3, N] uniform in [0, 1): action, reward and move of every turn.
      mdp: the MDP.
      policy: [H, S, A]; rows of turns up to `turn` are not used.
      turn: h, may be traced.
      states: [N] int; S for an episode that has ended, whose return is 0.
      actions: [N] int.

    Raises:
      ValueError: malformed policy, or another number of draws.
    """
    policy = check_policy(mdp, policy)
    _check_draws(draws, (mdp.num_turns, 3))

    def step(carry, inputs):
        here, total = carry
        h, transitions, rewards, probabilities, (act, pay, move) = inputs
        running = (h >= turn) & (here < mdp.num_states)
        row = jnp.where(here < mdp.num_states, here, 0)
        chosen = jnp.where(h == turn, actions, pick_action(probabilities[row], act))
        paid = (running & (pay < rewards[row, chosen])).astype(total.dtype)
        following = pick(transitions[row, chosen], move)
        return (jnp.where(running, following, here), total + paid), None

    turns = (jnp.arange(mdp.num_turns), mdp.transitions, mdp.rewards, policy, draws)
    start = (states, jnp.zeros(states.shape, mdp.rewards.dtype))
    return jax.lax.scan(step, start, turns)[0][1]


def _check_draws(draws, leading):
    """The number of episodes N; ValueError unless draws are [*leading, N]."""
    if draws.shape[:-1] != leading:
        raise ValueError(f"draws has shape {draws.shape}: give {[*leading, 'N']}")
    return draws.shape[-1]
