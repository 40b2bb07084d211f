"""A config.json gives the shapes of its model, or says what is missing."""

from __future__ import annotations

import json

import pytest

from sgljit_engines.errors import ModelConfigError
from sgljit_engines.shapes import MODEL_TYPES, read_config

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def read(tmp_path):
    def read(config, **options):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return read_config(tmp_path, **options)

    return read


def test_the_shapes_of_one_rank(read):
    shape = read(QWEN3, tensor_parallel=4)
    assert (shape.hidden_size, shape.head_dim, shape.query_heads, shape.kv_heads) == (2048, 128, 4, 2)
    assert (shape.all_query_heads, shape.all_kv_heads) == (16, 8)
    assert (shape.caches, shape.cache_row, shape.dtype) == (2, 2 * 128, "bfloat16")
    assert shape.rms_norm
    assert shape.traits.qk_norm == "head"
    assert shape.notes == ()


def test_the_sizes_of_gated_mlps(read):
    sizes = {"intermediate_size": 6144, "hidden_act": "silu"}
    shape = read({**QWEN3, **sizes}, tensor_parallel=4)
    assert (shape.activation, shape.mlp_sizes) == ("silu", (1536,))
    assert read(QWEN3).mlp_sizes == ()
    assert read({**QWEN3, **sizes, "model_type": "qwen3_moe"}).mlp_sizes == ()
    shared = {**DEEPSEEK, **sizes, "moe_intermediate_size": 2048, "n_shared_experts": 2}
    assert read(shared).mlp_sizes == (4096, 6144)
    gemma = {**QWEN3, **sizes, "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
    assert read(gemma).activation == "gelu_tanh"
    assert read({**QWEN3, "hidden_act": "relu2"}).activation == ""
    of_layers = {**QWEN3, **sizes, "intermediate_size": [8192, 6144, 8192]}  # as Gemma 3n's
    assert read(of_layers, tensor_parallel=4).mlp_sizes == (1536, 2048)


def test_more_ranks_than_heads_of_keys_share_them(read):
    shape = read(QWEN3, tensor_parallel=16)
    assert (shape.query_heads, shape.kv_heads) == (1, 1)


def test_what_a_config_leaves_out_follows_from_the_rest(read):
    shape = read({key: QWEN3[key] for key in ("model_type", "hidden_size", "num_attention_heads", "dtype")})
    assert (shape.head_dim, shape.kv_heads) == (128, 16)
    assert read({**QWEN3, "dtype": None, "torch_dtype": "float16"}).dtype == "float16"
    assert read(QWEN3, dtype="float32").dtype == "float32"


def test_the_rotated_part_of_a_head(read):
    assert read(QWEN3).rope_dim == 128
    assert read({**QWEN3, "partial_rotary_factor": 0.75}).rope_dim == 96
    assert read({**QWEN3, "rope_parameters": {"partial_rotary_factor": 0.5}}).rope_dim == 64
    assert read({**QWEN3, "rope_parameters": {"full_attention": {"rope_theta": 1e6}}}).rope_dim == 128
    assert read(DEEPSEEK).rope_dim == 64
    assert read(DEEPSEEK).traits.interleaved
    assert not read(QWEN3).traits.interleaved


def test_latent_attention_has_one_cache_on_every_rank(read):
    shape = read(DEEPSEEK, tensor_parallel=8)
    assert (shape.caches, shape.cache_row, shape.latent_sizes) == (1, 576, (1536, 512))
    assert read({**DEEPSEEK, "q_lora_rank": None}).latent_sizes == (512,)


def test_the_text_model_of_a_multimodal_one_counts(read):
    text = {key: value for key, value in QWEN3.items() if key != "dtype"}
    config = {"model_type": "x_vl", "dtype": "bfloat16", "text_config": text, "vision_config": {}, "audio_config": {}}
    shape = read(config)
    assert (shape.model_type, shape.dtype, shape.hidden_size) == ("qwen3", "bfloat16", 2048)
    assert shape.notes == ("only the text model is covered, not audio_config, vision_config",)


def test_an_unknown_type_says_what_is_not_covered(read):
    shape = read({**QWEN3, "model_type": "qwen9"})
    assert shape.rms_norm
    assert shape.traits == MODEL_TYPES["llama"]
    assert "'qwen9' is not known: its norms are taken for RMSNorm over the hidden size" in shape.notes[0]
    other = read({key: value for key, value in QWEN3.items() if key != "rms_norm_eps"} | {"model_type": "gpt2"})
    assert not other.rms_norm
    assert "its norms are not covered" in other.notes[0]


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        ("{", {}, "config.json is no JSON"),
        ("[]", {}, "is no config of a model: expected an object"),
        ({"text_config": 1}, {}, "an object as its text_config"),
        ({"model_type": "t5"}, {}, "has no hidden_size, num_attention_heads: expected the config of a language model"),
        ({"text_config": {}}, {}, "has no model_type, hidden_size, num_attention_heads"),
        ({**QWEN3, "hidden_size": "2048"}, {}, "hidden_size must be a positive integer; got '2048'"),
        (
            {**QWEN3, "intermediate_size": [6144, "6144"]},
            {},
            "intermediate_size must be an integer that is not negative; got '6144'",
        ),
        ({**QWEN3, "num_attention_heads": 0}, {}, "num_attention_heads must be a positive integer; got 0"),
        ({**QWEN3, "dtype": None}, {}, "its dtype is None; name one with --dtype, of bfloat16, float16, float32"),
        (QWEN3, {"dtype": "int8"}, "its dtype is int8; name one with --dtype"),
        (QWEN3, {"tensor_parallel": 3}, "3 ranks cannot share 16 attention heads"),
        (QWEN3, {"tensor_parallel": 0}, "0 ranks cannot share"),
        (
            {**QWEN3, "num_key_value_heads": 6},
            {"tensor_parallel": 4},
            "4 ranks cannot share 6 heads of keys and values",
        ),
    ],
)
def test_a_bad_config_is_a_sentence(read, config, options, text):
    with pytest.raises(ModelConfigError) as raised:
        read(config, **options)
    assert text in str(raised.value)


def test_no_config_is_a_sentence(tmp_path):
    with pytest.raises(ModelConfigError, match=r"config\.json cannot be read \(No such file.*name a directory"):
        read_config(tmp_path)
    with pytest.raises(ModelConfigError, match=r"nowhere cannot be read"):
        read_config(tmp_path / "nowhere")
