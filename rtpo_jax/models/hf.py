"""Names and configurations of Hugging Face Qwen3 and Llama checkpoints, in and out.

The mapping between a checkpoint's tensor names and the parameter tree exists here only.
"""

import numpy as np

from rtpo_jax.models.config import TransformerConfig

# Layer tensor -> (path in the tree, stored transposed: a checkpoint has [out, in]).
_LAYER = {
    "input_layernorm": (("attention_norm", "scale"), False),
    "self_attn.q_proj": (("query", "kernel"), True),
    "self_attn.k_proj": (("key", "kernel"), True),
    "self_attn.v_proj": (("value", "kernel"), True),
    "self_attn.o_proj": (("out", "kernel"), True),
    "self_attn.q_norm": (("query_norm", "scale"), False),
    "self_attn.k_norm": (("key_norm", "scale"), False),
    "post_attention_layernorm": (("mlp_norm", "scale"), False),
    "mlp.gate_proj": (("gate", "kernel"), True),
    "mlp.up_proj": (("up", "kernel"), True),
    "mlp.down_proj": (("down", "kernel"), True),
}
_QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def _layer_tensors(config: TransformerConfig) -> dict:
    return {k: v for k, v in _LAYER.items() if config.qk_norm or k not in _QK_NORMS}


def _layer_name(index: int, name: str) -> str:
    return f"model.layers.{index}.{name}.weight"


def _shapes(config: TransformerConfig) -> dict:
    """Checkpoint tensor name -> shape, tied head left out."""
    c = config
    query, key = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    sizes = {
        "self_attn.q_proj": (query, c.hidden_size),
        "self_attn.k_proj": (key, c.hidden_size),
        "self_attn.v_proj": (key, c.hidden_size),
        "self_attn.o_proj": (c.hidden_size, query),
        "self_attn.q_norm": (c.head_dim,),
        "self_attn.k_norm": (c.head_dim,),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size),
    }
    shapes = {_EMBEDDING: (c.vocab_size, c.hidden_size), _NORM: (c.hidden_size,)}
    if not c.tie_embeddings:
        shapes[_HEAD] = (c.vocab_size, c.hidden_size)
    for index in range(c.num_layers):
        for name in _layer_tensors(c):
            shapes[_layer_name(index, name)] = sizes.get(name, (c.hidden_size,))
    return shapes


def params_from_state_dict(config: TransformerConfig, state: dict) -> dict:
    """Parameter tree (float32 numpy arrays) from checkpoint tensors by name.

    Raises ValueError naming every missing, unexpected or misshapen tensor, and when a tied
    checkpoint brings a head that differs from its embedding.
    """
    state = dict(state)
    if config.tie_embeddings and _HEAD in state:
        if not np.array_equal(state.pop(_HEAD), state[_EMBEDDING]):
            raise ValueError(
                f"{_HEAD} differs from {_EMBEDDING} though tie_embeddings is True; "
                "set tie_embeddings=False"
            )
    _check_tensors(_shapes(config), state)
    layers: dict = {}
    for name, ((module, leaf), transposed) in _layer_tensors(config).items():
        tensors = [np.asarray(state[_layer_name(i, name)]) for i in range(config.num_layers)]
        stacked = np.stack([t.T if transposed else t for t in tensors]).astype(np.float32)
        layers[module] = {leaf: stacked}
    ends = {
        "embedding": np.asarray(state[_EMBEDDING], np.float32),
        "norm": {"scale": np.asarray(state[_NORM], np.float32)},
    }
    if not config.tie_embeddings:
        ends["head"] = np.asarray(state[_HEAD], np.float32)
    return {"ends": ends, "layers": layers}


def _check_tensors(expected: dict, state: dict):
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected)
    if missing or unexpected:
        raise ValueError(
            f"state lacks {missing} and has unexpected {unexpected}; "
            "check that the config describes this checkpoint"
        )
    wrong = {n: state[n].shape for n, shape in expected.items() if tuple(state[n].shape) != shape}
    if wrong:
        wanted = {name: expected[name] for name in wrong}
        raise ValueError(f"state has shapes {wrong}, the config needs {wanted}; correct the config")


def state_dict_from_params(config: TransformerConfig, params: dict) -> dict:
    """The inverse of ``params_from_state_dict``; a tied model has no ``lm_head.weight``."""
    ends = params["ends"]
    state = {_EMBEDDING: np.asarray(ends["embedding"]), _NORM: np.asarray(ends["norm"]["scale"])}
    if not config.tie_embeddings:
        state[_HEAD] = np.asarray(ends["head"])
    for name, ((module, leaf), transposed) in _layer_tensors(config).items():
        stacked = np.asarray(params["layers"][module][leaf])
        for index, tensor in enumerate(stacked):
            state[_layer_name(index, name)] = np.ascontiguousarray(
                tensor.T if transposed else tensor
            )
    return state


def config_from_hf(hf_config) -> TransformerConfig:
    """TransformerConfig of a ``qwen3`` or ``llama`` configuration (dict or transformers object).

    The rotary base is read from ``rope_parameters`` (transformers 5) or, in older files, from
    ``rope_theta``. A key this model cannot do without has no default.

    Raises ValueError for another architecture, biases, sliding windows, another activation, a
    scaled rotary embedding, or a missing key.
    """
    raw = hf_config if isinstance(hf_config, dict) else hf_config.to_dict()
    model_type = _required(raw, "model_type")
    if model_type not in ("qwen3", "llama"):
        raise ValueError(f"model_type is {model_type!r}; qwen3 and llama are supported")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(name):
            raise ValueError(f"{name} is {raw[name]!r}, which this model lacks; use one without it")
    if _required(raw, "hidden_act") != "silu":
        raise ValueError(f"hidden_act is {raw['hidden_act']!r}; only 'silu' is supported")
    heads = _required(raw, "num_attention_heads")
    head_dim = raw.get("head_dim")
    if head_dim is None and model_type == "llama":  # Llama files may leave it to the quotient.
        head_dim = _required(raw, "hidden_size") // heads
    return TransformerConfig(
        vocab_size=_required(raw, "vocab_size"),
        num_layers=_required(raw, "num_hidden_layers"),
        hidden_size=_required(raw, "hidden_size"),
        num_heads=heads,
        num_kv_heads=_required(raw, "num_key_value_heads"),
        head_dim=_required({"head_dim": head_dim}, "head_dim"),
        intermediate_size=_required(raw, "intermediate_size"),
        rope_theta=_rope_theta(raw),
        rms_norm_eps=_required(raw, "rms_norm_eps"),
        qk_norm=model_type == "qwen3",
        tie_embeddings=_required(raw, "tie_word_embeddings"),
    )


def _required(raw: dict, name: str):
    if raw.get(name) is None:
        raise ValueError(f"{name} is missing from the configuration; add it, there is no default")
    return raw[name]


def _rope_theta(raw: dict) -> float:
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    for part in (rope, scaling):
        kind = part.get("rope_type", part.get("type", "default"))
        if kind != "default":
            raise ValueError(f"rope_type is {kind!r}; only 'default' (no scaling) is supported")
    found = {float(p["rope_theta"]) for p in (rope, raw) if p.get("rope_theta") is not None}
    if len(found) != 1:
        raise ValueError(
            f"rope_theta has the values {sorted(found)}; give it once, in rope_parameters"
        )
    return found.pop()


def config_to_hf(config: TransformerConfig) -> dict:
    """The contents of ``config.json`` for an exported checkpoint; inverse of ``config_from_hf``."""
    model_type = "qwen3" if config.qk_norm else "llama"
    return {
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
    }
