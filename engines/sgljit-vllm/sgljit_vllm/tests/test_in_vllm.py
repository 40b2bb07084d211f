"""In a real vLLM on the CPU: the same tokens, every norm by our ops, and vLLM's own code for what they do not take.

``environment.py`` makes an environment where these run; elsewhere they are skipped, but for the slow test, which makes
one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


def run(*command: str | os.PathLike[str], **environment: str) -> str:
    """What a process prints; both streams, if it fails."""
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def generate(*arguments: str, engines: str) -> tuple[list[list[int]], dict[str, int], str]:
    """The tokens, the calls, and all that was printed."""
    printed = run(sys.executable, HERE / "generate.py", *arguments, SGLJIT_ENGINES=engines)
    result = json.loads(re.search(r"RESULT (.*)", printed)[1])
    return result["tokens"], result["calls"], printed


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="the other tests run in this environment")
def test_in_an_environment_of_its_own(tmp_path):
    from . import environment  # with pip, which the other tests do without

    try:
        python = environment.make(tmp_path / "vllm")
    except subprocess.CalledProcessError as error:
        if re.search(r"from versions: none|connection|resolve host", error.stderr, re.IGNORECASE):
            pytest.skip(f"no package index: {error.stderr.strip().splitlines()[-1]}")
        raise AssertionError(error.stderr) from error
    before = files_of_vllm(tmp_path)
    options = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnknownMarkWarning", "-rs")
    printed = run(python, "-m", "pytest", *options, "--pyargs", "sgljit_vllm", SGLJIT_CACHE_DIR=str(tmp_path / "cache"))
    assert re.search(r"\d+ passed", printed), printed
    assert "vLLM is not installed" not in printed, printed
    run(python, "-m", "pip", "uninstall", "--yes", "sgljit-vllm")
    assert before == files_of_vllm(tmp_path), "vLLM is not what it was"
    printed = run(python, HERE / "generate.py", "qwen3")
    assert "RESULT" in printed
    assert "runs on" not in printed


def files_of_vllm(directory: Path) -> dict[Path, tuple[int, int]]:
    (site,) = directory.glob("vllm/lib/python*/site-packages/vllm")
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in site.rglob("*.py")}


@needs_vllm
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 16 tokens take a prefill and 15 decodes of 4 layers, and vLLM runs the model once more to profile it. Of
        # Qwen3's norms of a layer two have a residual but for the model's first, and two are of q and k.
        ("qwen3", {"rmsnorm": 16 * 9, "fused_add_rmsnorm": 16 * 8, "silu_and_mul": 16 * 4}),
        ("llama", {"rmsnorm": 16, "fused_add_rmsnorm": 16 * 8, "silu_and_mul": 16 * 4}),
        ("gemma3", {"gemma_rmsnorm": 16 * 17, "gemma_fused_add_rmsnorm": 16 * 8, "gelu_tanh_and_mul": 16 * 4}),
    ],
)
def test_the_same_tokens_come_out(model, expected):
    theirs, none, quiet = generate(model, "count", engines="off")
    assert none == {}
    assert "runs on" not in quiet
    ours, calls, printed = generate(model, "count", engines="strict")
    assert ours == theirs
    assert calls.keys() == expected.keys()
    assert all(expected[op] <= calls[op] <= expected[op] + 24 for op in expected), calls
    for op in expected:
        assert (
            len(re.findall(rf"sgljit-vllm \S+ with vllm\S* \S+: [\w ]+ runs on {op}$", printed, re.MULTILINE)) == 1
        ), op


@needs_vllm
def test_a_list_of_ops_chooses():
    theirs, _, _ = generate("qwen3", engines="off")
    ours, calls, printed = generate("qwen3", "count", engines="strict,rmsnorm")
    assert ours == theirs
    assert calls.keys() == {"rmsnorm"}
    assert printed.count(" runs on ") == 1


@needs_vllm
def test_a_model_that_inductor_compiles_is_vllms_own_unless_its_custom_ops_are_on():
    theirs, _, _ = generate("qwen3", engines="off")
    ours, calls, printed = generate("qwen3", "compiled", "count", engines="strict")
    assert ours == theirs
    assert calls == {}
    assert "leaves layers whose custom op is off to vLLM's native code" in printed
    assert "runs on" not in printed
    ours, _, printed = generate("qwen3", "compiled", "custom", engines="strict")
    assert ours == theirs
    assert "RMSNorm runs on rmsnorm" in printed


@needs_vllm
def test_a_build_that_fails_leaves_the_model_to_vllm(tmp_path):
    theirs, _, _ = generate("qwen3", engines="off")
    command = (sys.executable, HERE / "generate.py", "qwen3")
    without_compilers = {"SGLJIT_CACHE_DIR": str(tmp_path / "cold"), "SGLJIT_JIT": "error"}
    printed = run(*command, SGLJIT_ENGINES="on", **without_compilers)
    assert json.loads(re.search(r"RESULT (.*)", printed)[1])["tokens"] == theirs
    assert printed.count("rmsnorm failed, and RMSNorm runs on the engine's own code until the process ends") == 1
    result = subprocess.run(
        command, env={**os.environ, **without_compilers, "SGLJIT_ENGINES": "strict"}, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert "CompileForbiddenError" in result.stderr


LAYERS = """
import torch
from vllm.config import VllmConfig, set_current_vllm_config
import sgljit_vllm

