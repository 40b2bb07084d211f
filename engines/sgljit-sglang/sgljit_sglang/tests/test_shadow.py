"""``SGLJIT_SHADOW`` at SGLang's seams: our ops against SGLang's own code, which is its native code here."""

from __future__ import annotations

import textwrap

from .process import needs_sglang, run
from .test_functions import ACTIVATIONS, GROUPS, QUANTIZATION, ROTATIONS, STORES

REPORT = """
import sgljit_engines

def compared():
    return {use.op: use.compared for use in sgljit_engines.report() if use.compared}

def lost():
    return {use.op: use.why for use in sgljit_engines.report() if "DisagreementError" in use.why}
"""

# SGLang's own kernels, in PyTorch.
KERNELS = """
from torch.nn.functional import gelu, silu
for name, function in (
    ("silu_and_mul", silu), ("gelu_and_mul", gelu), ("gelu_tanh_and_mul", lambda x: gelu(x, approximate="tanh"))
):
    def own(input, out=None, function=function):
        gate, up = input.chunk(2, dim=-1)
        result = function(gate) * up
        return result if out is None else out.copy_(result)
    setattr(functions, name, own)
"""

TURNS = """
def turn(x, cache, positions, is_neox):
    cos, sin = (half[:, None] for half in cache[positions].chunk(2, dim=-1))
    first, second = x.float().chunk(2, dim=-1) if is_neox else (x.float()[..., 0::2], x.float()[..., 1::2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    x.copy_(torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2))

def rotate(q, k, cos_sin_cache, positions, *, is_neox, rope_dim=0):
    for x in (q, k):
        turn(x, cos_sin_cache, positions, is_neox)

def rotate_and_store(q, k, v, k_cache, v_cache, cos_sin_cache, positions, out_loc, *, is_neox, rope_dim=0):
    rotate(q, k, cos_sin_cache, positions, is_neox=is_neox)
    assert k_cache.shape[0] in (6, 100), "it is a small one that is compared, or the one of the call"
    k_cache[out_loc], v_cache[out_loc] = k.flatten(1), v.flatten(1)

rope.apply_rope_inplace, rope.apply_rope_inplace_with_kvcache = rotate, rotate_and_store
"""


@needs_sglang
def test_activations_agree_and_are_called_as_ever():
    code = """
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
                x = torch.randn(32, 128).to(dtype) * 4
                out = torch.empty(32, 64, dtype=dtype)
                for _ in range(20):
                    getattr(functions, name)(x)
                    assert getattr(functions, name)(x, out) is out
        assert {op: 10 < number < 14 for op, number in compared().items()} == dict.fromkeys(compared(), True)
        assert len(compared()) == 3 and not lost(), str(sgljit_engines.report())
    """
    run(code, before=ACTIVATIONS + KERNELS + REPORT, SGLJIT_SHADOW="0.1")


@needs_sglang
def test_exact_gives_the_bits_of_sglangs_function():
    code = """
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x = (torch.randn(64, 512) * torch.randn(512).mul(1.5).exp()).to(dtype)
            gate, up = x.chunk(2, dim=-1)
            assert torch.equal(functions.silu_and_mul(x), silu(gate) * up)
            assert torch.equal(functions.gelu_and_mul(x), gelu(gate) * up)
        why = [(use.op, use.why) for use in sgljit_engines.report() if use.kind != "any"]
        assert why[:2] == [("silu_and_mul", "")] * 2 and "cannot be proven in torch.float32" in why[2][1], why
        assert len(why) == 3
        others = {use.op for use in sgljit_engines.report() if use.why.startswith("SGLJIT_ENGINES=exact: none of its")}
        assert others == sgljit_sglang.ADAPTER.parts.keys() - sgljit_sglang.ADAPTER.exact_ops
        assert loaded() == {"activation"}
    """
    run(code, before=ACTIVATIONS + KERNELS + REPORT, SGLJIT_ENGINES="exact,strict")


@needs_sglang
def test_a_hard_coded_style_of_rotation_is_found():
    code = """
        from sgljit_core import ops
        own = ops["rope"].apply_rope_inplace, ops["rope"].apply_rope_inplace_with_kvcache
        angles = torch.randn(32, 32)
        cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
        positions, slots = torch.tensor([3, 0, 31, 7, 7]), torch.tensor([9, 2, 0, 15, 4])
        caches = torch.zeros(2, 100, 128)

        def call(number, is_neox):
            q, k, v = torch.randn(5, 4, 64), torch.randn(5, 2, 64), torch.randn(5, 2, 64)
            for _ in range(number):
                rope.apply_rope_inplace(q, k, cache, positions, is_neox=is_neox)
                rope.apply_rope_inplace_with_kvcache(q, k, v, *caches, cache, positions, slots, is_neox=is_neox)

        call(600, False)
        call(600, True)
        assert compared() == {"apply_rope_inplace": 2, "apply_rope_inplace_with_kvcache": 2}, compared()
        assert not lost()
        from sgljit_sglang import kernels
        for name, op in zip(("apply_rope_inplace", "apply_rope_inplace_with_kvcache"), own):
            kernels.KERNELS.found[name] = lambda *args, is_neox, op=op: op(*args, is_neox=True)
        call(1500, True)
        assert not lost(), "it is right for this style"
        call(2000, False)
        assert lost().keys() == {"apply_rope_inplace", "apply_rope_inplace_with_kvcache"}, lost()
    """
    printed = run(code, before=ROTATIONS + TURNS + REPORT, SGLJIT_SHADOW="0.001", SGLJIT_ENGINES="rope")
    assert printed.count("apply_rope_inplace failed, and the rotation of q and k runs on the engine's own code") == 1


