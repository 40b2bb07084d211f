"""`sgljit prepare` builds the variants that a model asks for, and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys

import pytest
from engines.test_shapes import DEEPSEEK, QWEN3

from engines import model_run
from sgljit_core import errors
from sgljit_core.compilers import nvrtc
from sgljit_core.families import loading
from sgljit_engines.adapter import engine_ops
from sgljit_engines.errors import UnsupportedEngineError
from sgljit_engines.shapes import read_config
from sgljit_tools.recording.launches import compiled_driver
from sgljit_tools.recording.recorder import record


@pytest.fixture
def shape(tmp_path):
    def shape(config=QWEN3, **changes):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return read_config(tmp_path)

    return shape


def asked(shape, ops=None, device="cuda"):
    """What is built for a model, by the labels of the builds."""
    cuda_arch = "9.0" if device == "cuda" else None
    families = ["activation", "norm", "hicache", *(["rope"] if device == "cuda" else [])]
    recorded = record(families, cuda_arch=cuda_arch, on_cpu=cuda_arch is None, ops=ops and frozenset(ops), model=shape)
    return sorted(wanted.spec.label for wanted in recorded.wanted)


MLP = {"hidden_act": "silu", "intermediate_size": 6144}
MODELS = {
    "qwen3": QWEN3 | MLP,
    "qwen3_moe": QWEN3 | MLP | {"model_type": "qwen3_moe"},
    "llama": QWEN3 | MLP | {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32},
    "gemma3": QWEN3
    | {"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4}
    | {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 10240},
    "deepseek_v3": DEEPSEEK
    | {"hidden_act": "silu", "intermediate_size": 18432, "rms_norm_eps": 1e-6}
    | {"moe_intermediate_size": 2048, "n_shared_experts": 1},
    "glm4": QWEN3
    | MLP
    | {"model_type": "glm4", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2}
    | {"partial_rotary_factor": 0.5},
    "gpt_oss": QWEN3 | MLP | {"model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64},
}
RUN_OPS = {
    *("rmsnorm", "gemma_rmsnorm", "fused_add_rmsnorm", "gemma_fused_add_rmsnorm", "fused_rmsnorm_add_rmsnorm"),
    *("gemma_fused_rmsnorm_add_rmsnorm", "fused_inplace_qknorm", "gemma_fused_inplace_qknorm"),
    *("silu_and_mul", "gelu_tanh_and_mul"),
    *("apply_rope_inplace", "apply_rope_inplace_with_kvcache", "fused_qk_norm_rope", "fused_qk_norm_rope_with_kvcache"),
    *("apply_rotary_pos_emb", "apply_rope_inplace_with_mla_kvcache"),
}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("model", MODELS)
def test_what_is_built_is_what_a_run_asks_for(shape, tmp_path, model, device):
    """With each number of tokens from 1 to 16384; see model_run.py."""
    described = shape(MODELS[model])
    question, answer = tmp_path / "question", tmp_path / "answer"
    (tmp_path / "driver").mkdir(mode=0o700)
    question.write_bytes(pickle.dumps(described))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if device == "cuda":
        environment |= {
            "LD_PRELOAD": compiled_driver("9.0", str(tmp_path / "driver")),
            "CUDA_VISIBLE_DEVICES": "",
        }
    line = [sys.executable, model_run.__file__, str(question), str(answer), device]
    subprocess.run(line, env={**os.environ, **environment}, check=True)
    ran = answer.read_text().splitlines()
    assert len(ran) >= 3
    assert asked(described, RUN_OPS, device) == ran


ROTATIONS = {  # heads of queries and of keys, their size, what of it turns; whether halves do, and 1 + weight
    "qwen3": (16, 8, 128, 128, True, False),
    "llama": (32, 8, 128, 128, True, None),
    "gemma3": (8, 4, 256, 256, True, True),
    "glm4": (32, 2, 128, 64, False, None),
    "deepseek_v3": (128, 1, 64, 64, False, None),
    "gpt_oss": (64, 8, 64, 64, True, None),
}


@pytest.mark.parametrize("model", ROTATIONS)
def test_rotations_are_those_of_the_model(shape, model):
    queries, keys, size, rotated, is_neox, gemma = ROTATIONS[model]
    described = shape(MODELS[model])
    found = {name: list(op.calls(described)) for name, op in loading.load("rope").declared().items()}
    is_latent, is_normed = model == "deepseek_v3", gemma is not None
    has = {
        "apply_rope_inplace": True,
        "apply_rope_inplace_with_kvcache": not is_latent,
        "apply_rope_inplace_with_mla_kvcache": is_latent,
        "apply_rotary_pos_emb": is_neox,
        "apply_rotary_pos_emb_inplace": True,
        "fused_qk_norm_rope": is_normed,
        "fused_qk_norm_rope_with_kvcache": is_normed,
    }
    assert {name: len(calls) for name, calls in found.items()} == has
    for name, calls in found.items():
        for call in calls:
            if name == "apply_rotary_pos_emb":
                assert [call[x].shape[1] for x in "qk"] == [queries, keys]
                assert {call[x].shape[-1] for x in ("q", "k", "q_out", "k_out")} == {size}
                assert {call[x].shape[-1] for x in ("cos", "sin")} == {size // 2 if model == "gpt_oss" else size}
                continue
            heads = ("q_rope", "k_rope") if "mla" in name else ("q", "k")
            assert [call[x].shape[1:] for x in heads] == [(queries, size), (keys, size)]
            assert {call[x].shape[1] for x in ("cos_sin_cache", "cos", "sin") if x in call} == {rotated}
            assert call.get("is_neox", True) == is_neox
            assert call.get("gemma", False) == bool(gemma and "norm" in name)
            assert call[heads[0]].dtype == "bfloat16"
            if "mla" in name:
                assert [call[x].shape[1:] for x in ("k_nope", "kv_buffer")] == [(1, 512), (1, 576)]


def rows_of(label: str) -> list[tuple[int, int]]:
    """The elements of a row, and of a load, of each set of rows of a row program's kernel."""
    shapes = [int(number) for number in re.findall(r"\b\d+", label.partition(" for sm_")[0])[5:]]
    return [(shape & (1 << 20) - 1, shape >> 40 & 63) for shape in shapes]


