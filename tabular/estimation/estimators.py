"""Mean and variance of advantage estimators, in closed form: groups of episodes, siblings, GAE.

An estimator turns sampled returns into a number for the action a taken in state s at turn h. Here
its law given (s, a) is summarised by two exact moments, an `Estimate`; averaging them over the
states and actions that an episode meets at turn h is `tabular.estimation.accuracy`. The same moments by
enumerating groups through `rtpo_jax.core` are in `tabular.estimation.groups`.

Members of a group are independent. With R the return of the row itself and n members in all,

    R - mean of the others   has mean  E[R | s,a] - m   and variance  Var(R | s,a) + v / (n - 1),

m and v being mean and variance of one other member, and the mean over all n members, the row
included, only multiplies by (n - 1) / n. Estimators differ in what R, m and v are. Everything is
jitted and works under `vmap` over stacked MDPs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.exact import occupancy
from tabular.mdp import TurnMDP, check_integer, check_policy
from tabular.moments import past_rewards, return_moments


class Estimate(NamedTuple):
    """First two moments of an advantage estimate given turn, state and action.

    Attributes:
      mean: [H, S, A], in units of reward.
      variance: [H, S, A], in units of reward squared.
    """

    mean: jax.Array
    variance: jax.Array


def trajectory_group(
    mdp: TurnMDP,
    policy: jax.Array,
    group_size: int,
    *,
    include_self: bool = True,
    to_go: bool = False,
) -> Estimate:
    """Return of an episode minus the mean return of its group (GRPO without deviation; RLOO).

        E[estimate | s,a] = f (E[P_h | s] + Q_h(s,a) - mean return),
        f = (G - 1) / G with the row in its own baseline, else 1

    RTPO (arXiv 2608.18682), Eqs. 12 and 69: besides the advantage, the estimate contains the value
    of the state it stands in.

    Args:
      mdp: the MDP; the G episodes of a group all start from `mdp.start`.
      policy: [H, S, A] action probabilities.
      group_size: G, at least 2.
      include_self: whether the baseline is the mean over all G episodes or over the other G - 1.
      to_go: compare returns from turn h on instead of whole returns. An episode that ended before
        turn h takes part with 0, so that groups keep their size.

    Returns:
      `Estimate`. In states that are never reached the reward already paid counts as 0.

    Raises:
      ValueError: group_size below 2, malformed policy.
    """
    check_integer("group_size", group_size, 2)
    own, other = _episode_returns(mdp, check_policy(mdp, policy), to_go=to_go)
    other_mean, other_variance = (moment[:, None, None] for moment in other)
    factor = (group_size - 1) / group_size if include_self else 1.0
    variance = own.variance + other_variance / (group_size - 1)
    return Estimate(factor * (own.mean - other_mean), factor**2 * variance)


def sibling_group(
    mdp: TurnMDP,
    policy: jax.Array,
    num_siblings: int,
    *,
    include_self: bool = True,
    trunk_policy: jax.Array | None = None,
) -> Estimate:
    """Return of one of n siblings, forked at (h, s), minus the mean of the group.

        E[estimate | s,a] = (n - 1) / n A_h(s,a)        (RTPO, Eq. 64, with n = G - 1)
        Var = ((n - 1) / n)^2 (Var(G_h | s,a) + Var(G_h | s) / (n - 1))

    and without the factors if the row is left out of its baseline. Rewards paid before the fork
    are common to all siblings and cancel, so returns from turn h on are all that is needed.

    Args:
      mdp: the MDP.
      policy: [H, S, A] action probabilities of the siblings.
      num_siblings: n; at least 2, or 1 if the trunk is counted in.
      include_self: whether the baseline is the mean over the whole group or over the others.
      trunk_policy: [H, S, A] policy that made the trunk from turn h on, if the trunk is a member of
        the group; the estimate stays that of a sibling. With a trunk older than the siblings,
        V_h(s) of the trunk's policy enters the baseline: a bias. None: the trunk is no member.

    Returns:
      `Estimate`, also for states that are never reached.

    Raises:
      ValueError: num_siblings too small, malformed policies.
    """
    check_integer("num_siblings", num_siblings, 2 if trunk_policy is None else 1)
    own, sibling = continuation_returns(mdp, policy)
    num_others = num_siblings - 1
    total = [num_others * moment for moment in sibling]
    if trunk_policy is not None:
        _, trunk = continuation_returns(mdp, trunk_policy)
        num_others += 1
        total = [part + moment for part, moment in zip(total, trunk, strict=True)]
    mean, variance = total[0] / num_others, total[1] / num_others**2
    factor = num_others / (num_others + 1) if include_self else 1.0
    return Estimate(
        factor * (own.mean - mean[:, :, None]), factor**2 * (own.variance + variance[:, :, None])
    )


def generalised_advantage(
    mdp: TurnMDP,
    policy: jax.Array,
    values: jax.Array,
    trace_decay: float,
    value_variances: jax.Array | None = None,
) -> Estimate:
    """Generalised advantage estimate from given values (Schulman et al., 2016), one episode.

        X_h = r_h + [goes on] (V_{h+1}(s') + lambda X_{h+1}) - V_h(s)

    With exact values the mean is the advantage, whatever lambda; with other values it is biased
    unless lambda = 1, where the error of V_h(s) is the only one left.

    Args:
      mdp: the MDP; where an episode ends, nothing is bootstrapped.
      policy: [H, S, A] action probabilities.
      values: [H+1, S] values to use; row H is never read.
      trace_decay: lambda in 0..1.
      value_variances: [H+1, S] variance of noise on `values` with mean 0, independent of the
        episode and across turns and states; None for none.

    Returns:
      `Estimate`; the variance is over episodes and noise.

    Raises:
      ValueError: trace_decay outside 0..1, tables of another shape, malformed policy.
    """
    policy = check_policy(mdp, policy)
    shape = (mdp.num_turns + 1, mdp.num_states)
    noise = jnp.zeros(shape) if value_variances is None else value_variances
    for name, table in (("values", values), ("value_variances", noise)):
        if jnp.shape(table) != shape:
            raise ValueError(
                f"{name} has shape {jnp.shape(table)}: give [H+1, S] = {shape}, one per turn and "
                "state and a last row that is not read"
            )
    if not isinstance(trace_decay, jax.core.Tracer) and not 0.0 <= trace_decay <= 1.0:
        raise ValueError(f"trace_decay is {trace_decay}: choose a number from 0 to 1")
    return _generalised_advantage(mdp, policy, values, jnp.asarray(trace_decay, float), noise)


@jax.jit
def continuation_returns(
    mdp: TurnMDP, policy: jax.Array
) -> tuple[Estimate, tuple[jax.Array, jax.Array]]:
    """Return from turn h on: moments [H, S, A] given (s, a), and (mean, variance) [H, S] given s."""
    moments = return_moments(mdp, policy)
    mean = (policy * moments.first).sum(-1)
    variance = (policy * moments.second).sum(-1) - mean**2
    return Estimate(moments.first, moments.variance), (mean, variance)


def _episode_returns(mdp, policy, *, to_go):
    """Moments of what an episode contributes at turn h: given (s, a), and [H] of any episode."""
    own, (mean, variance) = continuation_returns(mdp, policy)
    if to_go:
        reached = occupancy(mdp, policy)
        group_mean = (reached * mean).sum(-1)
        group_square = (reached * (variance + mean**2)).sum(-1)
        return own, (group_mean, group_square - group_mean**2)
    paid, paid_variance = paid_before(mdp, policy)
    whole = Estimate(own.mean + paid[:, :, None], own.variance + paid_variance[:, :, None])
    start_mean = mdp.start @ mean[0]
    start_variance = mdp.start @ (variance[0] + mean[0] ** 2) - start_mean**2
    turns = jnp.ones(mdp.num_turns)
    return whole, (start_mean * turns, start_variance * turns)


@jax.jit
def paid_before(mdp: TurnMDP, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance [H, S] of the reward paid before turn h given the state; 0 if unreached."""
    mass = occupancy(mdp, policy)
    first, second, _ = past_rewards(mdp, policy, jnp.zeros_like(mdp.rewards))
    divisor = jnp.where(mass > 0, mass, 1.0)
    mean = first / divisor
    return mean, second / divisor - mean**2


@jax.jit
def _generalised_advantage(mdp, policy, values, trace_decay, noise):
    # The last row belongs to no state an episode can stand in.
    after = jnp.concatenate([values[1:-1], jnp.zeros_like(values[:1])])
    after_noise = jnp.concatenate([noise[1:-1], jnp.zeros_like(noise[:1])])

    def step(following, turn):
        mean, square, disturbance = following
        transitions, rewards, probabilities, here, next_value, here_noise, next_noise = turn
        reached = next_value + trace_decay * mean
        reached_square = next_value**2 + 2.0 * trace_decay * next_value * mean
        reached_square = reached_square + trace_decay**2 * square
        base = rewards - here[:, None]
        first = base + transitions @ reached
        second = base**2 + 2.0 * base * (transitions @ reached) + transitions @ reached_square
        # Noise of V_{h+1} enters once as bootstrap and once, times -lambda, through X_{h+1}.
        disturbed = transitions @ (
            (1.0 - trace_decay) ** 2 * next_noise + trace_decay**2 * disturbance
        )
        carry = [(probabilities * part).sum(-1) for part in (first, second, disturbed)]
        return tuple(carry), (first, second - first**2 + disturbed + here_noise[:, None])

    zeros = jnp.zeros_like(mdp.start)
    turns = (mdp.transitions, mdp.rewards, policy, values[:-1], after, noise[:-1], after_noise)
    _, (mean, variance) = jax.lax.scan(step, (zeros, zeros, zeros), turns, reverse=True)
    return Estimate(mean, variance)
