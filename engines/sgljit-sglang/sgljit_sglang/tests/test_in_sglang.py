"""In SGLang's own modules, on the CPU: each seam calls our op, and SGLang's code runs for what the op does not take.

``environment.py`` makes an environment where these run; elsewhere they are skipped, but for the slow test, which makes
one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from .process import needs_sglang, on_devices, run
from .test_functions import GATE, GROUPS, QUANTIZATION, ROTATIONS, STORES


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="the other tests run in this environment")
def test_in_an_environment_of_its_own(tmp_path, monkeypatch, capsys):
    from . import environment  # with pip, which the other tests do without

    monkeypatch.delenv("PYTHONPATH", raising=False)  # nothing of the checkout but what is installed there
    monkeypatch.chdir(tmp_path)  # nor its configuration of pytest
    began = time.monotonic()
    try:
        python = environment.make(tmp_path / "sglang")
    except subprocess.CalledProcessError as error:
        if re.search(r"from versions: none|connection|resolve host", error.stderr, re.IGNORECASE):
            pytest.skip(f"no package index: {error.stderr.strip().splitlines()[-1]}")
        raise AssertionError(error.stderr) from error
    installed = time.monotonic()
    before = files_of_sglang(tmp_path)
    options = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnknownMarkWarning", "-rs", "-m", "not gpu")
    result = subprocess.run(
        [python, "-m", "pytest", *options, "--pyargs", "sgljit_sglang"],
        env={**os.environ, "SGLJIT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert "SGLang is not installed" not in result.stdout
    passed = re.search(r"\d+ passed.*", result.stdout)[0]
    with capsys.disabled():
        print(f"\nSGLang: installed in {installed - began:.0f} s; {passed}")
    subprocess.run([python, "-m", "pip", "uninstall", "--yes", "sgljit-sglang"], check=True, capture_output=True)
    assert before == files_of_sglang(tmp_path), "SGLang is not what it was"
    result = subprocess.run([python, "-W", "ignore", "-c", UNINSTALLED], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def files_of_sglang(directory: Path) -> dict[Path, tuple[int, int]]:
    (site,) = directory.glob("sglang/lib/python*/site-packages/sglang")
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in site.rglob("*.py")}


UNINSTALLED = """
import sys
from sglang.srt.plugins import load_plugins
from sglang.kernels.spec import KernelBackend
from sglang.srt.layers import activation, layernorm
load_plugins()
for layer in (layernorm.RMSNorm, layernorm.GemmaRMSNorm, activation.SiluAndMul, layernorm.Gemma4RMSNorm):
    assert KernelBackend.PLUGIN not in layer.capabilities
