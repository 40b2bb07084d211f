"""`sgljit prepare` builds the variants that a model asks for, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from engines.test_shapes import DEEPSEEK, QWEN3

from sgljit_core import CppType, errors, override_cuda_arch
from sgljit_core.compilers import nvrtc
from sgljit_core.engines import prepare
from sgljit_core.engines.shapes import read_config
from sgljit_core.families import registry


@pytest.fixture
def shape(tmp_path):
    def shape(config=QWEN3, **changes):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return read_config(tmp_path)

    return shape


def asked(shape, ops=None, arch=(9, 0)):
    """The arguments of the kernels, by family."""
    with override_cuda_arch(*arch):
        found = {}
        for family in ("activation", "norm", "hicache"):
            builders = registry.model_variants(family, shape, ops and frozenset(ops), "cuda")
            found[family] = {builder.args for builder in builders if getattr(builder, "args", ())}
    return found


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize(
    "config",
    [
        {},
        DEEPSEEK | {"kv_lora_rank": 512},
        {"model_type": "gemma3_text", "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"},
    ],
)
def test_for_usual_sizes_it_is_a_part_of_what_the_families_declare(shape, config, arch):
    """Two lists of what the C++ chooses, written apart."""
    mlp = {"hidden_act": "silu", "intermediate_size": 6144}
    shape = shape(
        {**QWEN3, **mlp, **config, "dtype": "bfloat16", "hidden_size": 2560 if "head_dim" in config else 4096}
    )
    ops = {"rmsnorm", "gemma_rmsnorm", "fused_add_rmsnorm", "gemma_fused_add_rmsnorm", "fused_inplace_qknorm"}
    ops |= {
        "silu_and_mul",
        "gelu_tanh_and_mul",
        "transfer_hicache_one_layer",
        "transfer_hicache_one_layer_mla",
        "gemma_fused_inplace_qknorm",
    }
    latent = {args for args in asked(shape, arch=arch)["norm"] if set(args) & set(shape.latent_sizes)}
    for family, wanted in asked(shape, ops, arch).items():
        with override_cuda_arch(*arch):
            declared = {getattr(builder, "args", None) for builder in registry.declared_variants(family)}
        assert wanted
        head_alone = {args for args in wanted if args[1] == "device::row_reduce" and shape.head_dim in args}
        assert wanted - latent - head_alone <= declared


def test_the_ops_that_an_engine_calls_decide(shape):
    import torch

    only = asked(shape(), ["rmsnorm"])
    last = (torch.bfloat16, torch.bfloat16)
    functor = (CppType("norms::RMSNorm<false>"), 1, 1, 1)
    assert {(args[:7], args[10:]) for args in only["norm"]} == {
        (("norm.h", "device::row_reduce", *functor, size), last) for size in (2048, 128)
    }
    assert only["hicache"] == set()
    assert asked(shape(), ["gemma_rmsnorm"])["norm"] == set()
    functors = {args[2] for args in asked(shape())["norm"] if args[0] == "norm.h"}
    assert functors == {CppType("norms::RMSNorm<false>"), CppType("norms::FusedAddRMSNorm<false>")}
    assert {args[0] for args in asked(shape())["norm"]} == {"norm.h", "qknorm.cuh"}


def test_rows_that_no_register_kernel_takes_get_the_one_for_any_size(shape):
    import torch

    kernel = ("norm.h", "device::row_reduce_generic", CppType("norms::RMSNorm<false>"), 1, 1, 1)
    last = (torch.bfloat16, torch.bfloat16)
    odd = asked(shape(model_type="llama", hidden_size=2050), ["rmsnorm"])["norm"]
    assert odd == {(*kernel, 2, *last)}
    large = asked(shape(model_type="llama", hidden_size=65536), ["rmsnorm"])["norm"]
    assert large == {(*kernel, 8, *last)}


def test_rows_of_an_mlp_that_are_no_whole_loads_get_all_kernels_that_they_may_ask_for(shape):
    def asked_for(size):
        mlp = shape(intermediate_size=size, hidden_act="silu")
        return {args[5:7] for args in asked(mlp, ["silu_and_mul"])["activation"]}

    assert asked_for(6144) == {(8, False)}
    assert asked_for(6146) == {(2, False), (8, False), (8, True)}


def test_tensor_parallel_shares_what_is_normalised_across_heads(shape):
    whole = shape(model_type="olmo2")
    args = {args[1:4] for args in asked(whole, ["fused_inplace_qknorm_across_heads"])["norm"]}
    assert args == {("norms::qknorm_across_heads", 2048, 1024)}


def test_an_engine_without_an_adapter_is_a_sentence():
    with pytest.raises(
        errors.UnsupportedEngineError,
        match=r"engine 'triton-server' \(installed: .*sgljit-vllm: install that of your engine",
    ):
        prepare.engine_ops("triton-server")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sgljit_core", "prepare", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.slow
def test_the_command_builds_for_another_architecture_without_a_gpu(shape, tmp_path):
    try:
        nvrtc.find_nvrtc("this test")
    except errors.ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])
    shape(model_type="qwen9")
    arguments = ("--model", str(tmp_path), "--cuda-arch", "9.0")
    environment = {"SGLJIT_CACHE_DIR": str(tmp_path / "cache"), "SGLJIT_JIT": "error"}
    listed = run(*arguments, "--list", **environment)
    assert listed.returncode == 0, listed.stderr
    assert "device.row_reduce<norms::RMSNorm<false>, 1, 1, 1, 2048, 8, " in listed.stdout
    assert ": a hit" not in listed.stdout
    assert listed.stderr.startswith("note: the model type 'qwen9' is not known")
    built = run(*arguments, **environment)
    assert built.returncode == 0, built.stderr
    assert f"{len(listed.stdout.splitlines())} modules are ready for qwen9 in bfloat16 on cuda" in built.stdout
    assert ": a miss" not in run(*arguments, "--list", **environment).stdout


def test_errors_of_the_command_are_sentences(tmp_path):
    failed = run("--model", str(tmp_path))
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
    assert "name a directory that holds a model's config.json" in failed.stderr
