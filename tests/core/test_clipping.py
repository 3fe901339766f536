"""The clipping bias and the scales that answer to it, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

RATIOS = np.array([1.5, 0.9, 0.7, 0.7, 1.3], np.float32)
ADVANTAGES = np.array([1.0, 1.0, -1.0, 2.0, -0.5], np.float32)


def test_gradients_of_surrogate_and_bias_add_up_to_the_unclipped_one():
    def total(name):
        function = getattr(core, name)
        return lambda ratios: function(ratios, ADVANTAGES, 0.2, 0.2).sum()

    bias = jax.grad(total("clipping_bias"))(jnp.asarray(RATIOS))
    np.testing.assert_array_equal(bias, [1.0, 0.0, -1.0, 0.0, 0.0])  # the first and the third
    kept = jax.grad(total("clipped_surrogate"))(jnp.asarray(RATIOS))
    np.testing.assert_array_equal(kept + bias, ADVANTAGES)


def test_junk_that_is_not_clipped_leaks_nothing():
    ratios, advantages = np.array([np.nan, 2.0]), np.array([1.0, 1.0])
    found = core.clipping_bias(ratios, advantages, 0.2, 0.2)
    np.testing.assert_array_equal(found, [0.0, 2.0])


@pytest.mark.parametrize(
    ("kind", "large", "small", "none"),
    [
        # |g| = 3 with |C| = 4, |g| = 3 with |C| = .5, |g| = .5 with |C| = 0
        ("guarded", 1 / 4, 1.0, 1.0),
        ("literal", 1 / 4, 2.0, 1.0),
        ("damped", 1 / 5, 1 / 1.5, 1.0),
        ("capped", 1 / (4 + 1e-8), 1 / 3, 2.0),
        ("relative", 3 / 7, 3 / 3.5, 1.0),
    ],
)
def test_scales_by_hand(kind, large, small, none):
    scale = jax.jit(functools.partial(core.clipping_triggered_scale, kind=kind))
    assert scale(3.0, 4.0) == pytest.approx(large, rel=1e-6)
    assert scale(3.0, 0.5) == pytest.approx(small, rel=1e-6)
    assert scale(0.5, 0.0) == pytest.approx(none, rel=1e-6)
    assert np.isfinite(scale(0.0, 0.0))


def test_capped_scale_is_division_and_then_clipping_to_norm_one():
    for gradient, bias in ((3.0, 0.5), (0.2, 0.5), (0.2, 4.0)):
        divided = gradient / (bias + 1e-8)
        expected = divided / max(1.0, divided)
        found = gradient * core.clipping_triggered_scale(gradient, bias, "capped")
        assert found == pytest.approx(expected, rel=1e-6)


def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="kind='n1'"):
        core.clipping_triggered_scale(1.0, 1.0, "n1")
