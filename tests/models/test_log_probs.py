"""Log-probabilities of chosen tokens: hand values, chunks, memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.models import TransformerConfig, hidden_states, init, logits, token_log_probs

CONFIG = TransformerConfig.tiny(29)
TOKENS = np.random.default_rng(0).integers(0, 29, (3, 10))
POSITIONS = np.array([[1, 2, 9, 0], [3, 5, 6, 7], [4, 0, 0, 0]])


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda x: x * 2.0, init(CONFIG, jax.random.key(0)))


def test_temperature_by_hand():
    config = TransformerConfig.tiny(2)
    params = init(config, jax.random.key(0))
    tokens = jnp.array([[1, 0]])
    hidden = jax.jit(hidden_states, static_argnums=0)(config, params, tokens)[0, 0]
    # The head that makes the first position's logits exactly (2, 0).
    head = jnp.stack([2 * hidden / jnp.sum(hidden**2), jnp.zeros_like(hidden)])
    params = {**params, "ends": {**params["ends"], "head": head}}
    positions = jnp.array([[1]])
    # T = 1/2: logits (4, 0), log p_0 = -log(1 + e^-4) = -0.01815.
    # T = 1: logits (2, 0), log p_0 = -log(1 + e^-2) = -0.12693.
    # Entropy = -p_0 log p_0 - p_1 log p_1 = 0.98201 * 0.01815 + 0.01799 * 4.01815 = 0.09011.
    score = jax.jit(token_log_probs, static_argnums=0)
    log_probs, entropies = score(config, params, tokens, positions, temperature=0.5)
    np.testing.assert_allclose(log_probs, [[-0.01815]], atol=1e-5)
    np.testing.assert_allclose(entropies, [[0.09011]], atol=2e-5)
    log_probs, _ = score(config, params, tokens, positions, temperature=1.0)
    np.testing.assert_allclose(log_probs, [[-0.12693]], atol=1e-5)


def test_against_numpy_log_softmax(params):
    temperature = 0.8

    @jax.jit
    def both(p):
        z = logits(CONFIG, p, hidden_states(CONFIG, p, TOKENS))
        return z, token_log_probs(CONFIG, p, TOKENS, POSITIONS, temperature=temperature)

    z, (found, entropies) = both(params)
    z = np.asarray(z, np.float64) / temperature
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    for n, t in zip(*np.nonzero(POSITIONS), strict=True):
        before = p[n, POSITIONS[n, t] - 1]
        np.testing.assert_allclose(
            found[n, t], np.log(before[TOKENS[n, POSITIONS[n, t]]]), atol=1e-5
        )
        np.testing.assert_allclose(entropies[n, t], -np.sum(before * np.log(before)), atol=1e-5)
    assert np.isfinite(found).all() and np.isfinite(entropies).all()


def test_chunks_change_neither_values_nor_gradients(params):
    weights = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)

    def loss(p, chunk):
        pair = token_log_probs(CONFIG, p, TOKENS, POSITIONS, temperature=0.9, chunk=chunk)
        return jnp.sum(weights[0] * pair[0] + weights[1] * pair[1]), pair

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    whole = jax.tree.leaves(run(params, None))
    assert all(np.isfinite(leaf).all() for leaf in whole)
    for chunk in (5, 100):  # 12 tokens: two chunks and a part, or less than one
        for a, b in zip(whole, jax.tree.leaves(run(params, chunk)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def _temporary_bytes(config, num_tokens, chunk) -> int:
    shapes = jax.eval_shape(lambda: init(config, jax.random.key(0)))
    # Short rows, so that attention takes little.
    row = jax.ShapeDtypeStruct((num_tokens // 16, 17), jnp.int32)
    chosen = jax.ShapeDtypeStruct((num_tokens // 16, 16), jnp.int32)

    def loss(p, tokens, positions):
        pair = token_log_probs(config, p, tokens, positions, chunk=chunk)
        return jnp.sum(pair[0]) + jnp.sum(pair[1])

    compiled = jax.jit(jax.value_and_grad(loss)).lower(shapes, row, chosen).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_chunked_memory_stays_below_one_logits_array():
    # Forward and backward over 512 tokens and 20,000 words: 41 MB of float32 logits if whole.
    config = TransformerConfig.tiny(20_000, num_layers=1, hidden_size=16)
    whole = 512 * 20_000 * 4
    assert _temporary_bytes(config, 512, chunk=None) > whole
    assert _temporary_bytes(config, 512, chunk=32) < whole / 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature is 0.0; use a positive"),
        ({"chunk": 0}, "chunk is 0; use a positive"),
        ({"action_positions": POSITIONS[:2]}, "action_positions has 2 rows, tokens 3"),
        ({"action_positions": POSITIONS[0]}, "must be"),
    ],
)
def test_bad_input_is_refused(params, options, words):
    arguments = {"tokens": TOKENS, "action_positions": POSITIONS, **options}
    with pytest.raises(ValueError, match=words):
        token_log_probs(CONFIG, params, **arguments)
