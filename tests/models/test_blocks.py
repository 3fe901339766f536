"""Pieces of the block against numpy, hand values, and properties that any rotation must have."""

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax.models import TransformerConfig
from rtpo_jax.models.attention import (
    attend,
    attend_causal,
    inverse_frequencies,
    rotary_table,
    rotate,
)
from rtpo_jax.models.blocks import Block, Ends, RMSNorm, bind, draw


def test_inverse_frequencies_by_hand():
    # 1e6^(-2/128) = exp(-13.81551 / 64) = exp(-0.215867) = 0.80584; the last is 1e6^(-126/128).
    found = inverse_frequencies(128, 1e6)
    assert found.shape == (64,)
    np.testing.assert_allclose(found[:2], [1.0, 0.80584], atol=1e-5)
    np.testing.assert_allclose(found[63], 1e-6 / 0.80584, rtol=1e-4)


def test_rotation_turns_pairs_half_a_head_apart():
    # head_dim 4, theta 100: angles at position 3 are 3 and 3/10; the pairs are (1, 0) and (0, 2).
    table = rotary_table(jnp.array([[3]]), 4, 100.0, jnp.float32)
    turned = rotate(jnp.array([1.0, 0.0, 0.0, 2.0]).reshape(1, 1, 1, 4), table)
    expected = [np.cos(3), -2 * np.sin(0.3), np.sin(3), 2 * np.cos(0.3)]
    np.testing.assert_allclose(turned.reshape(-1), expected, atol=1e-6)


def test_rotated_scores_depend_on_distance_only():
    draws = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 16)).astype(np.float32)

    def score(query_position, key_position):
        tables = [
            rotary_table(jnp.array([[p]]), 16, 1e4, jnp.float32)
            for p in (query_position, key_position)
        ]
        return jnp.sum(rotate(draws[0], tables[0]) * rotate(draws[1], tables[1]))

    np.testing.assert_allclose(score(5, 2), score(105, 102), atol=1e-4)
    assert abs(score(5, 2) - score(5, 4)) > 1e-2


def test_rotary_angles_survive_bfloat16():
    # 257 is not a bfloat16 number: angles formed in bfloat16 would equal those of 256 or 258.
    cosine, _ = rotary_table(jnp.array([[256, 257, 258]]), 4, 1e4, jnp.bfloat16)
    np.testing.assert_allclose(cosine[0, :, 0], np.cos([256.0, 257.0, 258.0]), atol=1e-4)


def test_rms_norm_against_numpy():
    x = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)
    scale = np.linspace(0.5, 2.0, 8, dtype=np.float32)
    norm = RMSNorm(8, eps=0.1)
    norm.scale[...] = jnp.asarray(scale)
    expected = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 0.1) * scale
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-6)


def test_swiglu_against_numpy():
    config = TransformerConfig.tiny(11, qk_norm=False)
    parameters = jax.tree.map(np.asarray, draw(Block, config, jax.random.key(0)))
    x = np.random.default_rng(2).normal(size=(1, 2, 64)).astype(np.float32)
    # Attention that contributes nothing leaves x + down(silu(gate(n)) * up(n)), n = norm(x).
    got = bind(Block, config, parameters).finish(jnp.asarray(x), jnp.zeros((1, 4, 2, 16)))
    normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    gate, up = normed @ parameters["gate"]["kernel"], normed @ parameters["up"]["kernel"]
    expected = x + (gate / (1 + np.exp(-gate)) * up) @ parameters["down"]["kernel"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def _attend_by_loops(queries, keys, values, mask):
    num_rows, num_heads, length, head_dim = queries.shape
    shared = num_heads // keys.shape[1]
    out = np.zeros_like(queries)
    for n, q, i in np.ndindex(num_rows, num_heads, length):
        scores = keys[n, q // shared] @ queries[n, q, i] / np.sqrt(head_dim)
        weights = np.where(mask[n, i], np.exp(scores - scores.max()), 0.0)
        out[n, q, i] = weights @ values[n, q // shared] / weights.sum()
    return out


def test_grouped_attention_against_loops():
    rng = np.random.default_rng(3)
    queries = rng.normal(size=(2, 6, 3, 4)).astype(np.float32)
    keys, values = rng.normal(size=(2, 2, 2, 5, 4)).astype(np.float32)
    mask = rng.random((2, 3, 5)) < 0.5
    mask[:, :, 0] = True
    got = attend(queries, keys, values, jnp.asarray(mask))
    np.testing.assert_allclose(got, _attend_by_loops(queries, keys, values, mask), atol=1e-5)


def test_causal_attention_against_loops():
    rng = np.random.default_rng(4)
    queries = rng.normal(size=(1, 4, 5, 4)).astype(np.float32)
    keys, values = rng.normal(size=(2, 1, 2, 5, 4)).astype(np.float32)
    mask = np.tril(np.ones((1, 5, 5), bool))
    got = attend_causal(queries, keys, values)
    np.testing.assert_allclose(got, _attend_by_loops(queries, keys, values, mask), atol=1e-5)


def test_a_query_that_sees_nothing_is_finite_with_finite_gradient():
    rng = np.random.default_rng(5)
    queries = jnp.asarray(rng.normal(size=(1, 2, 2, 4)), jnp.float32)
    keys, values = jnp.asarray(rng.normal(size=(2, 1, 1, 3, 4)), jnp.float32)
    mask = jnp.array([[[False, False, False], [True, False, False]]])

    def total(q, k, v):
        return jnp.sum(attend(q, k, v, mask) ** 2)

    out = attend(queries, keys, values, mask)
    np.testing.assert_allclose(out[0, 0, 0], values[0, 0].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(out[0, 0, 1], values[0, 0, 0], atol=1e-6)
    for gradient in jax.grad(total, argnums=(0, 1, 2))(queries, keys, values):
        assert np.isfinite(gradient).all()


def test_ids_outside_the_vocabulary_are_loud():
    config = TransformerConfig.tiny(11)
    ends = bind(Ends, config, draw(Ends, config, jax.random.key(0)))
    finite = np.isfinite(ends.embed(jnp.array([[0, 10, 11, -1]]))).all(axis=-1)
    assert finite.tolist() == [[True, True, False, False]]


def test_initial_spread_of_matrices():
    # Normal with 1/sqrt(inputs); residual writers divided by sqrt(2 * 2 layers) = 2.
    parameters = draw(Block, TransformerConfig.tiny(11), jax.random.key(0))
    expected = {"query": 1 / 8, "gate": 1 / 8, "out": 1 / 16, "down": 192**-0.5 / 2}
    for name, std in expected.items():
        # Sample std of at least 4096 entries: relative error 1/sqrt(8192) = 1.1 %, five of them.
        np.testing.assert_allclose(np.std(parameters[name]["kernel"]), std, rtol=0.055)
