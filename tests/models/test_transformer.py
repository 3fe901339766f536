"""The training forward: what may influence what, what grows with depth, and exact gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.models import TransformerConfig, hidden_states, init, logits, token_log_probs

CONFIG = TransformerConfig.tiny(29)


@pytest.fixture(scope="module")
def params():
    # Larger than initial weights: attention far from uniform, logits of order one.
    return jax.tree.map(lambda x: x * 2.0, init(CONFIG, jax.random.key(0)))


def _tokens(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 29, shape))


@jax.jit
def _logits(params, tokens):
    return logits(CONFIG, params, hidden_states(CONFIG, params, tokens))


def test_parameters_are_float32_and_stacked(params):
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params["layers"])} == {CONFIG.num_layers}


def test_layers_start_different():
    kernel = init(CONFIG, jax.random.key(1))["layers"]["query"]["kernel"]
    assert np.abs(kernel[0] - kernel[1]).max() > 0.1


def test_right_padding_changes_nothing(params):
    tokens = _tokens((2, 9))
    alone = _logits(params, tokens)
    for padding in (0, 5):
        padded = jnp.concatenate([tokens, jnp.full((2, 7), padding)], axis=1)
        np.testing.assert_allclose(_logits(params, padded)[:, :9], alone, atol=1e-5)


def test_other_rows_change_nothing(params):
    tokens = _tokens((2, 16))
    together = _logits(params, tokens)
    for row in range(2):
        alone = _logits(params, tokens[row : row + 1])[0]
        np.testing.assert_allclose(together[row], alone, atol=1e-5)


def test_a_token_changes_the_future_and_not_the_past(params):
    tokens = _tokens((1, 16))
    changed = tokens.at[0, 4].set((tokens[0, 4] + 1) % 29)
    gap = np.abs(_logits(params, tokens) - _logits(params, changed)).max(axis=-1)[0]
    assert gap[:4].max() < 1e-6
    assert gap[4:].min() > 1e-4


def test_word_order_matters(params):
    # Without positions, the last token would see an unordered bag of the same tokens.
    tokens = jnp.arange(16)[None, :]
    swapped = tokens[:, jnp.array([1, 0, *range(2, 16)])]
    assert np.abs(_logits(params, tokens)[0, -1] - _logits(params, swapped)[0, -1]).max() > 1e-3


def _num_equations(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        total += 1
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += _num_equations(inner)
    return total


@pytest.mark.parametrize("remat", [False, True])
def test_traced_program_does_not_grow_with_depth(remat):
    def size(num_layers):
        config = TransformerConfig.tiny(29, num_layers=num_layers)
        shapes = jax.eval_shape(lambda: init(config, jax.random.key(0)))

        def loss(p):
            return jnp.sum(hidden_states(config, p, _tokens((2, 8)), remat=remat))

        return _num_equations(jax.make_jaxpr(jax.grad(loss))(shapes).jaxpr)

    assert size(2) == size(12) > 100  # above 100: the scanned body is counted


def test_remat_keeps_values_and_gradients(params):
    tokens = _tokens((2, 8))

    def loss(p, remat):
        return jnp.sum(hidden_states(CONFIG, p, tokens, remat=remat) ** 2)

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    plain, recomputed = run(params, False), run(params, True)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(recomputed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_gradient_by_finite_differences_in_float64():
    with jax.enable_x64(True):
        config = TransformerConfig(13, 2, 8, 4, 2, 4, 12, compute_dtype="float64")
        fresh = init(config, jax.random.key(0))
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x: jnp.asarray(3.0 * x + 0.1, jnp.float64), fresh)
        direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), params)
        tokens, positions = rng.integers(0, 13, (2, 6)), np.array([[1, 3, 5], [2, 4, 0]])
        weights = rng.normal(size=(2, 2, 3)) * (positions > 0)[None]

        @jax.jit
        def loss(p):
            pair = token_log_probs(
                config, p, tokens, positions, temperature=0.7, chunk=4, remat=True
            )
            return jnp.sum(weights[0] * pair[0]) + jnp.sum(weights[1] * pair[1])

        def moved(step):
            return loss(jax.tree.map(lambda x, d: x + step * d, params, direction))

        slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
        assert slope.dtype == jnp.float64
        products = jax.tree.map(
            lambda g, d: jnp.sum(g * d), jax.jit(jax.grad(loss))(params), direction
        )
        exact = sum(jax.tree.leaves(products))
        assert abs(exact) > 1e-2
        np.testing.assert_allclose(slope, exact, rtol=1e-6)


def test_bfloat16_compute_gives_float32_numbers_near_the_float32_ones(params):
    config = TransformerConfig.tiny(29, compute_dtype="bfloat16")
    tokens, positions = _tokens((3, 12)), jnp.tile(jnp.arange(1, 12)[None], (3, 1))

    def loss(p, config):
        pair = token_log_probs(config, p, tokens, positions)
        return jnp.sum(pair[0]), pair

    run = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    gradient, (coarse, coarse_entropy) = run(params, config)
    _, (exact, _) = run(params, CONFIG)
    hidden = jax.eval_shape(lambda p: hidden_states(config, p, tokens), params)
    assert hidden.dtype == jnp.bfloat16
    assert coarse.dtype == coarse_entropy.dtype == jnp.float32
    gap = np.abs(coarse - exact)
    # bfloat16 has 8 bits, 0.4 % of activations of order one; equality would mean it was not used.
    assert 1e-5 < gap.mean() < 0.03
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == jnp.float32 and np.isfinite(leaf).all()
