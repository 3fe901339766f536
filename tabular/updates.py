"""One iteration of each kind of update, exactly: all turns at once, or one turn after the other."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rtpo_jax import core
from tabular.exact import values
from tabular.mdp import TurnMDP, check_policy
from tabular.objectives import (
    Credit,
    credit,
    maximise_surrogate,
    mean_credit,
    merge_contexts,
)
from tabular.paths import Paths, at_states, path_probabilities, path_ratios, path_rewards


def value_advantages(
    mdp: TurnMDP, paths: Paths, state_values: jax.Array, trace_decay: float = 1.0
) -> jax.Array:
    """Generalised advantage estimate of every turn of every path, [M, H], by `core.gae`.

    Args:
      mdp: the MDP.
      paths: M episodes.
      state_values: [H+1, S], exact, noisy or biased; a group baseline is V_0(s_0) at every turn,
        see `group_advantages`.
      trace_decay: lambda; 1 gives the return from the turn on minus the value.
    """
    continues = jnp.pad(paths.turn_mask[:, 1:].astype(state_values.dtype), ((0, 0), (0, 1)))
    along_path = jnp.pad(at_states(state_values, paths), ((0, 0), (0, 1)))
    return core.gae(path_rewards(mdp, paths), continues, along_path, trace_decay)


def group_advantages(
    mdp: TurnMDP, policy: jax.Array, paths: Paths, *, scale: bool = False, epsilon: float = 0.0
) -> jax.Array:
    """Group-relative advantage of a group without bound, [M, H]: the same at every turn.

        A = R - E[R | s_0],  over the standard deviation of R given s_0 (+ epsilon) if `scale`

    The limit G -> infinity of `core.group_relative` with the first state as the task (GRPO,
    arXiv 2402.03300; SeeUPO, arXiv 2602.06554, Eq. 5). Tasks without variance get 0.
    """
    weights = path_probabilities(mdp, policy, paths)
    returns = path_rewards(mdp, paths).sum(-1)
    first = paths.states[:, 0]

    def mean(numbers):
        sums = jnp.zeros_like(mdp.start).at[first].add(weights * numbers)
        return (sums / jnp.where(mdp.start > 0, mdp.start, 1.0))[first]

    found = returns - mean(returns)
    if scale:
        variances = mean(found**2)
        # Rounding leaves a trace of variance where there is none, in proportion to the returns.
        flat = variances <= 1e-24 * mean(returns**2)
        found = jnp.where(flat, 0.0, found / (jnp.sqrt(jnp.where(flat, 1.0, variances)) + epsilon))
    return jnp.where(paths.turn_mask, found[:, None], 0.0)


def simultaneous(
    policy: jax.Array,
    paths: Paths,
    weights: jax.Array,
    advantages: jax.Array,
    clip_low: float,
    clip_high: float,
    contexts: jax.Array | None = None,
) -> jax.Array:
    """Maximise the clipped surrogate of all turns at once: the proximal update of PPO and GRPO.

    Args:
      policy: [H, S, A] the behaviour policy.
      paths: M episodes.
      weights: [M] measure of the episodes under the behaviour policy, exact or of a sample.
      advantages: [M, H].
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.
      contexts: [H, S] what the policy sees, None for everything.

    Returns:
      [H, S, A] the new policy.
    """
    found = credit(paths, weights, advantages, policy.shape)
    return _maximise(policy, found, clip_low, clip_high, contexts)


def sequential(
    policy: jax.Array,
    paths: Paths,
    weights: jax.Array,
    advantages: jax.Array,
    order: jax.Array,
    clip_low: float,
    clip_high: float,
    contexts: jax.Array | None = None,
    *,
    compound: bool = True,
) -> jax.Array:
    """Maximise turn after turn, carrying the ratios of the turns already updated (SeeUPO).

        M = A;   for h in order:  pi_h <- argmax E_old[min(r_h M, clip(r_h) M)];   M <- r_h M

    (SeeUPO, arXiv 2602.06554, Eqs. 6-8, with the exact product of ratios and the denominator at the
    start of the iteration.) Data stay those of the old policy.

    Args:
      policy: [H, S, A] the behaviour policy.
      paths: M episodes.
      weights: [M] measure of the episodes under the behaviour policy.
      advantages: [M, H]; M starts from the entry of the turn that is updated.
      order: [H] int, the turns in the order of their updates; H-1, ..., 0 is the paper's.
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.
      contexts: [H, S] what the policy sees, None for everything.
      compound: False leaves M = A, the ablation.

    Returns:
      [H, S, A] the new policy.
    """

    def step(carry, turn):
        current, ratios = carry
        found = credit(paths, weights, advantages * ratios[:, None], policy.shape)
        improved = _maximise(policy, found, clip_low, clip_high, contexts)
        here = (jnp.arange(policy.shape[0]) == turn)[:, None, None]
        factor = path_ratios(jnp.where(here, improved, policy), policy, paths) if compound else 1.0
        return (jnp.where(here, improved, current), ratios * factor), None

    start = (policy, jnp.ones_like(weights))
    return jax.lax.scan(step, start, order)[0][0]


def siblings(
    mdp: TurnMDP,
    policy: jax.Array,
    order: jax.Array,
    clip_low: float,
    clip_high: float,
    contexts: jax.Array | None = None,
    *,
    fresh: bool = True,
) -> jax.Array:
    """Maximise turn after turn from siblings of unbounded number at every boundary (RTPO).

        for h in order:  pi_h <- argmax E[min(r_h A_h, clip(r_h) A_h)],
        A_h the advantage under pi_{<h} of the start and the current pi_{>h} (RTPO, arXiv
        2608.18682, Eq. 6 and Algorithm 1, with order H-1, ..., 0)

    Boundary states are those of the policy at the start of the iteration, as the trunks' are.

    Args:
      mdp: the MDP.
      policy: [H, S, A] policy at the start of the iteration.
      order: [H] int, the turns in the order of their updates.
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.
      contexts: [H, S] what the policy sees, None for everything.
      fresh: False keeps the continuations of the start, the paper's off-policy ablation without
        weights.

    Returns:
      [H, S, A] the new policy.
    """
    policy = check_policy(mdp, policy)

    def step(current, turn):
        action_values = values(mdp, current if fresh else policy).Q
        baseline = (policy * action_values).sum(-1, keepdims=True)
        found = mean_credit(mdp, policy, action_values - baseline)
        improved = _maximise(policy, found, clip_low, clip_high, contexts)
        here = (jnp.arange(policy.shape[0]) == turn)[:, None, None]
        return jnp.where(here, improved, current), None

    return jax.lax.scan(step, policy, order)[0]


def ascend(
    objective: Callable[[jax.Array], jax.Array],
    params: jax.Array,
    learning_rate: float,
    num_steps: int,
) -> jax.Array:
    """Plain gradient ascent, `num_steps` steps of `learning_rate` times the gradient."""

    def step(current, _):
        return current + learning_rate * jax.grad(objective)(current), None

    return jax.lax.scan(step, params, length=num_steps)[0]


def reverse_order(num_turns: int) -> jax.Array:
    """The turns from last to first, [H]."""
    return jnp.arange(num_turns)[::-1]


def _maximise(policy, found: Credit, clip_low, clip_high, contexts):
    if contexts is not None:
        found = merge_contexts(found, contexts)
    return maximise_surrogate(policy, found, clip_low, clip_high)
