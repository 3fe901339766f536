"""Expected clipped surrogates, and the policy that maximises one exactly, state by state.

At one turn, state and action the ratio of the policy to the behaviour is one number r, while the
advantage may differ from episode to episode. Clipping looks at the sign of the advantage only, so the
expectation over episodes needs no more than two numbers,

    E[min(r A, clip(r, 1 - low, 1 + high) A)] = min(r, 1 + high) E[A^+] - max(r, 1 - low) E[A^-],

the positive and the negative part: `Credit`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rtpo_jax import core
from tabular.exact import occupancy
from tabular.mdp import TurnMDP, check_policy, is_concrete
from tabular.paths import Paths, group_by_step

# Slopes closer than this share of the largest one are the same slope: far above rounding of a sum
# over episodes, far below differences that a random instance shows.
_TIE = 1e-11


class Credit(NamedTuple):
    """Expected parts of the advantage, measure included, in units of reward.

    Attributes:
      gain: [H, S, A] expectation of max(A, 0) on being at (h, s, a).
      loss: [H, S, A] expectation of max(-A, 0) on being at (h, s, a).
    """

    gain: jax.Array
    loss: jax.Array


def credit(
    paths: Paths, weights: jax.Array, advantages: jax.Array, shape: tuple[int, int, int]
) -> Credit:
    """Credit of advantages that are known episode by episode.

    Args:
      paths: M episodes.
      weights: [M] measure of the episodes: probabilities, or counts of a sample over its size.
      advantages: [M, H] of the action of each turn.
      shape: (H, S, A).

    Returns:
      `Credit`: gain_h(s, a) = sum of weights times max(A, 0) over the episodes through (h, s, a).
    """
    measure = jnp.broadcast_to(weights[:, None], paths.states.shape)
    gain = group_by_step(measure * jnp.where(advantages > 0, advantages, 0.0), paths, shape)
    loss = group_by_step(measure * jnp.where(advantages < 0, -advantages, 0.0), paths, shape)
    return Credit(gain, loss)


def mean_credit(mdp: TurnMDP, behavior: jax.Array, advantages: jax.Array) -> Credit:
    """Credit of an advantage [H, S, A] that is a function of turn, state and action.

    The measure is d_h(s) behavior_h(a | s), d the occupancy of the behaviour policy.
    """
    behavior = check_policy(mdp, behavior)
    weights = occupancy(mdp, behavior)[:, :, None] * behavior
    gain = weights * jnp.where(advantages > 0, advantages, 0.0)
    return Credit(gain, gain - weights * advantages)


def merge_contexts(found: Credit, contexts: jax.Array) -> Credit:
    """Give every state the credit of all states [H, S] that look like it at the same turn.

    A policy that sees only the context has one row for all of them, and that row is judged by the
    sum. Where a behaviour policy is equal within a context, so is a maximiser of the merged credit.
    """
    same = (contexts[:, :, None] == contexts[:, None, :]).astype(found.gain.dtype)
    return Credit(*(jnp.einsum("hst,hta->hsa", same, part) for part in found))


def expected_surrogate(
    policy: jax.Array, behavior: jax.Array, found: Credit, clip_low: float, clip_high: float
) -> jax.Array:
    """Expectation of the clipped surrogate under the behaviour policy, a scalar to maximise.

        sum_{h,s,a} E[min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)],  r = policy / behavior

    Ratios of actions that the behaviour never chooses do not enter.

    Args:
      policy: [H, S, A] action probabilities; gradients flow into them.
      behavior: [H, S, A] action probabilities that the credit was measured under.
      found: credit.
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.

    Returns:
      scalar, in units of reward.
    """
    possible = behavior > 0
    ratios = jnp.where(possible, policy, 1.0) / jnp.where(possible, behavior, 1.0)
    up = core.clipped_surrogate(ratios, jnp.ones_like(ratios), clip_low, clip_high)
    down = core.clipped_surrogate(ratios, -jnp.ones_like(ratios), clip_low, clip_high)
    return core.weighted_sum(up, found.gain) + core.weighted_sum(down, found.loss)


def maximise_surrogate(
    behavior: jax.Array, found: Credit, clip_low: float, clip_high: float
) -> jax.Array:
    """The policy [H, S, A] that maximises `expected_surrogate`, over all policies.

    In each state the surrogate is a concave piecewise linear function of the probabilities. With
    G = gain / behavior and L = loss / behavior, moving probability to an action raises it by

        G                  while r < 1 - clip_low,
        G - L              up to 1 + clip_high,
        -L                 beyond,

    so probability is handed out from the steepest piece downward. What is left over is split among
    pieces of equal slope such that the result is the maximiser with the smallest KL divergence to
    the behaviour (r = a constant c there, cut to each piece). States without credit keep their
    row; so do actions with probability 0. Monte-Carlo credit is maximised the same way.

    Args:
      behavior: [H, S, A] action probabilities.
      found: credit, measured under the behaviour.
      clip_low: distance of the lower bound from 1, in 0..1.
      clip_high: distance of the upper bound from 1, at least 0; `jnp.inf` together with
        clip_low=1 gives the greedy policy.

    Returns:
      [H, S, A] action probabilities.

    Raises:
      ValueError: a clip distance out of its range, where it is concrete.
    """
    _check_clip(clip_low, clip_high)
    possible = behavior > 0
    scale = jnp.where(possible, behavior, 1.0)
    gain, loss = (jnp.where(possible, part, 0.0) / scale for part in found)
    slopes = jnp.stack([gain, gain - loss, -loss])
    below = (1.0 - clip_low) * behavior
    middle = jnp.where(possible, (clip_low + clip_high) * scale, 0.0)
    # No piece needs more than all probability, and capping removes infinite lengths.
    lengths = [below, jnp.where(middle < 1.0, middle, 1.0), possible.astype(behavior.dtype)]
    lengths = jnp.stack(lengths)
    return _hand_out(slopes, lengths, behavior, scale)


def _check_clip(clip_low, clip_high):
    """A lower bound below 0 or an upper one below 1 would hand out negative probabilities."""
    for name, value, high in (("clip_low", clip_low, 1.0), ("clip_high", clip_high, jnp.inf)):
        if is_concrete(value) and not 0.0 <= value <= high:
            raise ValueError(f"{name} is {value}: choose a distance from 1 in 0..{high}")


def _hand_out(slopes, lengths, behavior, scale):
    """Fill pieces [3, H, S, A] from the steepest downward until each state has probability 1."""
    tolerance = _TIE * jnp.abs(slopes).max((0, 3), keepdims=True)

    def filled(threshold, strictly):
        bound = threshold + tolerance if strictly else threshold - tolerance
        return jnp.where(slopes > bound if strictly else slopes >= bound, lengths, 0.0).sum(0)

    candidates = slopes.reshape(-1, 1, *slopes.shape[1:3], slopes.shape[3])
    candidates = jnp.moveaxis(candidates, -1, 1).reshape(-1, *slopes.shape[1:3])
    enough = jax.vmap(lambda t: filled(t[None, :, :, None], False).sum(-1) >= 1.0 - 1e-15)
    level = jnp.where(enough(candidates), candidates, -jnp.inf).max(0)[None, :, :, None]
    least = filled(level, True) / scale
    most = filled(level, False)
    most = jnp.where(most > 1.0, 1.0, most) / scale
    ratios = _common_ratio(least, most, behavior)
    policy = jnp.where(behavior > 0, ratios * behavior, 0.0)
    return policy / policy.sum(-1, keepdims=True)


def _common_ratio(least, most, behavior):
    """Ratios r = c cut to [least, most], with c such that the probabilities sum to 1."""

    def cut(c):
        return jnp.where(c < least, least, jnp.where(c > most, most, c))

    breaks = jnp.sort(jnp.concatenate([least, most], axis=-1), axis=-1)
    totals = jax.vmap(lambda c: (cut(c[..., None]) * behavior).sum(-1), -1, -1)(breaks)
    interpolate = jax.vmap(jax.vmap(lambda x, y: jnp.interp(1.0, x, y)))
    return cut(interpolate(totals, breaks)[..., None])
