"""The tabular world and the shared core: exact weights turn the core's surrogate into theory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from rtpo_jax import core


@pytest.mark.parametrize("seed", range(3))
def test_surrogate_at_ratio_one_has_the_policy_gradient(seed, draw):
    mdp, _ = draw(seed, 4, 5, 3)
    logits = jnp.asarray(np.random.default_rng(50 + seed).normal(size=mdp.rewards.shape))
    behaviour = jax.nn.softmax(logits)
    advantages = tabular.advantages(mdp, behaviour)
    weights = tabular.occupancy(mdp, behaviour)[:, :, None] * behaviour

    def surrogate(logits):
        ratios = jax.nn.softmax(logits) / behaviour
        return core.weighted_sum(core.clipped_surrogate(ratios, advantages, 0.2, 0.2), weights)

    found = jax.jit(jax.grad(surrogate))(logits)
    assert found.dtype == jnp.float64
    expected = tabular.policy_gradient(mdp, behaviour)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13, err_msg=f"{seed=}")
    assert abs(expected).max() > 1e-3, f"{seed=}"


@pytest.mark.parametrize("seed", range(3))
def test_unclipped_surrogate_is_the_gain_when_only_the_last_turn_changes(seed, draw):
    # With the state distribution unchanged up to the turn that changes, and nothing after it, the
    # performance difference identity has behaviour occupancy in it: the surrogate is exact.
    mdp, behaviour = draw(seed, 4, 5, 3)
    _, other = draw(100 + seed, 4, 5, 3)
    policy = np.concatenate([behaviour[:-1], other[-1:]])
    weights = tabular.occupancy(mdp, behaviour)[:, :, None] * behaviour
    advantages = tabular.advantages(mdp, behaviour)
    ratios = jnp.asarray(policy / behaviour)
    wide = core.clipped_surrogate(ratios, advantages, 1.0, 1e6)
    gain = tabular.performance(mdp, policy) - tabular.performance(mdp, behaviour)
    assert abs(core.weighted_sum(wide, weights) - gain) < 1e-12, f"{seed=}"
    assert abs(gain) > 1e-4, f"{seed=}"
