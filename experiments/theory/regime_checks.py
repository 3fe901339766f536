"""Group gradients the slow way: every group of a small MDP, and samples of a large one."""

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular import TurnMDP, trajectories


class Groups(NamedTuple):
    """All N groups of n chains that can start in one boundary state.

    Attributes:
      probability: [N], sum 1.
      returns: [N, n] from the boundary on, or from the turn on.
      scores: [N, n, D] of one turn, an irrelevant coordinate last.
      covariances: [N, D] what each group estimates, through `core.leave_one_out`.
    """

    probability: np.ndarray
    returns: np.ndarray
    scores: np.ndarray
    covariances: np.ndarray


def all_groups(
    mdp: TurnMDP,
    policy: np.ndarray,
    *,
    boundary: int,
    state: int,
    turn: int,
    size: int,
    noise: float,
    block: str = "turn",
    to_go: bool = False,
) -> Groups:
    """Enumerate every group; the irrelevant coordinate of a score is +-sqrt(noise), by a coin."""
    chains = trajectories(mdp, policy, turn=boundary, state=state)
    scores = _scores(np.asarray(policy), chains.states, chains.actions, turn, block)
    here = chains.turn_mask[:, turn]
    coin = np.sqrt(noise) * here
    features = np.concatenate([np.column_stack([scores, sign * coin]) for sign in (1.0, -1.0)])
    probability = np.tile(chains.probability / 2.0, 2)
    paid = chains.rewards[:, turn:] if to_go else chains.rewards
    returns = np.tile(paid.sum(1), 2)
    members = np.array(list(itertools.product(range(len(returns)), repeat=size)))
    advantages = group_advantages(returns[members])
    covariances = np.einsum("gi,gid->gd", advantages, features[members]) / size
    return Groups(probability[members].prod(1), returns[members], features[members], covariances)


def group_advantages(returns: np.ndarray) -> np.ndarray:
    """`core.leave_one_out` of groups in rows, [N, n].

    Rows are filled up to a multiple of 8192, so that few shapes are compiled.
    """
    count, size = returns.shape
    padded = -(-count // 8192) * 8192
    filled = np.zeros((padded, size))
    filled[:count] = returns
    found = _leave_one_out(filled.ravel(), np.repeat(np.arange(padded), size), padded)
    return np.asarray(found).reshape(padded, size)[:count]


_leave_one_out = jax.jit(core.leave_one_out, static_argnums=2)


def mean_and_variance(groups: Groups) -> tuple[np.ndarray, float]:
    """E C [D] and the trace of Var C over groups."""
    mean = groups.probability @ groups.covariances
    squares = groups.probability @ (groups.covariances**2).sum(1)
    return mean, float(squares - mean @ mean)


def selection_error(groups: Groups) -> float:
    """Largest deviation from E[C | returns] = n1 n0 / (n (n - 1)) (mu_1 - mu_0), returns binary.

    mu_r = E[z | R = r] of one chain; every pattern of returns that can occur is compared.
    """
    size = groups.returns.shape[1]
    means = [_mean_score(groups, value) for value in (0.0, 1.0)]
    worst = 0.0
    for pattern in itertools.product((0.0, 1.0), repeat=size):
        rows = (groups.returns == np.array(pattern)).all(1)
        weight = groups.probability[rows]
        ones = sum(pattern)
        if weight.sum() > 0:
            found = weight @ groups.covariances[rows] / weight.sum()
            factor = ones * (size - ones) / (size * (size - 1))
            expected = factor * (means[1] - means[0]) if factor else 0.0
            worst = max(worst, float(abs(found - expected).max()))
    return worst


def _mean_score(groups, value):
    weight = groups.probability * (groups.returns[:, 0] == value)
    return weight @ groups.scores[:, 0] / weight.sum()


def _scores(policy, states, actions, turn, block):
    """Score of one turn, [M, A] or [M, S * A]; 0 where the episode ended before it."""
    num_states, num_actions = policy.shape[1:]
    state, action = states[:, turn], actions[:, turn]
    here = (state >= 0)[:, None]
    own = np.where(here, np.eye(num_actions)[action] - policy[turn, state], 0.0)
    if block == "turn":
        return own
    place = np.where(here, np.eye(num_states)[state], 0.0)
    return np.einsum("ms,ma->msa", place, own).reshape(len(state), -1)


def sampled_squares(
    key: jax.Array,
    mdp: TurnMDP,
    policy: jax.Array,
    *,
    boundary: int,
    size: int,
    groups: int,
    noise: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean of |C_l|^2 over sampled groups, 0 where the trunk ends early, and its standard error.

    Trunks are sampled from the start and one group is forked from each at the boundary; parameters
    are one block per turn. Both results are [L].
    """
    mean, deviation = _sample(key, mdp, policy, noise, boundary, size, groups)
    return np.asarray(mean), np.asarray(deviation) / np.sqrt(groups)


@partial(jax.jit, static_argnames=("boundary", "size", "groups"))
def _sample(key, mdp, policy, noise, boundary, size, groups):
    start_key, draw_key, noise_key = jax.random.split(key, 3)
    first = jax.random.uniform(start_key, (groups, 1))
    start = (first >= mdp.start.cumsum()[None, :-1]).sum(-1)
    draws = jax.random.uniform(draw_key, (mdp.num_turns, groups, size, 2))
    # Chains of a group share every draw before the boundary: that part is the trunk.
    trunk = jnp.broadcast_to(draws[:boundary, :, :1], (boundary, groups, size, 2))
    draws = jnp.concatenate([trunk, draws[boundary:]]).reshape(mdp.num_turns, -1, 2)
    states, actions, mask, rewards = _roll(mdp, policy, jnp.repeat(start, size), draws)
    after = jnp.arange(mdp.num_turns)[:, None] >= boundary
    coin = jax.random.normal(noise_key, mask.shape) * jnp.sqrt(noise)
    own = jax.nn.one_hot(actions, mdp.num_actions) - jax.vmap(jnp.take, (0, 0, None))(
        policy, states, 0
    )
    scores = jnp.concatenate([own, coin[:, :, None]], axis=-1) * (mask & after)[:, :, None]
    ids = jnp.repeat(jnp.arange(groups), size)
    advantages = core.leave_one_out((rewards * after).sum(0), ids, groups)
    rows = (advantages[None, :, None] * scores).reshape(mdp.num_turns, groups, size, -1)
    squares = (rows.mean(2) ** 2).sum(-1)
    return squares.mean(1), squares.std(1)


def _roll(mdp, policy, states, draws):
    """States, actions, mask and rewards [H, N] of episodes; draws [H, N, 2] invert cumulative sums.

    A transition draw above the last cumulative sum ends the episode.
    """

    def step(carry, row):
        here, running = carry
        actions_to, states_to, rewards, drawn = row
        action = (drawn[:, :1] >= actions_to[here][:, :-1]).sum(-1)
        reached = (drawn[:, 1:] >= states_to[here, action]).sum(-1)
        goes_on = running & (reached < mdp.num_states)
        paid = jnp.where(running, rewards[here, action], 0.0)
        return (jnp.where(goes_on, reached, here), goes_on), (here, action, running, paid)

    start = (states, jnp.ones(states.shape, bool))
    rows = (policy.cumsum(-1), mdp.transitions.cumsum(-1), mdp.rewards, draws)
    return jax.lax.scan(step, start, rows)[1]
