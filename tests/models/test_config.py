"""Sizes are checked with useful messages; counts agree with hand counts."""

import dataclasses

import jax
import pytest

from rtpo_jax.models import TransformerConfig, init


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_kv_heads": 3}, ("num_kv_heads is 3", "divisor")),
        ({"head_dim": 7}, ("head_dim is 7", "even")),
        ({"num_layers": 0}, ("num_layers is 0", "at least 1")),
        ({"vocab_size": 2.5}, ("vocab_size is 2.5", "integer")),
        ({"rope_theta": -1.0}, ("rope_theta is -1.0", "positive")),
        ({"rms_norm_eps": float("nan")}, ("rms_norm_eps is nan", "positive")),
        ({"compute_dtype": "float16"}, ("compute_dtype is 'float16'", "bfloat16")),
    ],
)
def test_bad_sizes_are_refused_by_name_value_and_fix(change, words):
    with pytest.raises(ValueError) as error:
        dataclasses.replace(TransformerConfig.tiny(30), **change)
    assert all(word in str(error.value) for word in words)


def test_config_is_frozen_and_hashable():
    config = TransformerConfig.tiny(30)
    assert hash(config) == hash(TransformerConfig.tiny(30))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3


def test_smollm2_has_134515008_parameters():
    # 49152*576 embedding (tied) = 28,311,552; final norm 576.
    # A layer: q and o 2*576*576, k and v 2*576*192, SwiGLU 3*576*1536, two norms 2*576
    #   = 663,552 + 221,184 + 2,654,208 + 1,152 = 3,540,096; times 30 = 106,202,880.
    config = TransformerConfig(49152, 30, 576, 9, 3, 64, 1536, 1e5, 1e-5, False, True)
    assert config.num_parameters == 28_311_552 + 576 + 106_202_880 == 134_515_008
    # Two flops per matrix entry (the embedding used as head included, norms not), and per layer
    # 2 * 2 * 9 * 64 per visible key.
    matrices = 30 * (3_540_096 - 1_152) + 28_311_552
    assert config.flops_per_token() == 2 * matrices
    assert config.flops_per_token(100) == 2 * matrices + 30 * 4 * 9 * 64 * 100


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"qk_norm": False}])
def test_num_parameters_counts_the_tree(changes):
    config = TransformerConfig.tiny(30, **changes)
    shapes = jax.eval_shape(lambda: init(config, jax.random.key(0)))
    assert config.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(shapes))