sgljit_vllm.register()
sgljit_vllm.register()  # vLLM may load plugins more than once
from sgljit_vllm import layers
from vllm.model_executor.layers import activation as activations, layernorm
from vllm.model_executor.custom_op import op_registry_oot

torch.manual_seed(0)
"""


def in_vllm(code: str, **environment: str) -> str:
    """Run code with vLLM's layers at hand, of a model that vLLM's kernels run."""
    body = textwrap.indent(textwrap.dedent(code), "    ")
    config = 'VllmConfig(compilation_config={"custom_ops": ["all"]})'
    script = f"{LAYERS}with set_current_vllm_config({config}), torch.inference_mode():\n{body}"
    return run(sys.executable, "-c", script, VLLM_TARGET_DEVICE="cpu", **environment)


@needs_vllm
def test_each_layer_agrees_with_float64_and_keeps_the_inputs_that_vllm_keeps():
    in_vllm("""
        for kind, bias in ((layernorm.RMSNorm, 0), (layernorm.GemmaRMSNorm, 1)):
            layer = kind(96, eps=1e-5)
            assert type(layer) is {"RMSNorm": layers.SgljitRMSNorm}.get(kind.__name__, layers.SgljitGemmaRMSNorm)
            layer.weight.data.normal_()
            for shape in ((7, 96), (0, 96), (2, 3, 96), (96,)):
                x, residual = torch.randn(shape), torch.randn(shape)
                before = x.clone(), residual.clone()

                def norm(rows):
                    rows = rows.double()
                    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-5)
                    return (rows * scale * (bias + layer.weight.double())).float()

                torch.testing.assert_close(layer(x), norm(x), rtol=1e-5, atol=1e-5)
                assert torch.equal(x, before[0])
                out, total = layer(x, residual)
                torch.testing.assert_close(total, before[0] + before[1])
                torch.testing.assert_close(out, norm(before[0].double() + before[1]), rtol=1e-5, atol=1e-5)
                if bias:
                    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
            strided = torch.randn(5, 4, 192)[:, 1:3, :96]
            torch.testing.assert_close(layer(strided), norm(strided), rtol=1e-5, atol=1e-5)
    """)


@needs_vllm
def test_each_activation_agrees_with_float64():
    in_vllm("""
        from torch.nn.functional import gelu, silu
        for layer, activation in (
            (activations.SiluAndMul(), silu),
            (activations.GeluAndMul(), gelu),
            (activations.GeluAndMul(approximate="tanh"), lambda x: gelu(x, approximate="tanh")),
        ):
            assert type(layer).__module__ == "sgljit_vllm.layers" and layer._has_op
            for x in (torch.randn(7, 96), torch.randn(0, 96), torch.randn(2, 3, 96), torch.randn(96)):
                before = x.clone()
                gate, up = x.double().chunk(2, dim=-1)
                for way in (layer, layer.forward_cpu, layer.forward_cuda):
                    torch.testing.assert_close(way(x), (activation(gate) * up).float(), rtol=1e-5, atol=1e-5)
                assert torch.equal(x, before)
            strided = torch.randn(5, 4, 192)[:, 1:3, :96]
            torch.testing.assert_close(layer(strided), layer(strided.contiguous()))
            layer._op = None  # what the op does not take runs on vLLM's own code
            for odd in (torch.randn(3, 18), torch.randn(3, 96).bfloat16(), torch.randn(3, 96).double()):
                gate, up = odd.chunk(2, dim=-1)
                torch.testing.assert_close(layer(odd), activation(gate) * up)
    """)


@needs_vllm
def test_what_the_ops_do_not_take_runs_on_vllms_own_code():
    in_vllm("""
        def refuse(*args, **kwargs):
            raise AssertionError("our op was called")

        odd = [
            (layernorm.RMSNorm(64, var_hidden_size=32), torch.randn(3, 64)),
            (layernorm.RMSNorm(64, has_weight=False), torch.randn(3, 64)),
            (layernorm.RMSNorm(64, dtype=torch.float64), torch.randn(3, 64, dtype=torch.float64)),
            (layernorm.RMSNorm(64, dtype=torch.float32), torch.randn(3, 64, dtype=torch.bfloat16)),
        ]
        for kind in (layers.SgljitRMSNorm, layers.SgljitGemmaRMSNorm):
            kind._plain = kind._fused = staticmethod(refuse)
        for layer, x in odd:
            expected = type(layer).__mro__[2].forward_native(layer, x)
            assert torch.equal(layer(x), expected), layer
        plain = layernorm.RMSNorm
        x = torch.randn(3, 64)
        own = layers.SgljitRMSNorm.__mro__[2]
        assert own is plain
    """)


@needs_vllm
def test_batch_invariant_mode_is_vllms_own():
    in_vllm(
        "layer = layernorm.RMSNorm(64); assert not layer._has_plain and not layer._has_fused", VLLM_BATCH_INVARIANT="1"
    )


@needs_vllm
def test_the_switch_of_vllm_keeps_its_name():
    in_vllm("""
        assert layers.SgljitRMSNorm.name == layernorm.RMSNorm.name == "rms_norm"
        assert layers.SgljitGemmaRMSNorm.name == "gemma_rms_norm"
        assert layers.SgljitSiluAndMul.name == activations.SiluAndMul.name == "silu_and_mul"
        assert layers.SgljitGeluAndMul.name == "gelu_and_mul"
    """)


@needs_vllm
def test_a_layer_that_another_plugin_replaced_is_left_to_it():
    code = """
        from vllm.model_executor.custom_op import CustomOp, op_registry_oot
        from vllm.model_executor.layers import layernorm

        @CustomOp.register_oot(name="RMSNorm")
        class Other(layernorm.RMSNorm):
            pass

        import sgljit_vllm
        sgljit_vllm.register()
        assert op_registry_oot["RMSNorm"] is Other
        assert op_registry_oot["GemmaRMSNorm"].__module__ == "sgljit_vllm.layers"
    """
    printed = run(sys.executable, "-c", textwrap.dedent(code), VLLM_TARGET_DEVICE="cpu")
    assert "sgljit-vllm 0.1.0 leaves RMSNorm to __main__.Other, which replaced it before" in printed