assert not [name for name in sys.modules if name.startswith("sgljit")]
"""


@needs_sglang
def test_one_line_says_which_part_runs_on_what():
    code = """
        for size in (64, 96):
            layernorm.RMSNorm(size)(torch.ones(2, size), backend=PLUGIN)
    """
    printed = run(code)
    assert printed.count("sgljit-sglang 0.1.0 with sglang 0.5.23: RMSNorm runs on rmsnorm\n") == 1
    assert sum(" runs on " in line and "after warm-up" not in line for line in printed.splitlines()) == 1
    assert "Failed to" not in printed


@needs_sglang
@on_devices
def test_norms_agree_with_float64(device):
    code = """
        for kind, bias in ((layernorm.RMSNorm, 0), (layernorm.GemmaRMSNorm, 1)):
            layer = kind(96, eps=1e-5)
            layer.weight.data.normal_()
            weight = layer.weight.data + bias
            assert kind.capabilities[PLUGIN] == {CapabilityRequirement.CUDA}
            for shape in ((7, 96), (2, 3, 96)):
                x, residual, more = (torch.randn(shape) for _ in range(3))
                torch.testing.assert_close(layer(x, backend=PLUGIN), rms(x, weight, 1e-5), rtol=1e-5, atol=1e-5)
                total = x + residual
                out, left = layer(x.clone(), residual.clone(), backend=PLUGIN)
                torch.testing.assert_close(out, rms(total, weight, 1e-5), rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(left, total)
                out, left = layer(x.clone(), residual.clone(), more, backend=PLUGIN)
                torch.testing.assert_close(left, x + (residual + more))
                torch.testing.assert_close(out, rms(x + (residual + more), weight, 1e-5), rtol=1e-5, atol=1e-5)
            strided = torch.randn(5, 192)[:, :96]
            torch.testing.assert_close(layer(strided, backend=PLUGIN), rms(strided, weight, 1e-5), rtol=1e-5, atol=1e-5)
    """
    run(code, device=device)


@needs_sglang
@on_devices
def test_the_newer_norms_of_gemma_agree_with_sglangs_native_code(device):
    code = """
        options = {"rtol": 1e-5, "atol": 1e-5}
        layer = layernorm.Gemma3RMSNorm(96, eps=1e-5)
        layer.weight.data.normal_()
        layer.forward_cuda = None  # SGLang's own is not called
        for shape in ((7, 96), (2, 3, 96)):
            x, residual = torch.randn(shape), torch.randn(shape)
            torch.testing.assert_close(layer(x, backend=PLUGIN), layer.forward_native(x), **options)
            expected = layer.forward_native(x, residual)
            torch.testing.assert_close(layer(x.clone(), residual.clone(), backend=PLUGIN), expected, **options)
        for changes in ({}, {"scale_shift": 1.0}, {"with_scale": False}, {"with_scale": False, "scale_shift": 1.0}):
            layer = layernorm.Gemma4RMSNorm(96, eps=1e-5, **changes)
            if layer.with_scale:
                layer.weight.data.normal_()
            layer.forward_cuda = None
            for x in (torch.randn(7, 96), torch.randn(2, 3, 96), torch.randn(5, 192)[:, :96]):
                torch.testing.assert_close(layer(x, backend=PLUGIN), layer.forward_native(x), **options)
        layer = layernorm.Gemma4RMSNorm(96, scale_shift=0.5)
        layer.forward_cuda = lambda x: "SGLang's"
        assert layer(torch.ones(2, 96), backend=PLUGIN) == "SGLang's"  # its own forwards disagree with each other
    """
    run(code, device=device)


@needs_sglang
def test_sglangs_trace_names_what_ran():
    code = """
        from sglang.kernels import fused_op
        fused_op.enable_fused_op_trace()

        def traced(layer, *args):
            type(layer).capabilities = {PLUGIN: set()}  # any device: this machine has no CUDA
            fused_op.clear_fused_op_trace()
            layer(*args)
            (record,) = fused_op.get_fused_op_trace()
            return record.backend

        for kind in (layernorm.RMSNorm, layernorm.GemmaRMSNorm, layernorm.Gemma3RMSNorm, layernorm.Gemma4RMSNorm):
            assert kind(64).auto_selected_backend() in (PLUGIN, None)
            assert traced(kind(64), torch.ones(2, 64)) == "plugin"
            assert traced(kind(64), torch.ones(2, 64).half()) == "torch"  # the weight has another dtype
            assert traced(kind(64), torch.ones(2, 64)[:0]) == "torch"
        assert traced(layernorm.RMSNorm(64, var_hidden_size=32), torch.ones(2, 64)) == "torch"
        assert traced(layernorm.RMSNorm(64), torch.ones(2, 64), torch.ones(2, 64)) == "torch"  # switched off
    """
    run(code, SGLJIT_ENGINES="norm,-fused_add_rmsnorm,strict")


RECORDED = """
from sglang.srt.layers import layernorm
layernorm.RMSNorm.forward_cuda = lambda self, *args, **kwargs: "SGLang's"
"""


@needs_sglang
def test_what_the_ops_do_not_take_goes_to_sglangs_code():
    code = """
        x = torch.ones(2, 64)
        def theirs(x, *args, **changes):
            attributes = changes.pop("attributes", {})
            layer = layernorm.RMSNorm(64, **changes)
            for name, value in attributes.items():
                setattr(layer, name, value)
            return layer(x, *args, backend=PLUGIN) == "SGLang's"

        assert theirs(x, var_hidden_size=32)
        assert theirs(x, cast_x_before_out_mul=True)
        assert theirs(x.half())
        assert theirs(x.double(), weight_dtype=torch.float64)
        assert theirs(x[:0])
        assert theirs(x, x)
        assert theirs(x, torch.ones(2, 64).half())
        assert theirs(x, None, None, torch.nn.Linear(64, 64))
        layer = layernorm.RMSNorm(64)
        layer.fuse_input_quant(torch.nn.Linear(64, 64))
        assert layer(x, backend=PLUGIN) == "SGLang's"

        class Other(layernorm.RMSNorm):
            def forward_cuda(self, *args):
                return "another norm"

        assert Other(64)(x, backend=PLUGIN) == "another norm"
        from sgljit_sglang import norms
        norms.is_batch_invariant_mode_enabled = lambda: True
        assert theirs(x)
    """
    run(code, before=RECORDED)


@needs_sglang
def test_a_build_that_fails_goes_to_sglangs_code_and_is_said_once(tmp_path):
    code = """
        layer, other = layernorm.RMSNorm(64), layernorm.RMSNorm(128)
        assert layer(torch.ones(2, 64), backend=PLUGIN) == "SGLang's"
        assert layer(torch.ones(2, 64), backend=PLUGIN) == "SGLang's"
        assert other(torch.ones(2, 128), backend=PLUGIN) == "SGLang's"
    """
    cold = {"SGLJIT_CACHE_DIR": str(tmp_path), "SGLJIT_JIT": "error"}
    printed = run(code, before=RECORDED, SGLJIT_ENGINES="on", **cold)
    assert printed.count("rmsnorm failed, and RMSNorm runs on the engine's own code until the process ends") == 1


@needs_sglang
def test_off_leaves_sglang_as_it_was():
    code = """
        from sglang.srt.plugins.hook_registry import HookRegistry
        for kind in (layernorm.RMSNorm, layernorm.GemmaRMSNorm, layernorm.Gemma3RMSNorm, layernorm.Gemma4RMSNorm):
            assert PLUGIN not in kind.capabilities
        assert not HookRegistry._hooks
        assert loaded() == set()
        assert "sgljit_sglang.backend" not in sys.modules
    """
    printed = run(code, SGLJIT_ENGINES="off")
    assert "sgljit-sglang 0.1.0 does nothing: SGLJIT_ENGINES=off" in printed


@needs_sglang
def test_a_list_chooses():
    code = """
        from sgljit_sglang import backend
        assert PLUGIN not in layernorm.GemmaRMSNorm.capabilities
        layer = layernorm.RMSNorm(64)
        assert loaded() == set()  # a family is imported at its first use
        assert layer(torch.ones(2, 64), torch.ones(2, 64), backend=PLUGIN) == "SGLang's"
        assert torch.is_tensor(layer(torch.ones(2, 64), backend=PLUGIN))
        assert backend._hooked == set()
        assert loaded() == {"norm"}
    """
    run(code, before=RECORDED, SGLJIT_ENGINES="rmsnorm")


@needs_sglang
def test_a_family_that_is_not_installed_is_said_once_and_stays_sglangs():
    code = """
        for size in (64, 128):
            assert layernorm.RMSNorm(size)(torch.ones(2, size), backend=PLUGIN) == "SGLang's"
    """
    printed = run(code, before=RECORDED, SGLJIT_ENGINES="on", SGLJIT_PLUGINS="sgljit-moe")
    (line,) = [line for line in printed.splitlines() if "rmsnorm failed, and RMSNorm runs on the engine's own" in line]
    assert "UnknownFamilyError" in line


@needs_sglang
@on_devices
def test_the_norm_of_q_and_k(device):
    code = """
        from sglang.srt.models import utils
        from sgljit_sglang import kernels
        weights = torch.randn(2, 64)
        qkv = torch.randn(5, 4, 64)
        q, k = qkv[:, :3], qkv[:, 3:]
        expected = rms(q, weights[0], 1e-6), rms(k, weights[1], 1e-6)
        assert utils.can_use_fused_inplace_qknorm(64, torch.float32)
        utils.fused_inplace_qknorm(q=q, k=k, q_weight=weights[0], k_weight=weights[1], head_dim=64, eps=1e-6)
        torch.testing.assert_close(q, expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(k, expected[1], rtol=1e-5, atol=1e-5)
        assert kernels.KERNELS._tried == {("fused_inplace_qknorm", 64, torch.float32, DEVICE): True}
        assert not utils.can_use_fused_inplace_qknorm(96, torch.float32)  # SGLang's own kernel does not take it
    """
    run(code, device=device)


@needs_sglang
@pytest.mark.parametrize("method", ["forward_plugin", "backend_eligible"])
def test_another_plugins_backend_is_left_to_it(method):
    before = f"""
        from sglang.srt.layers import layernorm

        def {method}(self, *args, **kwargs):
            return "another plugin's"

        layernorm.RMSNorm.{method} = {method}
    """
    printed = run("assert PLUGIN not in layernorm.RMSNorm.capabilities", before=before)
    assert f"sgljit-sglang 0.1.0 leaves RMSNorm to __main__.{method}, the backend of another plugin" in printed


@needs_sglang
def test_a_norm_in_a_compiled_graph():
    code = """
        layer = layernorm.RMSNorm(64)
        x = torch.randn(3, 64)
        expected = layer(x, backend=PLUGIN)
        compiled = torch.compile(lambda x: layer(x, backend=PLUGIN), fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), expected)
    """
    run(code)


@needs_sglang
@on_devices
def test_sglangs_pools_and_rotation_store_by_ours(device):
    code = """
        from types import SimpleNamespace as Named
        from sglang.srt.models import utils

        options = {"size": 32, "page_size": 4, "dtype": torch.bfloat16, "layer_num": 2, "device": DEVICE}
        options["enable_memory_saver"] = False
        pool = memory_pool.MHATokenToKVPool(head_num=2, head_dim=64, enable_alt_stream=False, **options)
        of_mla = memory_pool.MLATokenToKVPool(kv_lora_rank=512, qk_rope_head_dim=64, dcp_replicated=True, **options)
        layer, slots = Named(layer_id=1, k_scale=None, v_scale=None), torch.tensor([9, 2, 35])

        def stored(pool, *rows):
            for cache, part in zip((pool.get_key_buffer(1), pool.get_value_buffer(1)), rows):
                others = torch.ones(36, dtype=torch.bool)
                others[slots] = False
                torch.testing.assert_close(cache[slots], part)
                assert not cache[others].any()
            assert not pool.get_key_buffer(0).any()

        k, v = torch.randn(2, 3, 2, 64).bfloat16()
        pool.set_kv_buffer(layer, slots, k, v)
        stored(pool, k, v)
        latent, turned = torch.randn(3, 1, 512).bfloat16(), torch.randn(3, 1, 64).bfloat16()
        of_mla.set_mla_kv_buffer(layer, slots, latent, turned)
        stored(of_mla, torch.cat([latent, turned], -1), latent)
        assert counted() == {"store_cache": 1, "set_mla_kv_buffer": 1}, counted()

        utils.get_token_to_kv_pool = lambda: pool
        rotation = base.RotaryEmbedding(64, 64, 32, 10000, True, torch.bfloat16)
        q, k, v = torch.randn(3, 256).bfloat16(), *torch.randn(2, 3, 128).bfloat16()
        positions = torch.tensor([3, 0, 31])
        expected = [one.bfloat16() for one in rotation.forward_native(positions, q.float(), k.float())]
        argument = utils.create_fused_set_kv_buffer_arg(v, layer, Named(out_cache_loc=slots))
        rotation.forward_cuda(positions, q, k, fused_set_kv_buffer_arg=argument)
        torch.testing.assert_close([q, k], expected)
        stored(pool, k.view(3, 2, 64), v.view(3, 2, 64))
        assert counted()["apply_rope_inplace_with_kvcache"] == 1 and not theirs
    """
    run(code, before=ROTATIONS + STORES, device=device, SGLJIT_ENGINES="rope,kvcache,strict")


@needs_sglang
@on_devices
def test_sglangs_routing_chooses_experts_by_ours(device):
    code = """
        from sglang.srt.layers.moe import topk as routing

        routing._is_cuda, routing.fused_topk_deepseek = True, None  # FlashInfer's
        x, gates, bias = torch.randn(17, 32), torch.randn(17, 128), torch.randn(128)

        def check(result, scores, among):
            weights, ids = result
            best = among.topk(8).indices
            assert torch.equal(ids.long().sort().values, best.sort().values)
            chosen = scores.gather(1, ids.long())
            torch.testing.assert_close(weights, chosen / chosen.sum(1, keepdim=True))

        scores = gates.sigmoid()
        check(routing.fused_topk(x, gates, 8, True), gates.softmax(-1), gates)
        check(routing.fused_topk(x, gates, 8, True, bias, "sigmoid"), scores, scores + bias)
        check(routing.biased_grouped_topk_gpu(x, gates, bias, 8, True, 1, 1), scores, scores + bias)
        ranked = (scores + bias).unflatten(1, (8, -1))
        best = ranked.topk(2).values.sum(-1).topk(4).indices
        kept = torch.zeros(17, 8, dtype=torch.bool).scatter(1, best, True)
        among = ranked.masked_fill(~kept[..., None], -torch.inf).flatten(1)
        check(routing.biased_grouped_topk_gpu(x, gates, bias, 8, True, 8, 4), scores, among)
        assert counted() == {"topk_softmax": 1, "topk_sigmoid": 3} and not theirs, counted()
    """
    run(code, before=GATE, device=device)


@needs_sglang
@on_devices
def test_sglangs_fp8_quantises_by_ours(device):
    before = """
        from sglang.kernels.ops.quantization import fp8_kernel
        fp8_kernel.per_token_group_quant = module.per_token_group_quant
    """
    code = """
        from types import SimpleNamespace as Named
        from sglang.kernels import fused_op
        from sglang.srt.layers.activation import SiluAndMul
        from sglang.srt.layers.quantization import fp8_activation

        def check(result, rows, powers):
            q, scales = result
            expected, wanted = quantised(rows, powers)
            found = unpacked(scales, rows.shape[1] // 128) if powers else scales
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0, check_stride=False)
            others = (q.float() != expected.float()).float().mean()
            assert others < 0.01, others

        x = torch.randn(7, 1024).bfloat16()
        for powers in (False, True):
            layout = {"column_major_scales": True, "scale_tma_aligned": True, "scale_ue8m0": powers}
            check(fp8_kernel.sglang_per_token_group_quant_fp8(x, 128, **layout), x, powers)
        check(fp8_kernel.sglang_per_token_group_quant_fp8(x, 128), x, False)
        assert counted() == {"per_token_group_quant_fp8": 3} and not theirs, counted()

        class OnCuda(torch.Tensor):
            is_cuda = True

        fused_op._platform_key = lambda: "cuda"
        fused_op._platform = lambda: Named(device="cuda", backend="cuda", sm=100)
        fp8_activation.get_exec = lambda: Named(
            deterministic=Named(enable_deterministic_inference=False, rl_on_policy_target=None)
        )
        fp8_activation.get_lora = lambda: Named(enable_lora=False)
        fp8_activation.get_forward = lambda: Named(sp_active=False)
        product = Named(quant_method=object(), weight=torch.empty(64, 512))
        dense = object.__new__(fp8_activation.DenseSiluAndMulQuant)
        dense.enabled, dense.down_proj, dense.quant_method, dense.weight_shape = (
            True, product, product.quant_method, product.weight.shape
        )
        result = dense.forward_decode(x.as_subclass(OnCuda), SiluAndMul(), product)
        check([one.as_subclass(torch.Tensor) for one in result], activated(x, "dense"), True)
        assert counted()["silu_and_mul_quant"] == 1 and not theirs
    """
    before = QUANTIZATION + GROUPS + textwrap.dedent(before)
    run(code, before=before, device=device, SGLJIT_ENGINES="quant,activation,strict")
