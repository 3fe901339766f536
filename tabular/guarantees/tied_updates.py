"""Updates of policies whose rows are tied by features: gradient ascent on exact surrogates.

A step theta makes the policy proportional to policy exp(features @ theta), so every class here starts
from the policy itself and only the directions in which it can move are shared.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rtpo_jax import core
from tabular.exact import performance
from tabular.guarantees.cells import (
    Case,
    Estimator,
    Result,
    Update,
    carried_factor,
    discounted,
    estimates,
)
from tabular.objectives import credit, expected_surrogate
from tabular.paths import Paths, along, path_probabilities


def ascend(paths: Paths, case: Case, how: Estimator, update: Update) -> Result:
    """Tied rows: gradient ascent on the exact expected surrogate of the turns of each stage.

    With `gradient` one step of size sum(steps): at ratio 1 the clipping does not act, so this is
    REINFORCE. Boundary states of a fresh stage are those of the policy at the start of the
    iteration, its actions and continuations those of the policy as it stands.
    """
    policy_of = partial(_log_linear, case)
    total = jnp.zeros_like(update.steps).at[0].set(update.steps.sum())
    steps = jnp.where(update.gradient, total, update.steps)

    def stage(carry, turns):
        theta, carried = carry
        source = jnp.where(update.fresh, policy_of(theta), case.policy)
        before = jnp.cumsum(turns) == 0
        sampler = jnp.where(before[:, None, None], case.policy, source)
        weights = path_probabilities(case.mdp, sampler, paths)
        advantages = estimates(case, source, paths, how) * carried[:, None]
        kept = jnp.where(turns[None, :], advantages, 0.0)
        found = credit(paths, weights, kept, source.shape)

        def objective(theta):
            return expected_surrogate(policy_of(theta), source, found, update.clip, update.clip)

        theta = _climb(objective, theta, steps)
        return (
            theta,
            carried * carried_factor(policy_of(theta), case.policy, turns, paths, update),
        ), None

    start = (jnp.zeros(case.features.shape[-1]), jnp.ones(len(paths.states)))
    (theta, _), _ = jax.lax.scan(stage, start, update.stages)
    weights = path_probabilities(case.mdp, case.policy, paths)
    advantages = estimates(case, case.policy, paths, how)
    slopes = _slopes(case, how.discount, paths, weights[:, None] * advantages)
    return Result(policy_of(theta), *slopes, jnp.nan)


def ascend_sequence(paths: Paths, case: Case, how: Estimator, update: Update) -> Result:
    """Tied rows: gradient ascent with one ratio for the whole episode, product or geometric mean.

        E[min(w A_0, clip(w) A_0)],   w = prod_h r_h  or  (prod_h r_h)^(1 / length)

    A_0 is the advantage of the first turn. Where it is a return minus a baseline of the task and w
    the product, E[w A_0] is the change in performance, and clipping can only lower it: performance
    rises by at least `gain`, for any class and any step (derived here).
    """
    weights = path_probabilities(case.mdp, case.policy, paths)
    advantages = estimates(case, case.policy, paths, how)[:, 0]
    return climb_sequence(case, how.discount, paths, weights, advantages, update)


def climb_sequence(
    case: Case,
    discount: float | jax.Array,
    rows: Paths,
    weights: jax.Array,
    advantages: jax.Array,
    update: Update,
) -> Result:
    """`ascend_sequence` on given rows [M, H] with weights [M] and advantages [M]."""

    def objective(theta):
        log_ratios = along(_log_policy_change(case, theta), rows)
        product = core.trajectory_log_ratios(log_ratios, rows.turn_mask, mean=False)
        geometric = core.trajectory_log_ratios(log_ratios, rows.turn_mask, mean=True)
        ratios = core.ratios(jnp.where(update.mean, geometric, product))
        surrogate = core.clipped_surrogate(ratios, advantages, update.clip, update.clip)
        return core.weighted_sum(surrogate, weights)

    start = jnp.zeros(case.features.shape[-1])
    theta = _climb(objective, start, update.steps)
    lengths = jnp.where(update.mean, rows.turn_mask.sum(-1), 1)
    coefficients = jnp.broadcast_to((weights * advantages / lengths)[:, None], rows.states.shape)
    gain = objective(theta) - objective(start)
    slopes = _slopes(case, discount, rows, coefficients)
    return Result(_log_linear(case, theta), *slopes, gain)


def _log_linear(case, theta):
    rows = case.policy * jnp.exp(_tilt(case, theta))
    return rows / rows.sum(-1, keepdims=True)


def _log_policy_change(case, theta):
    """log of new policy over old, [H, S, A]; finite also for actions of probability 0."""
    tilt = _tilt(case, theta)
    return tilt - jnp.log((case.policy * jnp.exp(tilt)).sum(-1, keepdims=True))


def _tilt(case, theta):
    """features @ theta minus its maximum over a row's actions, so exp cannot overflow.

    Actions of probability 0 do not count, and get 0.
    """
    possible = case.policy > 0
    tilt = case.features @ theta
    top = jnp.where(possible, tilt, -jnp.inf).max(-1, keepdims=True)
    # The maximum cancels in normalised rows, and so does its gradient.
    return jnp.where(possible, tilt - jax.lax.stop_gradient(top), 0.0)


def _climb(objective, theta, steps):
    def step(current, size):
        return current + size * jax.grad(objective)(current), None

    return jax.lax.scan(step, theta, steps)[0]


def _slopes(case, discount, rows, coefficients):
    """Cosines of the gradient of sum coefficients log pi with those of both performances."""
    start = jnp.zeros(case.features.shape[-1])

    def score(theta):
        return (coefficients * along(_log_policy_change(case, theta), rows)).sum()

    def both(theta):
        policy = _log_linear(case, theta)
        return performance(case.mdp, policy), performance(discounted(case.mdp, discount), policy)

    direction = jax.grad(score)(start)
    found = []
    for true in jax.jacrev(both)(start):
        lengths = jnp.linalg.norm(direction) * jnp.linalg.norm(true)
        cosine = direction @ true / jnp.where(lengths > 0, lengths, 1.0)
        found.append(jnp.where(lengths > 1e-14, cosine, 0.0))
    return found
