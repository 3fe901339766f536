"""Shape of a decoder-only transformer, checked when it is built."""

from __future__ import annotations

import dataclasses

_COMPUTE_DTYPES = ("float32", "bfloat16", "float64")
_POSITIVE_INTEGERS = (
    "vocab_size",
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Everything that fixes the function computed by the parameters.

    The block is Qwen3's (pre-norm, grouped-query attention with rotary positions, RMSNorm on
    queries and keys, SwiGLU); ``qk_norm=False`` gives Llama's. Parameters are always float32;
    ``compute_dtype`` is the dtype of matrix products and activations.

    Raises ValueError when sizes do not fit together.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int  # query heads
    num_kv_heads: int  # key and value heads, each shared by num_heads / num_kv_heads query heads
    head_dim: int  # need not be hidden_size / num_heads
    intermediate_size: int  # width of the SwiGLU
    rope_theta: float = 1e6  # base of the rotary wavelengths
    rms_norm_eps: float = 1e-6
    qk_norm: bool = True  # RMSNorm over head_dim on queries and keys, before the rotation
    tie_embeddings: bool = False  # the output head is the embedding
    compute_dtype: str = "float32"  # "float32", "bfloat16", or "float64" for exact checks

    def __post_init__(self):
        for field in _POSITIVE_INTEGERS:
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} is {value!r}; use an integer of at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads is {self.num_kv_heads}, which does not divide num_heads "
                f"{self.num_heads}; use a divisor of num_heads"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim is {self.head_dim}; rotary positions turn pairs, use an even size"
            )
        for field in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, field)
            if not 0.0 < value < float("inf"):
                raise ValueError(f"{field} is {value!r}; use a positive finite number")
        if self.compute_dtype not in _COMPUTE_DTYPES:
            raise ValueError(
                f"compute_dtype is {self.compute_dtype!r}; use one of {', '.join(_COMPUTE_DTYPES)}"
            )

    @classmethod
    def tiny(cls, vocab_size: int, **changes) -> TransformerConfig:
        """Two layers of width 64, about 0.1 million parameters: trains in minutes on a CPU.

        The rotary base is 1e4, because the longest wavelength need only exceed contexts of a few
        hundred tokens. ``changes`` replace single fields.
        """
        preset = cls(
            vocab_size=vocab_size,
            num_layers=2,
            hidden_size=64,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            intermediate_size=192,
            rope_theta=1e4,
        )
        return dataclasses.replace(preset, **changes)

    @property
    def _matrix_parameters_per_layer(self) -> int:
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_parameters(self) -> int:
        """Number of floats in the parameter tree; a tied embedding counts once."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        layers = self.num_layers * (self._matrix_parameters_per_layer + norms)
        tables = (1 if self.tie_embeddings else 2) * self.vocab_size * self.hidden_size
        return tables + layers + self.hidden_size

    def flops_per_token(self, context_length: int = 0) -> int:
        """Floating-point operations of one forward token that attends to ``context_length`` keys.

        Two per matrix parameter (layers and output head; looking up an embedding is free) plus
        4 * num_layers * num_heads * head_dim * context_length for scores and weighted values.
        Training costs about three times as much (backward is two forwards).
        """
        matrices = self.num_layers * self._matrix_parameters_per_layer
        head = self.vocab_size * self.hidden_size
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * context_length
        return 2 * (matrices + head + attention)
