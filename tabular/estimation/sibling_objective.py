"""RTPO's surrogate at one boundary in expectation, over all groups of siblings that can be drawn.

Rows, masks, advantages, ratios and the clipped surrogate are those of a training batch; in place of
a sample stands every group, weighted by its probability. Differentiating the result is therefore
differentiating the expected loss, and what the gradient is 0 for, no batch can move.
"""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular.exact import occupancy
from tabular.mdp import TurnMDP, check_integer, check_policy
from tabular.paths import Paths, along, path_probabilities, path_rewards


class SiblingGroups(NamedTuple):
    """Every group of n siblings, as numpy arrays.

    Attributes:
      members: [C, n] indices of paths that stand in the same state at the turn of the fork.
      orders: [C] in how many orders the same siblings can be drawn.
    """

    members: np.ndarray
    orders: np.ndarray


def sibling_groups(
    paths: Paths, turn: int, num_siblings: int, *, limit: int = 200_000
) -> SiblingGroups:
    """List all groups of siblings forked at one turn, each multiset of paths once.

    Args:
      paths: `all_paths` of the MDP's sizes.
      turn: of the fork.
      num_siblings: n, at least 2.
      limit: the largest number of groups that is built.

    Returns:
      `SiblingGroups`.

    Raises:
      ValueError: turn or num_siblings out of range, more than `limit` groups.
    """
    check_integer("turn", turn, 0, paths.states.shape[1] - 1)
    check_integer("num_siblings", num_siblings, 2)
    states = np.where(paths.turn_mask[:, turn], paths.states[:, turn], -1)
    alike = [np.flatnonzero(states == state) for state in range(states.max() + 1)]
    count = sum(math.comb(len(some) + num_siblings - 1, num_siblings) for some in alike)
    if count > limit:
        raise ValueError(f"limit is {limit} but there are {count} groups: use a smaller MDP")
    members = [
        group
        for some in alike
        for group in itertools.combinations_with_replacement(some, num_siblings)
    ]
    orders = [
        math.factorial(num_siblings) / math.prod(map(math.factorial, Counter(group).values()))
        for group in members
    ]
    return SiblingGroups(np.array(members), np.array(orders))


def sibling_objective(
    policy: jax.Array,
    mdp: TurnMDP,
    behavior: jax.Array,
    paths: Paths,
    groups: SiblingGroups,
    turn: int,
    *,
    tails: bool = False,
    clip: float = 0.2,
) -> jax.Array:
    """Expectation of J_k (RTPO, arXiv 2608.18682, Eq. 6), a scalar to maximise.

        J_k = 1/n sum_j min(rho_j A_j, clip(rho_j, 1 - clip, 1 + clip) A_j),
        rho_j = pi_k(a_j | S_k) / behavior_k(a_j | S_k)

    over n siblings that start in S_k, S_k as the behaviour reaches it (0 for episodes that do not),
    with A_j from `core.sibling_relative`. At policy = behavior the gradient with respect to softmax
    logits is (n - 1) / n d_k pi_k A_k in row k and exactly 0 in all others. An action counts as one
    token. Under `jit` pass `groups` as an argument: constants of that size are slow to compile.

    Args:
      policy: [H, S, A] action probabilities; gradients flow into them.
      mdp: the MDP.
      behavior: [H, S, A] action probabilities that sampled trunk and siblings, all positive.
      paths: `all_paths` of the MDP's sizes, numpy.
      groups: `sibling_groups` of the same paths and turn.
      turn: k.
      tails: train also what the siblings do after turn k, with the same advantage. Each later row l
        then gets (n - 1) / n d_l pi_l A_l (derived here).
      clip: distance of both clip bounds from 1.

    Returns:
      scalar, in units of reward.

    Raises:
      ValueError: turn out of range, malformed policies.
    """
    check_integer("turn", turn, 0, mdp.num_turns - 1)
    policy, behavior = check_policy(mdp, policy), check_policy(mdp, behavior)
    turns = np.arange(mdp.num_turns)[None, :]
    trained = paths.turn_mask & ((turns >= turn) if tails else (turns == turn))
    rows, row_weights, advantages = _rows(mdp, behavior, paths, groups, turn)
    log_ratios = along(jnp.log(policy) - jnp.log(behavior), paths)[rows]
    shared = jnp.broadcast_to(advantages[:, None], log_ratios.shape)
    surrogate = core.clipped_surrogate(core.ratios(log_ratios), shared, clip, clip)
    weights = core.token_mean_weights(jnp.asarray(trained)[rows], row_weights=row_weights)
    return core.weighted_sum(surrogate, weights)


def _rows(mdp, behavior, paths, groups, turn):
    """Index of the path, weight and advantage of every row, all groups in one batch."""
    members = jnp.asarray(groups.members)
    num_groups, num_siblings = members.shape
    # Paths also tell what happened before the fork; given the state there that is independent of
    # what follows, and summing over it changes nothing.
    here = occupancy(mdp, behavior)[turn][paths.states[:, turn]]
    given = path_probabilities(mdp, behavior, paths) / jnp.where(here > 0, here, 1.0)
    chances = groups.orders * here[members[:, 0]] * given[members].prod(-1)
    rows = members.ravel()
    ids = jnp.repeat(jnp.arange(num_groups), num_siblings)
    returns = path_rewards(mdp, paths)[:, turn:].sum(-1)[rows]
    advantages = core.sibling_relative(returns, ids, num_groups)
    return rows, jnp.repeat(chances / num_siblings, num_siblings), advantages
