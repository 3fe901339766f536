"""Updates from a finite sample of episodes, by the same maximisers as the exact ones.

For MDPs whose episodes have full length. Sampling is by inversion, one uniform number a choice.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular.mdp import TurnMDP
from tabular.objectives import credit, maximise_surrogate, merge_contexts
from tabular.paths import Paths, path_rewards


def sample_groups(
    key: jax.Array, mdp: TurnMDP, policy: jax.Array, num_groups: int, size: int
) -> tuple[Paths, np.ndarray]:
    """Sample groups of episodes, each group from one first state.

    Args:
      key: JAX random key.
      mdp: an MDP that never ends early.
      policy: [H, S, A].
      num_groups: B.
      size: G episodes a group.

    Returns:
      `Paths` of N = B G episodes, group after group, and their group ids [N].
    """
    draws = _uniform(key, (num_groups * size, 2 * mdp.num_turns))
    return _sample_groups(draws, mdp, policy, num_groups, size)


def continue_from(
    draws: jax.Array, mdp: TurnMDP, policy: jax.Array, states: jax.Array, turn: int
) -> tuple[jax.Array, jax.Array]:
    """States and actions [N, H] of turns `turn`..H-1 from given states [N].

    Uses draws [N, 2H], uniform in (0, 1): column 2h for the action of turn h, 2h + 1 for the state
    after it. Columns of the result before `turn` hold the given state and action 0. `turn` may be
    traced.
    """

    def step(here, part):
        h, row, transitions, action_draws, state_draws = part
        actions = jnp.where(h >= turn, _invert(row[here], action_draws), 0)
        following = _invert(transitions[here, actions], state_draws)
        return jnp.where(h >= turn, following, here), (here, actions)

    # Transitions of the last turn may sum to anything: what they lead to is not used.
    parts = (jnp.arange(mdp.num_turns), policy, mdp.transitions, draws.T[0::2], draws.T[1::2])
    visited, chosen = jax.lax.scan(step, states, parts)[1]
    return visited.T, chosen.T


def sampled_siblings(
    key: jax.Array,
    mdp: TurnMDP,
    policy: jax.Array,
    num_trunks: int,
    num_siblings: int,
    clip_low: float,
    clip_high: float,
    contexts: jax.Array,
    forks: float = 0.0,
) -> jax.Array:
    """One RTPO iteration from a sample (arXiv 2608.18682, Algorithm 1): trunks, then siblings.

    At each turn from last to first, siblings act at every trunk's boundary and go on with the
    current policy; `core.sibling_relative` compares them. With probability `forks` all siblings of
    a boundary find the environment where the next trunk stood.

    Args:
      key: JAX random key.
      mdp: an MDP of `broken_instance`, N^2 states.
      policy: [H, S, A].
      num_trunks: episodes that give the boundaries.
      num_siblings: n actions at each, at least 2.
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.
      contexts: [H, S] what the policy sees.
      forks: see `breakage.Breakage`.

    Returns:
      [H, S, A] the new policy, for T (H + n H (H + 1) / 2) generated turns with T trunks.
    """
    num_turns, rows = mdp.num_turns, num_trunks * num_siblings
    # One block of draws: a random call for each use would dominate the time to compile.
    draws = _uniform(key, (num_trunks * (1 + num_turns * num_siblings), 2 * num_turns))
    trunks, _ = _sample_groups(draws[:num_trunks], mdp, policy, num_trunks, 1)
    blocks = draws[num_trunks:].reshape(num_turns, rows, 2 * num_turns)
    ids = np.repeat(np.arange(num_trunks), num_siblings)
    clip = (clip_low, clip_high)

    def step(current, part):
        turn, block, own = part
        # The last column of a block would draw a state after the last turn: free for the fork.
        found = jnp.where(block[:num_trunks, -1] < forks, _elsewhere(own, mdp.num_states), own)
        acted, relative = _compare(block, mdp, current, (own, found), turn, ids)
        gains = credit(acted, jnp.full(rows, 1.0 / rows), relative, policy.shape)
        improved = maximise_surrogate(policy, merge_contexts(gains, contexts), *clip)
        return jnp.where((jnp.arange(num_turns) == turn)[:, None, None], improved, current), None

    parts = (jnp.arange(num_turns), blocks, trunks.states.T)
    return jax.lax.scan(step, policy, parts, reverse=True)[0]


def _elsewhere(states, num_states):
    """The true states of the next trunks with the own observations."""
    seen = round(num_states**0.5)
    return jnp.roll(states, 1) // seen * seen + states % seen


def _compare(draws, mdp, policy, boundaries, turn, ids):
    """Play siblings from a turn on: one-turn paths of their actions, advantages [N, H]."""
    own, found = (jnp.repeat(states, ids.size // states.size) for states in boundaries)
    states, actions = continue_from(draws, mdp, policy, found, turn)
    turns = jnp.broadcast_to(jnp.arange(mdp.num_turns)[None, :], actions.shape)
    returns = path_rewards(mdp, Paths(states, actions, turns >= turn)).sum(1)
    relative = core.sibling_relative(returns, ids, boundaries[0].size)
    acted = Paths(jnp.broadcast_to(own[:, None], actions.shape), actions, turns == turn)
    return acted, jnp.broadcast_to(relative[:, None], actions.shape)


def _sample_groups(draws, mdp, policy, num_groups, size):
    # The last column would draw a state after the last turn: free for the first state.
    start = jnp.broadcast_to(mdp.start, (num_groups, mdp.num_states))
    tasks = jnp.repeat(_invert(start, draws[::size, -1]), size)
    states, actions = continue_from(draws, mdp, policy, tasks, 0)
    mask = np.ones((num_groups * size, mdp.num_turns), bool)
    return Paths(states, actions, mask), np.repeat(np.arange(num_groups), size)


def _uniform(key, shape):
    return jax.random.uniform(key, (shape[0] * shape[1],), dtype=jnp.float64).reshape(shape)


def _invert(probabilities, draws):
    """The index at which the distribution function of each row [N, K] passes its draw [N]."""
    ladder = jnp.cumsum(probabilities, axis=1)
    # Rounding may leave the last rung below 1, so draws are scaled to it.
    return (ladder <= (draws * ladder[:, -1])[:, None]).sum(1)
