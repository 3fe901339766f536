"""Hugging Face checkpoints: the reference's numbers, configurations read and refused, export."""

import functools
import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from rtpo_jax.models import TransformerConfig, hidden_states, init, logits
from rtpo_jax.models.hf import (
    config_from_hf,
    config_to_hf,
    params_from_state_dict,
    state_dict_from_params,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
CASES = ("qwen3", "qwen3_tied", "llama")


@functools.cache
def _stored(case):
    """(HF config dict, state dict, tokens, logits) computed by transformers and torch."""
    data = np.load(FIXTURES / f"{case}.npz")
    state = {name: data[name] for name in data if name.startswith(("model.", "lm_head."))}
    return json.loads(str(data["config"])), state, data["tokens"], data["logits"]


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, tokens):
    return logits(config, params, hidden_states(config, params, tokens))


def _our_logits(raw, state, tokens):
    config = config_from_hf(raw)
    return _logits(config, params_from_state_dict(config, state), tokens)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_stored_reference(case):
    raw, state, tokens, expected = _stored(case)
    assert expected.std() > 1.0
    np.testing.assert_allclose(_our_logits(raw, state, tokens), expected, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers_on_torch(case):
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("write_fixtures", FIXTURES / "write_fixtures.py")
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    raw, state, tokens, expected = fixtures.reference(case)
    np.testing.assert_allclose(_our_logits(raw, state, tokens), expected, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_export_returns_the_same_tensors(case):
    raw, state, _, _ = _stored(case)
    config = config_from_hf(raw)
    exported = state_dict_from_params(config, params_from_state_dict(config, state))
    assert exported.keys() == state.keys()
    assert ("lm_head.weight" in exported) == (not config.tie_embeddings)
    for name, tensor in state.items():
        np.testing.assert_array_equal(exported[name], tensor)
    assert config_from_hf(config_to_hf(config)) == config


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"qk_norm": False}])
def test_transformers_opens_an_export(changes):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = TransformerConfig.tiny(23, **changes)
    params = init(config, jax.random.key(0))
    raw = config_to_hf(config)
    hf_config = transformers.AutoConfig.for_model(**raw)
    model = transformers.AutoModelForCausalLM.from_config(hf_config).eval()
    state = {n: torch.tensor(a) for n, a in state_dict_from_params(config, params).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    assert tied == config.tie_embeddings == bool(missing)
    tokens = np.random.default_rng(0).integers(0, 23, (2, 9))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(_logits(config, params, tokens), expected, atol=2e-5)


def _raw(**changes):
    raw = {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 6144,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        **changes,
    }
    return {name: value for name, value in raw.items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_parameters": None, "rope_theta": 1e6},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 1000000},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "default"}},
    ],
)
def test_rotary_base_is_found_wherever_it_is_written(changes):
    assert config_from_hf(_raw(**changes)).rope_theta == 1e6


def test_qwen3_1p7b_size():
    # The model card's 1.7B, 1.4B of them outside the embedding.
    config = config_from_hf(_raw())
    assert config.qk_norm and config.tie_embeddings
    assert round(config.num_parameters / 1e9, 1) == 1.7
    assert round((config.num_parameters - 151936 * 2048) / 1e9, 1) == 1.4


def test_transformers_configurations_are_read():
    transformers = pytest.importorskip("transformers")
    hf_config = transformers.LlamaConfig(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3
    )
    config = config_from_hf(hf_config)
    assert (config.head_dim, config.num_layers, config.qk_norm) == (12, 3, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type is 'linear'"),
        ({"rope_parameters": None}, "rope_theta has the values"),
        ({"rope_theta": 1e4}, "rope_theta has the values"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"model_type": "qwen2"}, "model_type is 'qwen2'"),
        ({"head_dim": None}, "head_dim is missing"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings is missing"),
    ],
)
def test_what_the_model_lacks_is_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        config_from_hf(_raw(**changes))


def test_wrong_tensors_are_refused_by_name():
    raw, state, _, _ = _stored("qwen3_tied")
    config = config_from_hf(raw)
    embedding, norm = "model.embed_tokens.weight", "model.norm.weight"
    # A tied checkpoint may repeat its embedding as head, and only that.
    params_from_state_dict(config, {**state, "lm_head.weight": state[embedding]})
    cases = [
        ({n: t for n, t in state.items() if n != norm}, "lacks .'model.norm.weight'"),
        (
            {**state, "model.layers.0.self_attn.q_proj.bias": state[norm]},
            "unexpected .*q_proj.bias",
        ),
        ({**state, norm: state[norm][:-1]}, "shapes .*model.norm.weight"),
        ({**state, "lm_head.weight": state[embedding] + 1}, "lm_head.weight differs"),
    ]
    for wrong, words in cases:
        with pytest.raises(ValueError, match=words):
            params_from_state_dict(config, wrong)
