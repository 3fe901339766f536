"""Second moments of returns, and where in the episode their variance comes from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.exact import occupancy, values
from tabular.mdp import TurnMDP, check_policy


class Moments(NamedTuple):
    """First and second moment of the return from a turn on, given state and action.

    Attributes:
      first: [H, S, A] E[G_h | s, a], the action value Q.
      second: [H, S, A] E[G_h^2 | s, a].
    """

    first: jax.Array
    second: jax.Array

    @property
    def variance(self) -> jax.Array:
        """[H, S, A] Var(G_h | s, a)."""
        return self.second - self.first**2


class Decomposition(NamedTuple):
    """Variance of the return of an episode, split at every turn h; at each the three sum to `total`.

    Attributes:
      upstream: [H] variance of the return expected on arriving at turn h (RTPO's sigma_V^2 if only
        the outcome pays).
      turn: [H] variance that the action of turn h adds, E[A_h^2].
      downstream: [H] variance left after it, E Var(R | history, a_h).
      total: scalar, Var R.
    """

    upstream: jax.Array
    turn: jax.Array
    downstream: jax.Array
    total: jax.Array


def return_moments(
    mdp: TurnMDP, policy: jax.Array, reward_variances: jax.Array | None = None
) -> Moments:
    """Moments of the return G_h = r_h + ... + r_{H-1} given the state and action at turn h.

        M_h(s, a) = Var r + r^2 + 2 r sum_s' P(s'|s,a) V_{h+1}(s')
                    + sum_s' P(s'|s,a) sum_a' pi(a'|s') M_{h+1}(s', a')

    Args:
      mdp: the MDP.
      policy: [H, S, A] action probabilities.
      reward_variances: [H, S, A] variance of the reward given state and action, independent of
        everything else; None for rewards without noise. A Bernoulli outcome with probability p,
        entered as the reward p, has variance p (1 - p).

    Returns:
      `Moments`, in units of reward and of reward squared.

    Raises:
      ValueError: malformed policy, or reward_variances of another shape than the rewards.
    """
    policy = check_policy(mdp, policy)
    noise = reward_noise(mdp, reward_variances)
    return Moments(values(mdp, policy).Q, _second_moments(mdp, policy, noise))


def variance_decomposition(
    mdp: TurnMDP, policy: jax.Array, reward_variances: jax.Array | None = None
) -> Decomposition:
    """Split the variance of the return of a whole episode at every turn.

    With F the history up to the boundary at turn h, P_h the reward paid before it and V = 0 where
    the episode has ended,

        Var R = Var(P_h + V_h(S_h)) + E[A_h(S_h, a_h)^2] + E Var(R | F, a_h)

    (law of total variance twice; RTPO, arXiv 2608.18682, Eqs. 3 and 11, splits the return itself).

    Args:
      mdp: the MDP.
      policy: [H, S, A] action probabilities.
      reward_variances: see `return_moments`.

    Returns:
      `Decomposition`, in units of reward squared. `downstream` is computed by itself, from the
      moments of what follows turn h and the noise already drawn, not as a remainder.

    Raises:
      ValueError: as `return_moments`.
    """
    policy = check_policy(mdp, policy)
    noise = reward_noise(mdp, reward_variances)
    moments = return_moments(mdp, policy, noise)
    state_values = values(mdp, policy).V
    first, second, ended = past_rewards(mdp, policy, noise)
    mass = occupancy(mdp, policy)
    mean = mdp.start @ state_values[0]
    squares = second + 2.0 * first * state_values[:-1] + mass * state_values[:-1] ** 2
    upstream = squares.sum(-1) + ended - mean**2
    weights = mass[:, :, None] * policy
    turn = (weights * (moments.first - state_values[:-1, :, None]) ** 2).sum((1, 2))
    downstream = (weights * moments.variance).sum((1, 2))
    starting = mdp.start @ (policy[0] * moments.second[0]).sum(-1)
    return Decomposition(upstream, turn, downstream, starting - mean**2)


def reward_noise(mdp: TurnMDP, reward_variances: jax.Array | None) -> jax.Array:
    """The variances [H, S, A] of the rewards, 0 for None; ValueError for another shape."""
    if reward_variances is None:
        return jnp.zeros_like(mdp.rewards)
    noise = jnp.asarray(reward_variances)
    if noise.shape != mdp.rewards.shape:
        raise ValueError(
            f"reward_variances has shape {noise.shape}: give one variance per reward, "
            f"{mdp.rewards.shape}"
        )
    return noise


@jax.jit
def _second_moments(mdp, policy, noise):
    def step(following, turn):
        next_values, next_squares = following
        transitions, rewards, variances, probabilities = turn
        later = transitions @ next_values
        squares = variances + rewards**2 + 2.0 * rewards * later + transitions @ next_squares
        state_values = (probabilities * (rewards + later)).sum(-1)
        return (state_values, (probabilities * squares).sum(-1)), squares

    last = (jnp.zeros_like(mdp.start), jnp.zeros_like(mdp.start))
    turns = (mdp.transitions, mdp.rewards, noise, policy)
    return jax.lax.scan(step, last, turns, reverse=True)[1]


@jax.jit
def past_rewards(
    mdp: TurnMDP, policy: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moments of the reward P_h paid before turn h, on reaching each state and on having ended.

    Args:
      mdp: the MDP.
      policy: [H, S, A] action probabilities.
      noise: [H, S, A] variances of the rewards.

    Returns:
      [H, S] E[1{S_h=s} P_h], [H, S] E[1{S_h=s} P_h^2] and [H] E[1{ended before h} P_h^2].
    """

    def step(carry, turn):
        mass, first, second, ended = carry
        transitions, rewards, variances, probabilities = turn
        weight = mass[:, None] * probabilities
        sums = first[:, None] * probabilities + weight * rewards
        squares = (
            second[:, None] * probabilities
            + 2.0 * first[:, None] * probabilities * rewards
            + weight * (rewards**2 + variances)
        )
        stays = transitions.sum(-1)
        following = [jnp.einsum("sa,sat->t", part, transitions) for part in (weight, sums, squares)]
        return (*following, ended + ((1.0 - stays) * squares).sum()), (first, second, ended)

    zeros = jnp.zeros_like(mdp.start)
    turns = (mdp.transitions, mdp.rewards, noise, policy)
    start = (mdp.start, zeros, zeros, jnp.zeros(()))
    return jax.lax.scan(step, start, turns)[1]
