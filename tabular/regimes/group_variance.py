"""Variances of group gradients from their moments: one group, one trunk, and a critic to compare.

The formulas are derived in `tabular.regimes.group_gradient`.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from tabular.mdp import check_integer
from tabular.regimes.group_gradient import GroupMoments

Reach = Literal["known", "counted"]


def sampling_variance(moments: GroupMoments, size: int) -> jax.Array:
    """Var(C_l | S_k = s) of a group of n = `size` chains, [K, S, L].

        [ E (R-V)^2|z_l|^2 - (n-2)/(n-1) |c_l|^2 + Var(R) E|z_l|^2/(n-1) ] / n

    Raises ValueError for a group of fewer than 2: it has nothing to compare with.
    """
    check_integer("size", size, 2)
    return _sampling_variance(moments, float(size))


def boundary_variance(moments: GroupMoments, size: int, *, reach: Reach = "known") -> jax.Array:
    """Variance of the estimate of g_l from one trunk with a group at boundary k, [K, L].

    A trunk whose episode ends before turn k gives no group; rho_k is the probability that it
    gives one.

        "counted":  1{k reached} C_l averaged over trunks
                    sum_s d_k(s) E|C_l|^2 - |g_l|^2
        "known":    rho_k times the mean of C_l over the groups formed, their number at its mean
                    sum_s d_k(s) E|C_l|^2 - |g_l|^2 / rho_k

    The second is, up to the known factor, what an update that averages over the groups it has
    would use. Without early ends they agree.

    Args:
      moments: of the policy.
      size: chains in the group, 2 or more.
      reach: see above.

    Returns:
      [K, L], infinite for l < k: such a group says nothing about earlier turns.

    Raises:
      ValueError: a group of fewer than 2, unknown `reach`.
    """
    check_integer("size", size, 2)
    if reach not in Reach.__args__:
        raise ValueError(f"reach={reach!r}: use one of {Reach.__args__}")
    return _boundary_variance(moments, float(size), reach == "known")


@jax.jit
def shared_trunk_covariance(moments: GroupMoments) -> jax.Array:
    """Covariance [K, L] of the estimates of g_l at boundaries k < k' <= l of one trunk.

        Cov(C_l at k, C_l at k') = Var c_l(S_k) = sum_s d_k(s) |c_l(s)|^2 - |g_l|^2

    Groups that exclude the trunk are independent given the states they start from, and c_l is a
    martingale along the trunk, E[c_l(S_k') | S_k] = c_l(S_k) (0 once the episode has ended). The
    same holds between a flat group that the trunk belongs to and a group forked from it, per
    trajectory. With trunks "counted" (`boundary_variance`). Derived here.
    """
    spread = jnp.einsum("ks,ksl->kl", moments.occupancy, moments.covariances)
    return spread - jnp.where(_covered(moments), moments.signals[None, :], 0.0)


@jax.jit
def value_baseline_variance(moments: GroupMoments) -> jax.Array:
    """Variance [L] of one episode's gradient with the exact value as baseline.

        Var (G_l - V_l(S_l)) z_l = sum_s d_l(s) E[(G_l - V_l)^2 |z_l|^2 | S_l = s] - |g_l|^2

    with G_l the return from turn l on. The best that a critic which sees the state can do, at no
    generation cost; for comparison with groups.
    """
    own = jnp.diagonal(moments.products, axis1=0, axis2=2).T
    return (moments.occupancy * own).sum(1) - moments.signals


@jax.jit
def within_share(moments: GroupMoments) -> jax.Array:
    """w_k [K]: the share of the return's variance that is still open at boundary k.

        w_k = E Var(R | S_k) / E Var(R | S_0) = (sigma_A^2 + sigma_Q^2) / Var R within a task

    (RTPO, arXiv 2608.18682, Eqs. 3 and 11); w_0 = 1. Episodes that ended before turn k add 0.
    """
    own = jnp.diagonal(moments.returns, axis1=0, axis2=2).T
    inside = (moments.occupancy * own).sum(1)
    return inside / inside[0]


@jax.jit
def _sampling_variance(moments, size):
    compared = moments.returns * moments.scores / (size - 1.0)
    shrunk = (size - 2.0) / (size - 1.0) * moments.covariances
    return (moments.products - shrunk + compared) / size


@partial(jax.jit, static_argnums=2)
def _boundary_variance(moments, size, known):
    squares = _sampling_variance(moments, size) + moments.covariances
    total = jnp.einsum("ks,ksl->kl", moments.occupancy, squares)
    reached = moments.occupancy.sum(1, keepdims=True) if known else 1.0
    return jnp.where(_covered(moments), total - moments.signals[None, :] / reached, jnp.inf)


def _covered(moments):
    """[K, L] True for l >= k."""
    return jnp.tri(len(moments.signals)).T > 0