@needs_sglang
def test_stores_are_compared_by_the_rows_that_they_store():
    before = """
        def store(k, v, k_cache, v_cache, indices, *, size_limit=0, reserved_skip_index=0):
            assert len(k_cache) in (6, 100), "it is a small one that is compared, or the one of the call"
            assert not size_limit or len(k_cache) == size_limit
            k_cache[indices], v_cache[indices] = k, v

        def store_mla(kv_buffer, loc, cache_k_nope, cache_k_rope, num_warps=0, *, reserved_skip_index=0):
            kv_buffer[loc] = torch.cat([cache_k_nope, cache_k_rope], -1)

        kvcache.store_cache, mla.set_mla_kv_buffer = store, store_mla
    """
    code = """
        slots, caches, buffer = torch.tensor([9, 0, 2, 15, 0]), torch.zeros(2, 100, 64), torch.zeros(100, 1, 96)

        def call(number):
            for _ in range(number):
                kvcache.store_cache(*torch.randn(2, 5, 64), *caches, slots, size_limit=100)
                mla.set_mla_kv_buffer(buffer, slots, torch.randn(5, 1, 64), torch.randn(5, 1, 32))

        call(20)
        assert compared().keys() == {"store_cache", "set_mla_kv_buffer"} and not lost(), str(sgljit_engines.report())
        from sgljit_sglang import kernels
        kernels.KERNELS.found["store_cache"] = lambda k, v, k_cache, v_cache, indices: None
        call(20)
        assert lost().keys() == {"store_cache"}
    """
    run(code, before=STORES + textwrap.dedent(before) + REPORT, SGLJIT_SHADOW="0.3", SGLJIT_ENGINES="kvcache")


QUANTISES = """
def quantise(x, output_q=None, output_s=None, group_size=128, scale_ue8m0=False, fuse_silu_and_mul=False,
             masked_m=None, expected_m=None, column_major_scales=False, silu_and_mul_mode="legacy"):
    q, scale = quantised(activated(x, silu_and_mul_mode) if fuse_silu_and_mul else x, scale_ue8m0)
    if scale_ue8m0:
        scale = (scale.log2() + 127).to(torch.uint8).contiguous().view(torch.int32)
    if masked_m is not None:  # rows that are not counted have any content
        others = torch.arange(x.shape[1]) >= masked_m[:, None]
        q.view(torch.uint8)[others], scale[others] = 1, scale[others] + 1
    return q, scale

module.per_token_group_quant = quantise
"""


@needs_sglang
def test_quantisations_agree_and_exponents_in_another_order_are_found():
    code = """
        counts = torch.tensor([32, 0, 5], dtype=torch.int32)

        def call(number):
            for _ in range(number):
                x = torch.randn(3, 32, 1024).bfloat16() * 2
                x[:, 1, :128] = x[:, 1, 512:640] = 0
                for powers in (False, True):
                    form = {"scale_ue8m0": powers, "column_major_scales": powers}
                    module.per_token_group_quant(x[0], **form)
                    module.per_token_group_quant(x, masked_m=counts, **form)
                    for mode in ("legacy", "dense"):
                        module.per_token_group_quant(x[0], fuse_silu_and_mul=True, silu_and_mul_mode=mode, **form)
                    module.per_token_group_quant(x, fuse_silu_and_mul=True, masked_m=counts, **form)

        names = {"per_token_group_quant_fp8", "masked_group_quant_fp8", "silu_and_mul_quant"}
        names.add("silu_and_mul_masked_quant")
        call(12)
        assert compared().keys() == names and not lost(), str(sgljit_engines.report())
        from sgljit_sglang import kernels

        def swap(op):
            def swapped(x, q, scales, *args, **options):
                op(x, q, scales, *args, **options)
                if scales.dtype == torch.int32:
                    flipped = scales.clone(memory_format=torch.contiguous_format).view(torch.uint8).flip(-1)
                    scales.copy_(flipped.view(torch.int32))
            return swapped

        for name in names:
            kernels.KERNELS.found[name] = swap(kernels.KERNELS.found[name])
        call(40)
        assert lost().keys() == names, str(sgljit_engines.report())
    """
    before = QUANTIZATION + GROUPS + QUANTISES + REPORT
    run(code, before=before, SGLJIT_SHADOW="0.2", SGLJIT_ENGINES="quant,activation")


@needs_sglang
def test_norms_agree():
    before = """
        from sglang.srt.layers import layernorm
        for kind in (layernorm.RMSNorm, layernorm.GemmaRMSNorm, layernorm.Gemma3RMSNorm):
            kind.forward_cuda = lambda self, *args: self.forward_native(*args)
    """
    code = """
        for kind in (layernorm.RMSNorm, layernorm.GemmaRMSNorm, layernorm.Gemma3RMSNorm):
            layer = kind(96, eps=1e-5).bfloat16()
            layer.weight.data.normal_()
            for number in range(20):
                x, residual = torch.randn(2, 16, 96).bfloat16()
                layer(x, backend=PLUGIN)
                layer(x, residual, backend=PLUGIN)
        found = compared()
        assert found.keys() == {"rmsnorm", "fused_add_rmsnorm", "gemma_rmsnorm", "gemma_fused_add_rmsnorm"}, found
        assert not lost(), str(sgljit_engines.report())
    """
    run(code, before=textwrap.dedent(before) + REPORT, SGLJIT_SHADOW="0.3")
