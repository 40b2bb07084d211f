"""Which shapes does a model give to kernels? Its ``config.json`` answers, without weights, an engine or torch.

A table has what such a file does not say: which normalisation a type of model has, and whether it has a gated MLP. A
note names a model type that the table does not know: a kernel that is missed for that is compiled at its first call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ModelConfigError


class Traits(NamedTuple):
    """Facts about a type of model that its config does not hold.

    Attributes:
        one_plus: whether its RMSNorm multiplies by ``1 + weight``, as Gemma's does.
        qk_norm: what of queries and keys is normalised: nothing (""), each "head", or "all" heads of a token together.
        gated_mlp: whether a token passes an MLP with a gate outside of the routed experts, whose kernels have an
            activation of their own.
        sandwich_norm: whether the results of attention and of the MLP are normalised, as well as their inputs.
        interleaved: whether the elements 2i and 2i + 1 of a head turn together, and not i and i + half.
        half_angles: whether transformers has one cosine and sine for each pair of a head.
    """

    one_plus: bool = False
    qk_norm: str = ""
    gated_mlp: bool = True
    sandwich_norm: bool = False
    interleaved: bool = False
    half_angles: bool = False


# By the ``model_type`` of a config, which is that of the text model where a model has several parts. The tests of
# sgljit-transformers compare each row with the model that transformers makes of it.
_PLAIN_TYPES = ("granite", "llama", "ministral", "mistral", "phi3", "qwen2", "qwen2_moe")
MODEL_TYPES: Mapping[str, Traits] = {
    **dict.fromkeys((*_PLAIN_TYPES, "smollm3"), Traits()),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), Traits(interleaved=True)),
    "gpt_oss": Traits(gated_mlp=False, half_angles=True),
    "mixtral": Traits(gated_mlp=False),
    "gemma": Traits(one_plus=True),
    "gemma2": Traits(one_plus=True, sandwich_norm=True),
    "gemma3_text": Traits(one_plus=True, qk_norm="head", sandwich_norm=True),
    "glm4": Traits(sandwich_norm=True, interleaved=True),
    "olmo2": Traits(qk_norm="all"),
    "qwen3": Traits(qk_norm="head"),
    "qwen3_moe": Traits(qk_norm="head", gated_mlp=False),
}


@dataclass(frozen=True)
class ModelShape:
    """The shapes that one rank of a model gives to kernels.

    Attributes:
        model_type: the type of the text model, such as "qwen3".
        dtype: the name of the torch.dtype that it runs in, such as "bfloat16".
        hidden_size: elements of a token's hidden state.
        head_dim: elements of a head.
        query_heads, kv_heads, all_query_heads, all_kv_heads: heads of this rank, and of all ranks together.
        latent_sizes: for multi-head latent attention, the sizes of the compressed queries and keys, which are
            normalised; empty for other models.
        cache_row: elements of one token in one cache of one layer of this rank: all heads, or the latent vector.
        caches: 2, keys and values; 1 with multi-head latent attention.
        rms_norm: whether it has RMSNorm layers, as far as is known.
        activation: that of its MLPs: "silu", "gelu", "gelu_tanh", or "" for any other.
        mlp_sizes: elements of a token inside of the gated MLPs of this rank; empty where there are none.
        expert_size: those inside of a routed expert of this rank; 0 where there is none.
        vocabulary: the elements of a row of logits; 0 where the config does not say.
        traits: what the type of model does beside its config.
        notes: sentences about what is not covered.
        rope_dim: elements of a head that are rotated, the first; with multi-head latent attention a part of its own.
    """

    model_type: str
    dtype: str
    hidden_size: int
    head_dim: int
    query_heads: int
    kv_heads: int
    all_query_heads: int
    all_kv_heads: int
    latent_sizes: tuple[int, ...]
    cache_row: int
    caches: int
    rms_norm: bool
    activation: str
    mlp_sizes: tuple[int, ...]
    expert_size: int
    vocabulary: int
    traits: Traits
    notes: tuple[str, ...]
    rope_dim: int = 0


def read_config(path: Path, tensor_parallel: int = 1, dtype: str | None = None) -> ModelShape:
    """The shapes of the model of a ``config.json``.

    Args:
        path: the file, or the directory that holds it.
        tensor_parallel: the number of ranks that share the heads.
        dtype: such as "bfloat16"; by default what the config says.

    Raises:
        ModelConfigError: there is no such file, it is no config of a model with attention, or the ranks do not divide
            the heads.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read(file)
    text, notes = config, []
    if "text_config" in config:
        text = config["text_config"]
        others = {key for key in config if key.endswith("_config") and isinstance(config[key], dict)}
        if parts := sorted(others - {"text_config", "quantization_config"}):
            notes.append(f"only the text model is covered, not {', '.join(parts)}")
    needed = ("model_type", "hidden_size", "num_attention_heads")
    if missing := [key for key in needed if text.get(key) is None]:
        raise ModelConfigError(
            f"{file} has no {', '.join(missing)}: expected the config of a language model, with {', '.join(needed)}"
        )
    model_type = str(text["model_type"])
    rms_norm = "rms_norm_eps" in text or model_type in MODEL_TYPES
    if model_type not in MODEL_TYPES:
        taken = ": its norms are taken for RMSNorm over the hidden size. Norms of queries and keys, and of 1 + weight,"
        said = taken if rms_norm else ", and has no rms_norm_eps: its norms"
        notes.append(f"the model type {model_type!r} is not known{said} are not covered")
    heads, hidden = (_integer(file, text, key) for key in ("num_attention_heads", "hidden_size"))
    kv_heads = _integer(file, text, "num_key_value_heads", heads)
    head_dim = _integer(file, text, "head_dim", hidden // heads or None)
    rope = text.get("rope_parameters")
    share = text.get("partial_rotary_factor", rope.get("partial_rotary_factor") if isinstance(rope, dict) else None)
    rotated = int(share * head_dim) if isinstance(share, float) else head_dim
    latent = tuple(_integer(file, text, key) for key in ("q_lora_rank", "kv_lora_rank") if text.get(key) is not None)
    is_latent = text.get("kv_lora_rank") is not None
    traits = MODEL_TYPES.get(model_type, Traits())
    has_no_mlp = "moe_intermediate_size" not in text and text.keys() & {"num_experts", "num_local_experts"}
    inside = "intermediate_size" if has_no_mlp else "moe_intermediate_size"  # of Mixtral's experts, and of others
    of_rank, kv_of_rank = _shared(heads, kv_heads, tensor_parallel, is_latent)
    return ModelShape(
        model_type=model_type,
        dtype=_dtype(file, {"dtype": dtype}, text, config),
        hidden_size=hidden,
        head_dim=head_dim,
        query_heads=of_rank,
        kv_heads=kv_of_rank,
        all_query_heads=heads,
        all_kv_heads=kv_heads,
        latent_sizes=latent if is_latent else (),
        cache_row=latent[-1] + _integer(file, text, "qk_rope_head_dim", 0) if is_latent else kv_of_rank * head_dim,
        caches=1 if is_latent else 2,
        rms_norm=rms_norm,
        activation=_ACTIVATIONS.get(str(text.get("hidden_activation") or text.get("hidden_act")), ""),
        mlp_sizes=_mlp_sizes(file, text, tensor_parallel) if traits.gated_mlp else (),
        expert_size=_integer(file, text, inside, 0) // tensor_parallel,
        vocabulary=_integer(file, text, "vocab_size", 0),
        traits=traits,
        notes=tuple(notes),
        rope_dim=_integer(file, text, "qk_rope_head_dim", rotated),
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelConfigError(
            f"{file} cannot be read ({error.strerror}): name a directory that holds a model's config.json, or that file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{file} is no JSON: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("text_config", {}), dict):
        raise ModelConfigError(f"{file} is no config of a model: expected an object, and an object as its text_config")
    return config


def _dtype(file: Path, *configs: Mapping[str, Any]) -> str:
    """The first dtype that one of some configs says."""
    found = next(filter(None, (config.get(key) for config in configs for key in ("dtype", "torch_dtype"))), None)
    name = str(found).removeprefix("torch.")
    if name not in (names := ("bfloat16", "float16", "float32")):
        raise ModelConfigError(f"{file}: its dtype is {found}; name one with --dtype, of {', '.join(names)}")
    return name


# The names of transformers. Some differ in how they compute the same.
_TANH = ("gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh", "gelu_pytorch_tanh")
_ACTIVATIONS = dict(dict.fromkeys(_TANH, "gelu_tanh"), silu="silu", swish="silu", gelu="gelu", gelu_python="gelu")


def _mlp_sizes(file: Path, config: Mapping[str, Any], ranks: int) -> tuple[int, ...]:
    """The sizes of dense layers, which may be a list with one for each layer, and of experts that all tokens share."""
    dense = config.get("intermediate_size")
    each = dense if isinstance(dense, list) else [dense]
    sizes = {_integer(file, {"intermediate_size": size}, "intermediate_size", 0) for size in each}
    sizes.add(_integer(file, config, "shared_expert_intermediate_size", 0))
    sizes.add(_integer(file, config, "moe_intermediate_size", 0) * _integer(file, config, "n_shared_experts", 0))
    return tuple(sorted(size // ranks for size in sizes if size and size % ranks == 0))


def _integer(file: Path, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < (0 if default == 0 else 1):
        wanted = "an integer that is not negative" if default == 0 else "a positive integer"
        raise ModelConfigError(f"{file}: {key} must be {wanted}; got {value!r}")
    return value


def _shared(heads: int, kv_heads: int, ranks: int, is_latent: bool) -> tuple[int, int]:
    """The heads of a rank. With more ranks than heads of keys and values, several ranks hold the same head."""
    if ranks < 1 or heads % ranks:
        rule = "their number must be a multiple of that of the ranks"
        raise ModelConfigError(f"{ranks} ranks cannot share {heads} attention heads: {rule}")
    if not is_latent and kv_heads % ranks and ranks % kv_heads:
        raise ModelConfigError(f"{ranks} ranks cannot share {kv_heads} heads of keys and values evenly")
    return heads // ranks, kv_heads if is_latent else max(1, kv_heads // ranks)
