"""Decoder-only transformers as pure functions of a parameter dict, with their tokenizers.

Weights and tokenizers of GGUF files are in ``rtpo_jax.models.gguf`` and
``rtpo_jax.models.chat_tokenizer``, which need the ``gguf`` extra.
"""

from rtpo_jax.models.config import TransformerConfig
from rtpo_jax.models.decode import (
    decode_step,
    expand_cache,
    layer_parameters,
    prefill,
    visible_slots,
)
from rtpo_jax.models.log_probs import token_log_probs
from rtpo_jax.models.tokenizer import SymbolTokenizer
from rtpo_jax.models.transformer import hidden_states, init, logits

__all__ = [
    "SymbolTokenizer",
    "TransformerConfig",
    "decode_step",
    "expand_cache",
    "hidden_states",
    "init",
    "layer_parameters",
    "logits",
    "prefill",
    "token_log_probs",
    "visible_slots",
]
