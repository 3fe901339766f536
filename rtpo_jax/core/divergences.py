"""Sample estimates of the divergence to another policy, and the entropy of next-token choices."""

from typing import Literal

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core._masking import keep, with_finite_gradient

_K3_LIMIT = 20.0  # nats; exp(20) = 4.9e8 still leaves float32 room to add up a batch


def kl_estimate(
    log_probs: jax.Array,
    reference_log_probs: jax.Array,
    kind: Literal["k1", "k2", "k3"],
) -> jax.Array:
    """Estimate of KL(pi || pi_reference) from the chosen tokens (Schulman 2020).

    With l = log pi - log pi_reference of a token sampled from pi:
      k1 = l, unbiased; k2 = l^2 / 2; k3 = exp(-l) + l - 1, unbiased and never negative.

    Used as a loss, the three differ in expectation from the KL's own gradient: k1 gives 0, k2 the
    true gradient and k3 that of another divergence, KL(pi_reference || pi).

    Args:
      log_probs: any shape, under the policy, in nats.
      reference_log_probs: same shape, under the reference policy, in nats.
      kind: "k1", "k2" or "k3".

    Returns:
      that shape, in nats. Deviation: k3 takes -l as at most 20, beyond which it is constant with
      zero gradient, so that both stay finite. Where an input is not finite the gradient is 0.

    Raises:
      ValueError: wrong dtype kind, unequal shapes or unknown kind.

    >>> kl_estimate([-1.0], [-3.0], "k2").tolist()
    [2.0]
    """
    log_probs, reference_log_probs = _checks.floats(
        log_probs=log_probs, reference_log_probs=reference_log_probs
    )
    _checks.same_shape(log_probs=log_probs, reference_log_probs=reference_log_probs)
    if kind not in _ESTIMATORS:
        raise ValueError(f"kind={kind!r}: use one of {', '.join(map(repr, _ESTIMATORS))}")
    gaps = reference_log_probs - log_probs
    return with_finite_gradient(_ESTIMATORS[kind], gaps)


def _k3(gaps: jax.Array) -> jax.Array:
    gaps = jnp.minimum(gaps, _K3_LIMIT)
    return jnp.expm1(gaps) - gaps


# By the gap -l, which is what k3 exponentiates.
_ESTIMATORS = {"k1": lambda gaps: -gaps, "k2": lambda gaps: gaps**2 / 2, "k3": _k3}


def entropy(logits: jax.Array) -> jax.Array:
    """Entropy of the softmax over the last axis, -sum_v p_v log p_v.

    Args:
      logits: [..., V]; -inf marks an impossible choice and contributes 0.

    Returns:
      [...] in nats. A NaN logit makes its own entropy NaN, with zero gradient.

    Raises:
      ValueError: wrong dtype kind or no axis.

    >>> jnp.exp(entropy([[1.0, 1.0, -jnp.inf]])).round(3).tolist()
    [2.0]
    """
    (logits,) = _checks.floats(logits=logits)
    if logits.ndim == 0:
        raise ValueError("logits has shape (); pass an array whose last axis is the vocabulary")
    broken = jnp.isnan(logits).any(axis=-1)
    logits = keep(~broken[..., None], logits)
    possible = logits != -jnp.inf
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # Double selection: p log p and its derivative are both NaN at p = 0.
    log_probs = keep(possible, log_probs)
    total = -(keep(possible, jnp.exp(log_probs)) * log_probs).sum(axis=-1)
    return jnp.where(broken, jnp.nan, total)


def keep_top_entropy(entropies: jax.Array, action_mask: jax.Array, fraction: float) -> jax.Array:
    """Mask of the tokens with the highest entropy among the chosen ones of the whole batch.

    Keeps ceil(fraction * number of chosen tokens) of them; of equal entropies the earlier in
    row-major order comes first. Entropies elsewhere play no part.

    Args:
      entropies: any shape.
      action_mask: same shape, bool, True = chosen by the policy.
      fraction: share of the chosen tokens to keep, in [0, 1].

    Returns:
      that shape, bool; a subset of `action_mask`. A NaN entropy of a chosen token ranks first.

    Raises:
      ValueError: wrong dtype kind, unequal shapes or a fraction outside [0, 1].

    >>> keep_top_entropy([2.0, 0.5, 5.0], [True, True, False], 0.5).tolist()
    [True, False, False]
    """
    (entropies,) = _checks.floats(entropies=entropies)
    (action_mask,) = _checks.masks(action_mask=action_mask)
    _checks.same_shape(entropies=entropies, action_mask=action_mask)
    num_chosen = action_mask.sum().astype(jnp.float32)
    fraction = _checks.scalar(num_chosen, 0.0, 1.0, fraction=fraction)
    ranked = jnp.where(action_mask, entropies, -jnp.inf).ravel()
    order = jnp.argsort(ranked, descending=True, stable=True)
    ranks = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    # In float32 0.15 of 100 tokens comes out a hair above 15: without the slack ceil would keep a
    # sixteenth.
    slack = 1 - 2 * float(jnp.finfo(jnp.float32).eps)
    kept = jnp.ceil(fraction * num_chosen * slack)
    return action_mask & (ranks < kept).reshape(action_mask.shape)
