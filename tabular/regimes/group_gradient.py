"""Moments of a group's policy gradient at any boundary, exact by dynamic programming.

A group of n chains starts in one boundary state S_k and is compared with itself: chain i of return
R_i gets the advantage R_i minus the mean of the others (`rtpo_jax.core.leave_one_out`). With z_l the
score of its turn l >= k, the gradient that the group estimates for turn l is the sample covariance

    C_l = 1/n sum_i (R_i - mean_{j != i} R_j) z_{l,i} = 1/(n-1) sum_i (R_i - mean_j R_j) z_{l,i}.

k = 0 is a flat group of whole episodes of one task (GRPO, RLOO), k > 0 a group of siblings (RTPO,
arXiv 2608.18682, Eq. 6). Derived here. Given S_k write x = R - V and c_l = E[x z_l], and use
E z_l = 0:

    C_l = 1/n sum_i x_i z_i - U,      U = 1/(n(n-1)) sum_{i != j} x_j z_i.

E C_l = c_l. The first part has variance (E x^2|z|^2 - |c|^2)/n. U has mean 0; of the products of two
of its terms only the same ordered pair, E x^2 E|z|^2, and the swapped one, |c|^2, survive, n(n-1) of
each: E|U|^2 = (Var(R) E|z|^2 + |c|^2)/(n(n-1)). The two parts are uncorrelated, because every
product contains a chain that enters with mean 0. Together

    Var(C_l | S_k) = [ E x^2|z|^2 - (n-2)/(n-1) |c|^2 + Var(R) E|z|^2/(n-1) ] / n,

traces of covariance matrices throughout, and over boundary states Var C_l = E Var(C_l | S_k) +
Var c_l(S_k). The gradient is the same from every boundary: E c_l(S_k) = g_l for all k <= l.
`tabular.regimes.group_variance` puts the moments of this module into these formulas.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tabular.exact import occupancy
from tabular.mdp import TurnMDP, check_policy, is_concrete
from tabular.moments import return_moments

Block = Literal["turn", "state"]
Returns = Literal["total", "to_go"]


class GroupMoments(NamedTuple):
    """What decides the variance of a group gradient, by boundary turn k, state s and turn l.

    Arrays [K, S, L] have K = L = H and are conditional on S_k = s, reachable or not; 0 for l < k.

    Attributes:
      occupancy: [K, S] probability of reaching the boundary.
      turns_left: [K, S] mean number of turns from the boundary on, its own included: the cost of a
        chain.
      signals: [L] |g_l|^2, squared norm of the gradient of turn l.
      products: [K, S, L] E[(R - V)^2 |z_l|^2].
      scores: [K, S, L] E|z_l|^2; an episode that ended before turn l has z_l = 0.
      returns: [K, S, L] Var R; depends on l only for returns to go.
      covariances: [K, S, L] |c_l|^2, c_l = Cov(R, z_l).
    """

    occupancy: jax.Array
    turns_left: jax.Array
    signals: jax.Array
    products: jax.Array
    scores: jax.Array
    returns: jax.Array
    covariances: jax.Array


def group_moments(
    mdp: TurnMDP,
    policy: jax.Array,
    *,
    noise: float = 1.0,
    block: Block = "turn",
    returns: Returns = "total",
    reward_variances: jax.Array | None = None,
) -> GroupMoments:
    """The moments that decide the variance of every group gradient of a policy.

    Args:
      mdp: the MDP.
      policy: [H, S, A] action probabilities.
      noise: eta, the mean squared norm of a part of every score that is independent of everything
        else: variation among tokens that do not matter.
      block: the parameters of a turn, never shared between turns. "turn": one logit per action,
        added to the logits of all states, z = onehot(a) - pi(.|s). "state": a softmax per state.
      returns: "total", the return from the boundary on for every turn (what came before is shared
        by the group and cancels), or "to_go", for turn l only what is paid from turn l on; chains
        that ended before turn l stay in the group with return 0.
      reward_variances: as in `tabular.return_moments`.

    Returns:
      `GroupMoments`. O(H^2 S^3) time.

    Raises:
      ValueError: malformed policy or variances, unknown `block` or `returns`, negative noise.
    """
    for name, value, known in (("block", block, Block), ("returns", returns, Returns)):
        if value not in known.__args__:
            raise ValueError(f"{name}={value!r}: use one of {known.__args__}")
    if is_concrete(noise) and not 0.0 <= noise < float("inf"):
        raise ValueError(f"noise={noise}: a mean squared norm is 0 or more, and finite")
    policy = check_policy(mdp, policy)
    if reward_variances is None:
        reward_variances = np.zeros(mdp.rewards.shape)
    return _group_moments(mdp, policy, reward_variances, noise, block, returns)


def _score_norms(policy, noise):
    """|onehot(a) - pi(.|s)|^2 + eta, [H, S, A]: the squared norm of a score in either block."""
    return 1.0 - 2.0 * policy + (policy**2).sum(-1, keepdims=True) + noise


def _squared_gradient(weights, moments, policy, block):
    """|g_l|^2 of every turn, [L]: the policy gradient d pi A, summed over states for one block."""
    mean = (policy * moments.first).sum(-1, keepdims=True)
    gradient = weights[:, :, None] * policy * (moments.first - mean)
    if block == "turn":
        gradient = gradient.sum(1, keepdims=True)
    return (gradient**2).sum((1, 2))


@partial(jax.jit, static_argnames=("block", "returns"))
def _group_moments(mdp, policy, reward_variances, noise, block, returns):
    moments = return_moments(mdp, policy, reward_variances)
    tables = _tables(mdp, policy, moments, reward_variances, noise)
    turns = jnp.arange(mdp.num_turns)
    rows = jax.vmap(lambda turn: _from_boundary(tables, turn, block, returns))(turns)
    products, scores, variances, covariances = (row.transpose(0, 2, 1) for row in rows)
    weights = occupancy(mdp, policy)
    return GroupMoments(
        weights,
        _turns_left(tables["step"]),
        _squared_gradient(weights, moments, policy, block),
        products,
        scores,
        variances,
        covariances,
    )


def _tables(mdp, policy, moments, reward_variances, noise):
    """What a step of the chain needs, one row per turn."""
    squares = mdp.rewards**2 + reward_variances
    steps = [
        jnp.einsum("hsa,hsat->hst", policy * weight, mdp.transitions)
        for weight in (jnp.ones_like(policy), mdp.rewards, squares)
    ]
    return {
        "turn": jnp.arange(mdp.num_turns),
        "policy": policy,
        "scores": _score_norms(policy, noise),
        "first": moments.first,
        "second": moments.second,
        "mean": (policy * moments.first).sum(-1),
        "square": (policy * moments.second).sum(-1),
        "step": steps[0],
        "step_reward": steps[1],
        "step_square": steps[2],
    }


def _turns_left(steps):
    """Mean number of turns from each turn and state on, [H, S]."""

    def back(later, step):
        here = 1.0 + step @ later
        return here, here

    last = jnp.ones_like(steps[0, :, 0])
    earlier = jax.lax.scan(back, last, steps[:-1], reverse=True)[1]
    return jnp.concatenate([earlier, last[None]])


def _from_boundary(tables, boundary, block, returns):
    """Four arrays [L, S]: moments of a chain that starts in each state of one boundary turn.

    The chain carries, for start i and present state j, the probability of j and the first and
    second moment of the reward paid on the way, both times that probability.
    """
    num_states = tables["mean"].shape[1]
    start = (jnp.eye(num_states), *jnp.zeros((2, num_states, num_states)))
    total = tables["mean"][boundary], tables["square"][boundary]

    def step(chain, row):
        active = row["turn"] >= boundary
        paid = jax.tree.map(jnp.zeros_like, chain[1:]) if returns == "to_go" else chain[1:]
        if returns == "to_go":
            mean, square = chain[0] @ row["mean"], chain[0] @ row["square"]
        else:
            mean, square = total
        found = _turn_moments((chain[0], *paid), row, mean, block)
        found = (*found[:2], square - mean**2, found[2])
        following = _advance(chain, row)
        chain = jax.tree.map(partial(jnp.where, active), following, chain)
        return chain, tuple(jnp.where(active, part, 0.0) for part in found)

    return jax.lax.scan(step, start, tables)[1]


def _turn_moments(chain, row, mean, block):
    """E[(R - V)^2 |z|^2], E|z|^2 and |c|^2 of one turn, each [S] by the state of the boundary."""
    mass, paid, paid_squares = (part[:, :, None] for part in chain)
    policy, first, second = row["policy"][None], row["first"][None], row["second"][None]
    centre = mean[:, None, None]
    here = mass * policy
    returns = (paid + mass * first) * policy
    squares = (paid_squares + 2.0 * paid * first + mass * second) * policy
    centred = squares - 2.0 * centre * returns + centre**2 * here
    # sum_a x(a) (onehot(a) - pi): the covariance with each coordinate of the score.
    covariance = returns - returns.sum(-1, keepdims=True) * policy
    if block == "turn":
        covariance = covariance.sum(1, keepdims=True)
    scores = row["scores"][None]
    return (centred * scores).sum((1, 2)), (here * scores).sum((1, 2)), (covariance**2).sum((1, 2))


def _advance(chain, row):
    mass, paid, squares = chain
    once, rewarded, rewarded_square = row["step"], row["step_reward"], row["step_square"]
    return (
        mass @ once,
        paid @ once + mass @ rewarded,
        squares @ once + 2.0 * paid @ rewarded + mass @ rewarded_square,
    )