@pytest.mark.slow
def test_the_ops_that_an_engine_calls_decide(shape):
    kernels = [label for label in asked(shape(), ["rmsnorm", "gemma_rmsnorm"]) if " for sm_90a" in label]
    assert kernels
    for label in kernels:
        assert label.startswith("norm.device.row_program<norms::RMSNorm<false>, 3, "), label
    assert {size for label in kernels for size, _ in rows_of(label)} == {2048, 128}


@pytest.mark.slow
def test_rows_of_an_mlp_that_are_no_whole_loads_get_all_kernels_that_they_may_ask_for(shape):
    labels = asked(shape(intermediate_size=6146, hidden_act="silu"), ["silu_and_mul"])
    kernels = [label for label in labels if "row_program" in label and " for sm_" in label]
    # 8 and, for a few tokens, 4 and 2 of rows side by side; 2 of a gate and values in one row.
    assert {elements for label in kernels for _, elements in rows_of(label)} == {2, 4, 8}


@pytest.mark.slow
def test_tensor_parallel_shares_what_is_normalised_across_heads(shape):
    labels = asked(shape(model_type="olmo2"), ["fused_inplace_qknorm_across_heads"])
    kernels = [label for label in labels if " for sm_" in label]
    assert {size for label in kernels for size, _ in rows_of(label)} == {2048, 1024}


def test_an_engine_without_an_adapter_is_a_sentence():
    with pytest.raises(
        UnsupportedEngineError,
        match=r"engine 'triton-server' \(installed: .*sgljit-vllm: install one$",
    ):
        engine_ops("triton-server")


def test_what_an_adapter_leaves_alone_by_default_is_not_built(monkeypatch):
    monkeypatch.delenv("SGLJIT_ENGINES", raising=False)
    norms = {"rmsnorm", "fused_add_rmsnorm", "gemma_rmsnorm", "gemma_fused_add_rmsnorm"}
    assert engine_ops("vllm") == norms
    assert "silu_and_mul" in engine_ops("transformers") & engine_ops(None), "for others it is not only by name"
    for value in ("off", "-gelu_and_mul", "rmsnorm,strict"):
        monkeypatch.setenv("SGLJIT_ENGINES", value)
        assert engine_ops("vllm") == norms, "prepare builds for all runs, but for ops that must be named"
    monkeypatch.setenv("SGLJIT_ENGINES", "norm,activation,-gelu_and_mul")
    assert engine_ops("vllm") == norms | {"silu_and_mul", "gelu_tanh_and_mul"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "sgljit_core", "prepare", *arguments]
    return subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.slow
def test_the_command_builds_for_another_architecture_without_a_gpu(shape, tmp_path):
    try:
        nvrtc.find_nvrtc("this test")
    except errors.ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])
    shape(model_type="qwen9")
    arguments = ("--model", str(tmp_path), "--cuda-arch", "9.0")
    environment = {"SGLJIT_CACHE_DIR": str(tmp_path / "cache"), "SGLJIT_JIT": "error"}
    listed = run(*arguments, "--dry-run", **environment)
    assert listed.returncode == 0, listed.stderr
    assert "device.row_program<norms::RMSNorm<false>, 3, " in listed.stdout
    assert ": a hit" not in listed.stdout
    assert listed.stderr.startswith("note: the model type 'qwen9' is not known")
    built = run(*arguments, **environment)
    assert built.returncode == 0, built.stderr
    assert f"{len(listed.stdout.splitlines())} modules are ready for qwen9 in bfloat16 on sm_90a" in built.stdout
    assert ": a miss" not in run(*arguments, "--dry-run", **environment).stdout


def test_errors_of_the_command_are_sentences(tmp_path):
    failed = run("--model", str(tmp_path))
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
    assert "name a directory that holds a model's config.json" in failed.stderr
