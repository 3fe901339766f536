"""Decoding from the cache gives the numbers of the training forward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.models import (
    TransformerConfig,
    decode_step,
    expand_cache,
    init,
    layer_parameters,
    prefill,
    token_log_probs,
    visible_slots,
)

CONFIG = TransformerConfig.tiny(29)
LENGTHS = np.array([3, 9, 1])
CONTEXT_INDEX = np.array([0, 0, 1, 2, 2, 1, 0])
NUM_NEW = 64


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda x: x * 2.0, init(CONFIG, jax.random.key(0)))


@pytest.fixture(scope="module")
def contexts():
    return np.random.default_rng(0).integers(0, 29, (3, 9))


@pytest.fixture(scope="module")
def chosen():
    return np.random.default_rng(1).integers(0, 29, (len(CONTEXT_INDEX), NUM_NEW))


def _see_padding(lengths, num_context_slots, num_slots, slot):
    return jnp.broadcast_to(jnp.arange(num_slots)[None, :] <= slot, (len(lengths), num_slots))


@functools.partial(jax.jit, static_argnums=0)
def _start(config, params, tokens, context_index):
    last, caches = prefill(config, params, tokens, jnp.asarray(LENGTHS))
    caches = expand_cache(caches, context_index, NUM_NEW)
    return last[context_index], caches, layer_parameters(config, params)


_step = jax.jit(decode_step, static_argnums=0, donate_argnums=3)


def _cached(config, params, contexts, context_index, chosen, width, see=visible_slots):
    """Log-probabilities [N, NUM_NEW] of ``chosen``, decoded with contexts padded to ``width``."""
    padded = np.full((3, width), 7)
    for row, length in enumerate(LENGTHS):
        padded[row, :length] = contexts[row, :length]
    scores, caches, layers = _start(config, params, padded, jnp.asarray(context_index))
    lengths = jnp.asarray(LENGTHS[context_index])
    log_probs = []
    for generated in range(NUM_NEW):
        tokens = jnp.asarray(chosen[:, generated])
        log_probs.append(jax.nn.log_softmax(scores)[jnp.arange(len(tokens)), tokens])
        slot = width + generated
        mask = see(lengths, width, width + NUM_NEW, slot)
        scores, caches = _step(
            config, params, layers, caches, tokens, lengths + generated, slot, mask
        )
    return np.stack(log_probs, axis=1)


_log_probs = jax.jit(token_log_probs, static_argnums=0)


def _whole(config, params, contexts, context_index, chosen):
    """The same numbers from the training forward on right-padded rows."""
    tokens = np.zeros((len(context_index), 9 + NUM_NEW), int)
    positions = np.zeros(chosen.shape, int)
    for row, context in enumerate(context_index):
        length = LENGTHS[context]
        tokens[row, :length] = contexts[context, :length]
        tokens[row, length : length + NUM_NEW] = chosen[row]
        positions[row] = np.arange(length, length + NUM_NEW)
    return np.asarray(_log_probs(config, params, tokens, positions)[0])


def test_cached_equals_whole_and_padding_or_batch_do_not_matter(params, contexts, chosen):
    whole = _whole(CONFIG, params, contexts, CONTEXT_INDEX, chosen)
    assert whole.std() > 0.3  # the model discriminates, so a wrong cache would show
    tight = _cached(CONFIG, params, contexts, CONTEXT_INDEX, chosen, width=9)
    many = np.tile(CONTEXT_INDEX, 4)
    loose = _cached(CONFIG, params, contexts, many, np.tile(chosen, (4, 1)), width=40)
    for cached in (tight, loose[:7], loose[-7:]):
        gap = np.abs(cached - whole)
        assert gap.max() < 1e-4
        assert gap[:, -8:].max() < 2e-5  # does not build up along the row


def test_padding_made_visible_is_caught(params, contexts, chosen):
    whole = _whole(CONFIG, params, contexts, CONTEXT_INDEX, chosen)
    many = np.tile(CONTEXT_INDEX, 4)
    wrong = _cached(
        CONFIG, params, contexts, many, np.tile(chosen, (4, 1)), width=40, see=_see_padding
    )
    assert np.abs(wrong[:7] - whole)[:, 1:].max() > 1e-2


def test_bfloat16_cache(params, contexts, chosen):
    config = TransformerConfig.tiny(29, compute_dtype="bfloat16")
    whole = _whole(config, params, contexts, CONTEXT_INDEX, chosen)
    cached = _cached(config, params, contexts, CONTEXT_INDEX, chosen, width=12)
    assert cached.dtype == np.float32
    assert np.isfinite(cached).all()
    # Rounding differs between a row of 73 and a row of 1; the mean gap is a few of bfloat16's 2^-8.
    assert np.abs(cached - whole).mean() < 0.02


def test_llama_with_tied_embeddings(contexts, chosen):
    config = TransformerConfig.tiny(29, tie_embeddings=True, qk_norm=False)
    params = init(config, jax.random.key(3))
    whole = _whole(config, params, contexts, CONTEXT_INDEX, chosen)
    cached = _cached(config, params, contexts, CONTEXT_INDEX, chosen, width=12)
    assert np.abs(cached - whole).max() < 1e-4


def test_visible_slots_by_hand():
    # Rows of length 2 and 3 in four context slots, three new slots, writing the second (slot 5).
    mask = visible_slots(jnp.array([2, 3]), 4, 7, 5)
    assert mask.astype(int).tolist() == [[1, 1, 0, 0, 1, 1, 0], [1, 1, 1, 0, 1, 1, 0]]


_prefill = jax.jit(prefill, static_argnums=0)


def test_changed_weights_change_the_next_prefill(params, contexts):
    before, _ = _prefill(CONFIG, params, contexts, LENGTHS)
    after, _ = _prefill(CONFIG, jax.tree.map(lambda x: x * 1.1, params), contexts, LENGTHS)
    again, _ = _prefill(CONFIG, params, contexts, LENGTHS)
    assert np.abs(before - after).max() > 1e-3
    np.testing.assert_array_equal(before, again)


def test_impossible_lengths_and_contexts_are_loud(params, contexts):
    last, caches = _prefill(CONFIG, params, contexts, np.array([0, 9, 10]))
    assert np.isnan(last).all(axis=-1).tolist() == [True, False, True]
    keys, _ = expand_cache(caches, jnp.array([2, 3]), 1)[0]
    assert np.isnan(keys[:, :, :9]).all(axis=(1, 2, 3)).tolist() == [False, True]
    with pytest.raises(ValueError, match="num_new is 0"):
        expand_cache(caches, jnp.array([0]), 0)


def test_decoding_updates_the_cache_in_place(params):
    # One step at 512 slots must not copy the cache: scratch memory stays below one layer's keys.
    config = TransformerConfig.tiny(29)
    shapes = jax.eval_shape(lambda: init(config, jax.random.key(0)))
    cache = jax.ShapeDtypeStruct((64, 2, 512, 16), jnp.float32)
    caches = ((cache, cache),) * 2
    ids = jax.ShapeDtypeStruct((64,), jnp.int32)
    slot = jax.ShapeDtypeStruct((), jnp.int32)
    mask = jax.ShapeDtypeStruct((64, 512), bool)
    layers = jax.eval_shape(lambda p: layer_parameters(config, p), shapes)
    step = jax.jit(functools.partial(decode_step, config), donate_argnums=2)
    compiled = step.lower(shapes, layers, caches, ids, ids, slot, mask).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 64 * 2 * 512 * 16 * 4
