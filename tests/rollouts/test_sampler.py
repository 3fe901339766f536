"""The sampler against a plain, uncached forward pass and against theory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.models import TransformerConfig, hidden_states, init, logits
from rtpo_jax.rollouts import Sampler
from rtpo_jax.rollouts.sampler import _decode, _prefill, sample_token

VOCAB, END = 12, 1
CONFIG = TransformerConfig.tiny(VOCAB)


@pytest.fixture(scope="module")
def params():
    params = init(CONFIG, jax.random.key(3))
    # Larger heads: confident, distinct distributions instead of near-uniform ones.
    params["ends"]["head"] = params["ends"]["head"] * 40
    return params


def sampler(new=5, buckets=(8, 16), end=END, **options):
    return Sampler(CONFIG, end, 0, new, buckets, **options)


@jax.jit
def forward(params, tokens):
    """Log-probabilities at every position, by a full forward without cache."""
    return jax.nn.log_softmax(logits(CONFIG, params, hidden_states(CONFIG, params, tokens)))


def next_log_probs(params, tokens):
    """Log-probabilities after `tokens`; what stands behind them cannot matter."""
    padded = np.full((1, 16), 7, np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(forward(params, padded)[0, len(tokens) - 1])


CONTEXTS = [(2, 3, 4), (5, 6, 7, 8, 9, 10, 11), (2, 3, 4), (9,), (4, 4, 4, 4, 4, 4, 4, 4)]


def test_greedy_decoding_equals_the_uncached_forward(params):
    samples = sampler().sample(params, CONTEXTS, jax.random.key(0), temperature=0.0)
    for context, action in zip(CONTEXTS, samples.actions, strict=True):
        tokens = list(context)
        for token in action:
            assert token == int(np.argmax(next_log_probs(params, tokens)))
            tokens.append(token)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_recorded_log_probs_are_those_of_the_sampling_distribution(params, temperature):
    samples = sampler().sample(params, CONTEXTS, jax.random.key(1), temperature)
    for context, action, recorded in zip(CONTEXTS, samples.actions, samples.log_probs, strict=True):
        tokens = list(context)
        for token, log_prob in zip(action, recorded, strict=True):
            scaled = next_log_probs(params, tokens) / temperature
            expected = scaled[token] - np.logaddexp.reduce(scaled)
            assert abs(expected - log_prob) < 1e-4
            tokens.append(token)


def test_temperature_enters_the_recorded_log_prob():
    """Logits [2, 0] at T = 0.5: log sigmoid(4) = -0.0181, not log sigmoid(2) = -0.1269."""
    keys = jax.random.split(jax.random.key(0), 64)
    tokens, log_probs = sample_token(jnp.tile(jnp.array([[2.0, 0.0]]), (64, 1)), keys, 0.5)
    first = np.asarray(log_probs)[np.asarray(tokens) == 0]
    np.testing.assert_allclose(first, -0.018150, atol=1e-6)


def test_frequencies_follow_the_distribution():
    """Pearson statistic of 4000 draws over 4 outcomes: 3 degrees of freedom, 5 sigma-like bound."""
    target = np.array([0.5, 0.3, 0.15, 0.05])
    keys = jax.random.split(jax.random.key(5), 4000)
    tokens, _ = sample_token(jnp.tile(jnp.log(jnp.array([target])), (4000, 1)), keys, 1.0)
    counts = np.bincount(np.asarray(tokens), minlength=4)
    assert np.sum((counts - 4000 * target) ** 2 / (4000 * target)) < 25


def test_rows_with_one_context_are_sampled_independently(params):
    samples = sampler().sample(params, [(2, 3)] * 32, jax.random.key(0), temperature=3.0)
    assert len(set(samples.actions)) > 16


def test_a_row_does_not_depend_on_what_shares_its_batch(params):
    alone = sampler().sample(params, [CONTEXTS[1]], jax.random.key(2))
    together = sampler().sample(params, [CONTEXTS[1], *CONTEXTS], jax.random.key(2))
    assert alone.actions[0] == together.actions[0]
    np.testing.assert_allclose(alone.log_probs[0], together.log_probs[0], atol=1e-5)


def test_equal_contexts_are_prefilled_once(params):
    samples = sampler().sample(params, [(2, 3, 4)] * 8 + [(5, 6)], jax.random.key(0))
    assert samples.prefill_tokens == 5


def test_an_end_in_first_place_stops_the_row_and_is_part_of_the_action(params):
    always_end = jax.tree.map(lambda leaf: leaf, params)
    # An all-ones hidden state times a large row: the end id wins whatever the context.
    always_end["ends"] = {**params["ends"], "head": params["ends"]["head"].at[:].set(0.0)}
    samples = sampler(end=0).sample(always_end, [(2, 3)], jax.random.key(0), temperature=0.0)
    assert samples.actions == [(0,)]  # all logits equal: argmax is id 0
    np.testing.assert_allclose(samples.log_probs[0], [-np.log(VOCAB)], atol=1e-5)


def test_lengths_in_the_same_buckets_compile_once(params):
    _prefill.clear_cache()
    _decode.clear_cache()
    engine = sampler(buckets=(8, 16))
    for length in (2, 5, 8, 9, 13, 16):
        engine.sample(params, [tuple(range(2, 2 + length % 8 + 1)) * 2][:1], jax.random.key(0))
        engine.sample(params, [(3,) * length] * 3, jax.random.key(0))
    assert _prefill._cache_size() == 2
    assert _decode._cache_size() == 2


def test_batches_above_the_limit_are_cut_and_keep_their_order(params):
    contexts = [(2 + i % 9, 3) for i in range(40)]
    cut = sampler(most_rows=16).sample(params, contexts, jax.random.key(0), temperature=0.0)
    whole = sampler().sample(params, contexts, jax.random.key(0), temperature=0.0)
    assert cut.actions == whole.actions


def test_bad_input_is_refused_with_the_fix(params):
    with pytest.raises(ValueError, match="add a bucket of at least 17"):
        sampler().sample(params, [(2,) * 17], jax.random.key(0))
    with pytest.raises(ValueError, match="context length 0"):
        sampler().sample(params, [()], jax.random.key(0))
    with pytest.raises(ValueError, match="temperature=-1"):
        sampler().sample(params, [(2,)], jax.random.key(0), temperature=-1)


def test_new_parameters_take_effect_at_once(params):
    """No cache survives a weight update."""
    other = init(CONFIG, jax.random.key(99))
    other["ends"]["head"] = other["ends"]["head"] * 40
    key = jax.random.key(0)
    first = sampler().sample(params, CONTEXTS, key, temperature=0.0)
    sampler().sample(other, CONTEXTS, key, temperature=0.0)
    again = sampler().sample(params, CONTEXTS, key, temperature=0.0)
    changed = sampler().sample(other, CONTEXTS, key, temperature=0.0)
    assert first.actions == again.actions
    assert first.actions != changed.actions


def test_every_step_row_and_chunk_draws_anew(params):
    """Under equal logits, draws of different steps, rows and chunks are independent."""
    flat = {**params, "ends": {**params["ends"], "head": params["ends"]["head"] * 0}}
    engine = sampler(new=6, end=VOCAB, most_rows=16)  # the end is never drawn
    samples = engine.sample(flat, [(2, 3)] * 32, jax.random.key(0))
    drawn = np.array(samples.actions)
    assert drawn.shape == (32, 6)
    # 1/12 of any two columns (or chunks) agree by chance; 2/3 would be more than 10 sigma away.
    for other in (drawn[:, ::-1], np.roll(drawn, 16, axis=0), np.roll(drawn, 1, axis=0)):
        assert np.mean(drawn == other) < 1 / 3
