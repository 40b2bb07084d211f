"""SGLang's functions on our ops: the same results as SGLang's native code, and SGLang's own where ours is not used.

SGLang's own kernels do not run here: a stand-in notes that it was called, and writes nothing.
"""

from __future__ import annotations

from .process import needs_sglang, on_devices, run

# In place of functions that launch SGLang's kernels. The hooks are put around them.
ROTATIONS = """
import os
os.environ["SGLANG_ROPE_CACHE_FP32"] = "1"
from sglang.kernels.ops.attention import rope
from sglang.srt.layers.rotary_embedding import base
theirs = []
rope.apply_rope_inplace = lambda *args, **kwargs: theirs.append("rotate")
rope.apply_rope_inplace_with_kvcache = lambda *args, **kwargs: theirs.append("store")
base._is_cpu = DEVICE == "cpu"
base.apply_rope_with_cos_sin_cache_inplace = rope.apply_rope_with_cos_sin_cache_inplace
"""


@needs_sglang
@on_devices
def test_rotations(device):
    code = """
        positions = torch.tensor([3, 0, 31, 7, 7])
        for rotary_dim, is_neox, index in ((64, True, torch.int64), (32, False, torch.int32), (64, False, torch.int64)):
            layer = base.RotaryEmbedding(64, rotary_dim, 32, 10000, is_neox, torch.float32)
            qkv = torch.randn(5, (4 + 2 + 2) * 64)
            q, k, _ = qkv.split([4 * 64, 2 * 64, 2 * 64], dim=1)
            expected = layer.forward_native(positions, q.contiguous(), k.contiguous())
            rest = qkv[:, 6 * 64 :].clone()
            result = layer.forward_cuda(positions.to(index), q, k)
            torch.testing.assert_close((q, k), expected)
            assert result[0] is q and torch.equal(qkv[:, 6 * 64 :], rest)
        assert not theirs
    """
    run(code, before=ROTATIONS, device=device)


@needs_sglang
@on_devices
def test_rotations_with_a_store(device):
    code = """
        positions, slots = torch.tensor([3, 0, 31, 7, 7]), torch.tensor([9, 2, 0, 15, 4])
        for is_neox in (True, False):
            layer = base.RotaryEmbedding(64, 64, 32, 10000, is_neox, torch.float32)
            qkv = torch.randn(5, (4 + 2 + 2) * 64)
            q, k, v = qkv.split([4 * 64, 2 * 64, 2 * 64], dim=1)
            expected = layer.forward_native(positions, q.contiguous(), k.contiguous())
            k_cache, v_cache = torch.full((2, 16, 2 * 64), torch.nan)
            argument = rope.FusedSetKVBufferArg(value=v, k_buffer=k_cache, v_buffer=v_cache, cache_loc=slots)
            layer.forward_cuda(positions, q, k, fused_set_kv_buffer_arg=argument)
            torch.testing.assert_close((q, k), expected)
            torch.testing.assert_close(k_cache[slots], expected[1])
            assert torch.equal(v_cache[slots], v)
            others = torch.ones(16, dtype=torch.bool)
            others[slots] = False
            assert k_cache[others].isnan().all() and v_cache[others].isnan().all()
        assert not theirs
    """
    run(code, before=ROTATIONS, device=device)


@needs_sglang
def test_rotations_that_stay_sglangs():
    code = """
        def rotate(heads=(4, 2), size=64, angles=64, dtype=torch.float32, k=None, **changes):
            q = torch.ones(5, heads[0], size, dtype=dtype)
            k = torch.ones(5, heads[1], size, dtype=dtype) if k is None else k
            cache = torch.ones(32, angles, dtype=changes.pop("cache", torch.float32))
            positions = changes.pop("positions", torch.arange(5))
            before = q.clone(), k.clone()
            theirs.clear()
            rope.apply_rope_inplace(q, k, cache, positions, is_neox=True, **changes)
            assert not theirs or (torch.equal(q, before[0]) and torch.equal(k, before[1]))
            return theirs

        assert not rotate()
        assert rotate(dtype=torch.float64)
        assert rotate(cache=torch.bfloat16)
        assert rotate(angles=32)  # SGLang passes the part of a head that is rotated
        assert rotate(rope_dim=32)
        assert rotate(k=torch.ones(5, 2, 64).half())
        assert rotate(k=torch.ones(5, 1, 64).expand(5, 2, 64))  # two heads in one place
        assert rotate(k=torch.ones(1, 2, 64).expand(5, 2, 64))
        assert rotate(positions=torch.arange(5).short())
        assert rotate(positions=torch.arange(4))

        def store(width=2 * 64, dtype=torch.float32, out_loc=torch.arange(5), **changes):
            q, k, v = torch.ones(5, 4, 64), torch.ones(5, 2, 64), torch.ones(5, 2, 64)
            caches = torch.full((2, 16, width), 7.0).to(dtype)
            theirs.clear()
            arguments = q, k, v, *caches, torch.ones(32, 64), torch.arange(5), out_loc
            rope.apply_rope_inplace_with_kvcache(*arguments, is_neox=True, **changes)
            assert not theirs or (caches == 7).all()
            return theirs

        assert not store()
        assert store(width=64)
        assert store(dtype=torch.bfloat16)
        assert store(out_loc=torch.arange(5).int())
        assert store(rope_dim=32)
    """
    run(code, before=ROTATIONS)


ACTIVATIONS = """
from sglang.kernels.ops.activation import activation as functions
theirs = []
for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
    setattr(functions, name, lambda *args, **kwargs: theirs.append(args) or "SGLang's")
"""


@needs_sglang
@on_devices
def test_activations(device):
    code = """
        from torch.nn.functional import gelu, silu
        for name, activation in (
            ("silu_and_mul", silu),
            ("gelu_and_mul", gelu),
            ("gelu_tanh_and_mul", lambda x: gelu(x, approximate="tanh")),
        ):
            function = getattr(functions, name)
            for shape in ((7, 96), (2, 3, 96)):
                x = torch.randn(shape)
                gate, up = x.double().chunk(2, dim=-1)
                expected = (activation(gate) * up).float()
                torch.testing.assert_close(function(x), expected)
                out = torch.full_like(expected, torch.nan)
                assert function(x, out) is out
                torch.testing.assert_close(out, expected)
            assert not theirs
            x, out = torch.ones(2, 32), torch.full((2, 16), torch.nan)
            ids = torch.zeros(2, dtype=torch.int32)
            assert function(x, out, ids) == "SGLang's"  # some of the experts
            assert function(x, out, expert_ids=ids, expert_step=1) == "SGLang's"
            for odd in (torch.ones(2, 18), torch.ones(0, 32), x.double(), torch.ones(32, 32).T[:, ::2]):
                assert function(odd) == "SGLang's"
            for wrong in (out.double(), out[:1], out.view(-1), torch.ones(2, 32)[:, ::2]):
                assert function(x, wrong) == "SGLang's"
            assert out.isnan().all()
            theirs.clear()
    """
    run(code, before=ACTIVATIONS, device=device)


@needs_sglang
def test_block_fp8_still_fuses_silu():
    run("""
        from types import SimpleNamespace as Named
        from sglang.kernels import fused_op
        from sglang.kernels.ops.quantization import per_token_group_quant as module
        from sglang.srt.layers.activation import SiluAndMul
        from sglang.srt.layers.quantization import fp8_activation

        fused_op._platform_key = lambda: "cuda"
        fused_op._platform = lambda: Named(device="cuda", backend="cuda", sm=100)
        fused_op.capabilities_satisfied = lambda *_: True  # a plugin's backend would be chosen now
        module.per_token_group_quant = lambda *args, **kwargs: "fused"
        modes = Named(enable_deterministic_inference=False, rl_on_policy_target=None)
        fp8_activation.get_exec = lambda: Named(deterministic=modes)
        fp8_activation.get_lora = lambda: Named(enable_lora=False)
        fp8_activation.get_forward = lambda: Named(sp_active=False)
        product = Named(quant_method=object(), weight=Named(shape=(64, 256), device="cuda:0"))
        helper = object.__new__(fp8_activation.DenseSiluAndMulQuant)
        helper.enabled, helper.down_proj, helper.quant_method = True, product, product.quant_method
        helper.weight_shape = (64, 256)
        x = Named(dtype=torch.bfloat16, is_cuda=True, ndim=2, shape=(4, 512), device="cuda:0")
        x.is_contiguous, x.data_ptr, x.stride = (lambda: True), (lambda: 0), (lambda _: 512)
        assert helper.forward_decode(x, SiluAndMul(), product) == "fused"
    """)


GATE = """
from sglang.kernels.ops.moe import moe_fused_gate as module
theirs = []
module.moe_fused_gate = lambda *args, **kwargs: theirs.append(args) or "SGLang's"
"""


@needs_sglang
@on_devices
def test_the_choice_of_experts(device):
    code = """
        from torch.nn.functional import softplus
        from sglang.srt.layers.moe.topk import fused_topk_torch_native

        scores = {"sigmoid": torch.sigmoid, "sqrtsoftplus": lambda x: softplus(x).sqrt()}
        for dtype in (torch.float32, torch.bfloat16):
            for renormalize in (False, True):
                gates = torch.randn(37, 128).to(dtype)
                weights, ids = module.moe_fused_gate(
                    gates, None, 8, scoring_func="softmax", renormalize=renormalize, routed_scaling_factor=None
                )
                expected = fused_topk_torch_native(gates[:, :1], gates.float(), 8, renormalize)
                torch.testing.assert_close(weights, expected[0], check_dtype=False)
                assert weights.dtype == torch.float32 and ids.dtype == torch.int32
                values = [gates.float().gather(1, one.long()) for one in (ids, expected[1])]
                assert torch.equal(*values)  # equal gates may change places
                for name, score in scores.items():
                    for scaled in (False, True):
                        bias = torch.randn(128)
                        options = {"routed_scaling_factor": 2.5, "apply_routed_scaling_factor_on_output": scaled}
                        weights, ids = module.moe_fused_gate(
                            gates, bias, topk=8, scoring_func=name, renormalize=renormalize, **options
                        )
                        values = score(gates.float())
                        best = (values + bias).topk(8).indices
                        assert torch.equal(ids.long().sort().values, best.sort().values)
                        chosen = values.gather(1, ids.long())
                        chosen = chosen / chosen.sum(1, keepdim=True) if renormalize else chosen
                        torch.testing.assert_close(weights, chosen * (2.5 if scaled else 1.0))
        for tokens, experts, groups, kept, topk in ((17, 256, 8, 4, 8), (3, 64, 32, 4, 8), (5, 64, 4, 4, 6)):
            gates, bias = torch.randn(tokens, experts), torch.randn(experts)
            for name, score in scores.items():
                options = {"num_expert_group": groups, "topk_group": kept, "scoring_func": name}
                weights, ids = module.moe_fused_gate(gates, bias, topk, renormalize=True, **options)
                values = score(gates)
                ranked = (values + bias).unflatten(1, (groups, -1))
                best = ranked.topk(2).values.sum(-1).topk(kept).indices
                chosen = torch.zeros(tokens, groups, dtype=torch.bool).scatter(1, best, True)
                best = ranked.masked_fill(~chosen[..., None], -torch.inf).flatten(1).topk(topk).indices
                assert torch.equal(ids.long().sort().values, best.sort().values)
                found = values.gather(1, ids.long())
                torch.testing.assert_close(weights, found / found.sum(1, keepdim=True))
        assert not theirs
    """
    run(code, before=GATE, device=device)


@needs_sglang
def test_choices_that_stay_sglangs():
    run(
        """
        gates, bias = torch.randn(3, 64), torch.randn(64)
        choose = module.moe_fused_gate
        options = {"scoring_func": "sigmoid", "moe_softcapping": 0.0, "num_expert_group": 1, "packed_out": None}
        assert choose(gates, bias, 4, **options) != "SGLang's"
        for changes in (
            {"num_expert_group": 8, "topk_group": 4, "scoring_func": "softmax"},
            {"num_expert_group": 64, "topk_group": 32},
            {"num_expert_group": 32, "topk_group": 1},  # whose two experts are too few
            {"num_expert_group": 8, "topk_group": 9},
            {"num_expert_group": 7, "topk_group": 1},
            {"num_fused_shared_experts": 1},
            {"moe_softcapping": 30.0},
            {"num_token_non_padded": torch.tensor(2)},
            {"packed_out": torch.empty(3, 4, dtype=torch.int32)},
            {"input_ids": torch.zeros(3), "bias_alt": bias, "bias_alt_token_id": 1},
            {"renormalize_epsilon": 1e-3},
            {"sqrtsoftplus_log1p": True},
            {"scoring_func": "softmax"},  # whose bias SGLang adds to the gates
            {"scoring_func": "another"},
            {"an_option_of_another_version": 1},
        ):
            assert choose(gates, bias, 4, **{**options, **changes}) == "SGLang's", changes
        assert choose(gates, None, 4, "sigmoid") == "SGLang's"
        assert choose(gates, bias, 4, "sigmoid", 1) == "SGLang's"
        for odd in (gates[:0], gates.double(), gates.T.contiguous().T, gates[0]):
            assert choose(odd, bias, 4) == "SGLang's"
        assert choose(gates, bias[:1], 4) == choose(gates, bias, 65) == choose(gates, bias, 0) == "SGLang's"
        assert choose(torch.randn(3, 896), torch.randn(896), 16) == "SGLang's"
        from sgljit_sglang import experts
        experts.is_batch_invariant_mode_enabled = lambda: True
        assert choose(gates, bias, 4, **options) == "SGLang's"
        """,
        before=GATE,
    )


QUANTIZATION = """
from sglang.kernels.ops.quantization import per_token_group_quant as module
theirs = []
module.per_token_group_quant = lambda *args, **kwargs: theirs.append(args) or "SGLang's"
"""


@needs_sglang
@on_devices
def test_the_quantisation_of_groups(device):
    code = """
        from sglang.kernels.ops.quantization.fp8_kernel import create_per_token_group_quant_fp8_output_scale as scales

        def quantize(x, size=128, columns=False, q=torch.float8_e4m3fn, **options):
            padded = {"scale_tma_aligned": columns, "scale_ue8m0": False}
            output_s = scales(x.shape, x.device, size, columns, **padded).fill_(torch.nan)
            output_q = torch.full(x.shape, 7.0).to(q)
            result = module.per_token_group_quant(x, output_q, output_s, size, **options)
            return result if result == "SGLang's" else (*result, output_q, output_s)

        for columns in (False, True):
            for size in (16, 128):
                x = torch.randn(7, 512).bfloat16()
                x[2, :size] = 0
                q, s, output_q, output_s = quantize(x, size, columns, scale_ue8m0=False, masked_m=None)
                assert q is output_q and s is output_s
                groups = x.float().unflatten(1, (-1, size))
                expected = groups.abs().amax(-1).clamp(min=1e-10) / 448
                torch.testing.assert_close(s.clone(), expected, rtol=1e-6, atol=0)
                restored = q.float().unflatten(1, (-1, size)) * s[..., None]
                assert ((restored - groups).abs() <= groups.abs() / 16 + s[..., None] / 512).all()
        assert not theirs
        x = torch.randn(7, 512).bfloat16()
        for odd in (x.half(), x.float(), x[:0], x.view(7, 2, 256)):
            assert quantize(odd) == "SGLang's"
        assert quantize(x, q=torch.int8) == quantize(x, masked_m=torch.ones(1)) == "SGLang's"
        assert quantize(x, scale_ue8m0=True) == quantize(x, fuse_silu_and_mul=True) == "SGLang's"
        q = x.to(torch.float8_e4m3fn)
        assert module.per_token_group_quant(x, q, torch.empty(7, 1, dtype=torch.int32)) == "SGLang's"
        odd = torch.randn(7, 640).bfloat16()  # SGLang sets the bytes behind the fifth exponent of a given output to 0
        packed = torch.empty(7, 2, dtype=torch.int32)
        assert module.per_token_group_quant(odd, odd.to(q.dtype), packed, scale_ue8m0=True) == "SGLang's"
        for options in (
            {"group_size": 32, "scale_ue8m0": True},
            {"out_dtype": torch.int8},
            {"output_q": q},
            {"sorted_token_ids": torch.zeros(7, dtype=torch.int32), "num_valid_tokens": 7},
            *({name: torch.zeros(2)} for name in ("sorted_token_ids", "num_tokens_post_padded", "num_valid_tokens")),
            {"an_option_of_another_version": 1},
            {"masked_m": torch.ones(7, dtype=torch.int32)},
        ):
            assert module.per_token_group_quant(x, **options) == "SGLang's", options
        rows, counts = torch.randn(3, 7, 512).bfloat16(), torch.tensor([7, 0, 3], dtype=torch.int32)
        assert module.per_token_group_quant(rows, masked_m=counts.long()) == "SGLang's"
        assert module.per_token_group_quant(rows, masked_m=counts[:2]) == "SGLang's"
        assert module.per_token_group_quant(rows[..., :508], masked_m=counts) == "SGLang's"
        before = len(theirs)
        assert module.per_token_group_quant(x, fuse_silu_and_mul=True, silu_and_mul_mode="dense") == "SGLang's"
        assert module.per_token_group_quant(rows, masked_m=counts) == "SGLang's", "only by name"
        assert len(theirs) == before + 2
    """
    run(code, before=QUANTIZATION, device=device)


# What SGLang's kernel computes, in PyTorch; the bytes of e4m3 are rounded as the kernel's conversion does.
GROUPS = """
from torch.nn.functional import silu

def activated(x, mode="legacy"):
    gate, up = x.chunk(2, dim=-1)
    return silu(gate.float()).bfloat16() * up if mode == "legacy" else (silu(gate.float()) * up.float()).bfloat16()

def quantised(y, scale_ue8m0):
    groups = y.float().unflatten(-1, (-1, 128))
    scale = groups.abs().amax(-1).clamp(min=1e-10) * (1 / torch.full((), 448.0))
    scale = torch.exp2(scale.double().log2().ceil()).float() if scale_ue8m0 else scale
    return (groups / scale[..., None]).clamp(-448, 448).flatten(-2).to(torch.float8_e4m3fn), scale

def unpacked(words, groups):
    return torch.exp2(words.clone(memory_format=torch.contiguous_format).view(torch.uint8)[..., :groups].float() - 127)
"""


@needs_sglang
@on_devices
def test_the_quantisation_of_groups_after_silu_of_counted_rows_and_by_powers_of_two(device):
    code = """
        from sglang.kernels.ops.quantization.fp8_kernel import create_per_token_group_quant_fp8_output_scale as scales

        counts = torch.tensor([7, 0, 3], dtype=torch.int32)
        for fused, masked, powers, columns, mode, hidden in (
            (True, False, True, True, "dense", 1024),  # a dense layer in block FP8
            (True, False, True, True, "dense", 640),
            (True, False, True, False, "legacy", 512),
            (True, False, False, True, "dense", 256),
            (True, True, False, True, "legacy", 1024),  # experts behind DeepEP
            (True, True, True, True, "legacy", 640),
            (False, True, False, True, "legacy", 512),
            (False, True, True, True, "legacy", 512),
            (False, False, True, True, "legacy", 640),
            (False, False, False, False, "legacy", 512),
        ):
            shape = (3, 7) if masked else (7,)
            x = torch.randn(*shape, hidden * (1 + fused)).bfloat16() * 3
            x[..., 2, :128] = 0
            more = {"silu_and_mul_mode": mode} if fused else {}
            more |= {"masked_m": counts, "expected_m": 4} if masked else {}
            form = (fused, masked, powers, columns, mode, hidden)
            q, s = module.per_token_group_quant(
                x, scale_ue8m0=powers, fuse_silu_and_mul=fused, column_major_scales=columns, **more
            )
            if columns or not powers:
                layout = scales((*shape, hidden), x.device, 128, columns, columns, powers)
                assert (s.shape, s.stride(), s.dtype) == (layout.shape, layout.stride(), layout.dtype), form
            if powers and hidden % 512:
                assert not s.contiguous().view(torch.uint8)[..., hidden // 128 :].any(), form
            wanted, scale = quantised(activated(x, mode) if fused else x, powers)
            found = unpacked(s, hidden // 128) if powers else s
            for expert in range(3) if masked else (slice(None),):
                rows = (expert, slice(int(counts[expert]))) if masked else (slice(None),)
                large = scale[rows] > 1e-9
                torch.testing.assert_close(found[rows][large], scale[rows][large], rtol=1e-6, atol=0)
                units = (q[rows].float() - wanted[rows].float()).abs() / wanted[rows].float().abs().clamp(min=2**-6)
                assert units.max() <= 0.13 if len(units) else True, form
                others = float((units > 0).float().mean()) if units.numel() else 0.0
                assert others <= 0.01, (form, others)
        assert not theirs
        rows = torch.randn(3, 7, 512).bfloat16()
        q = torch.full(rows.shape, 7.0).to(torch.float8_e4m3fn)
        s = torch.full((3, 7, 4), torch.nan)
        result = module.per_token_group_quant(rows, q, s, masked_m=counts)
        assert result[0] is q and result[1] is s and not theirs
        for expert, count in enumerate(counts.tolist()):
            assert not s[expert, :count].isnan().any() and s[expert, count:].isnan().all()
            assert (q[expert, count:].float() == 7).all(), "rows that are not counted stay"
    """
    run(code, before=QUANTIZATION + GROUPS, device=device, SGLJIT_ENGINES="quant,activation,strict")


STORES = """
from sglang.kernels.ops.kvcache import kvcache, mla_buffer, set_mla_kv_buffer as mla
from sglang.srt.mem_cache import memory_pool
theirs = []
kvcache.store_cache = memory_pool.store_cache = lambda *args, **kwargs: theirs.append(args)
mla.set_mla_kv_buffer = lambda *args, **kwargs: theirs.append(args)  # another: hooks go by the function
memory_pool._is_cuda = True
memory_pool.can_use_store_cache = mla.can_use_set_mla_kv_buffer = lambda *sizes: True
mla_buffer.is_arch_support_pdl = lambda: True
from sglang.srt.platforms import current_platform
current_platform.capabilities = type(current_platform.capabilities)(supports_triton=True)
"""


@needs_sglang
@on_devices
def test_stores(device):
    code = """
        for dtype, v_row, index in (
            (torch.bfloat16, 128, torch.int64), (torch.float16, 96, torch.int32), (torch.uint8, 128, torch.int64)
        ):
            qkv = torch.randint(0, 200, (5, 512)).to(dtype)
            k, v = qkv[:, 256:384], qkv[:, 384 : 384 + v_row]
            slots = torch.tensor([9, 0, 2, 15, 0], dtype=index)  # two rows of padding
            caches = [torch.full((16, row), 7, dtype=dtype) for row in (128, v_row)]
            sizes = {"row_dim": 128, "v_row_dim": v_row, "store_dtype": dtype}
            memory_pool._set_kv_buffer_impl(k, v, *caches, slots, device_module=None, size_limit=16, **sizes)
            for rows, cache in zip((k, v), caches):
                kept = [0, 2, 3]
                assert torch.equal(cache[slots[kept].long()], rows[kept])
                others = torch.ones(16, dtype=torch.bool)
                others[slots.long()] = False
                assert (cache[others] == 7).all()
            kept, whole = slots[[0, 2, 3]], torch.full((16, 1, 576), 7, dtype=dtype)
            latent = torch.randint(0, 200, (3, 1, 600)).to(dtype)
            nope, rope = latent[..., :512], latent[..., 512:576]
            mla_buffer.set_mla_kv_buffer_triton(whole, kept, nope, rope)
            assert torch.equal(whole[kept.long()], latent[..., :576])
            assert (whole[0] == 7).all()
        assert counted() == {"store_cache": 3, "set_mla_kv_buffer": 3} and not theirs, counted()
    """
    run(code, before=STORES, device=device, SGLJIT_ENGINES="kvcache,strict")


@needs_sglang
def test_stores_that_stay_sglangs():
    code = """
        k, v, k_cache, v_cache = torch.ones(2, 8), torch.ones(2, 8), torch.zeros(4, 8), torch.zeros(4, 8)
        slots = torch.tensor([1, 2])
        kvcache.store_cache(k, v, k_cache, v_cache, slots, reserved_skip_index=-1)
        assert not theirs and k_cache[1:3].all() and v_cache[1:3].all()
        for odd in (
            (k, v, k_cache, v_cache.half(), slots),
            (k, v, k_cache, v_cache, slots.short()),
            (k, v, k_cache, v_cache, torch.tensor([1, 0, 2, 0])[::2]),
            (k[:0], v[:0], k_cache, v_cache, slots[:0]),
            (k, v[:, ::2], k_cache, v_cache[:, :4], slots),
            (k, v[:, :4], k_cache, v_cache, slots),
        ):
            theirs.clear()
            kvcache.store_cache(*odd)
            assert len(theirs) == 1
        kvcache.store_cache(k, v, k_cache, v_cache, slots, reserved_skip_index=3)
        assert len(theirs) == 2
        mla.set_mla_kv_buffer(torch.zeros(4, 8), slots, torch.ones(2, 5), torch.ones(2, 2))
        assert len(theirs) == 3, "it is by default SGLang's, as ours is as fast"
    """
    run(code, before=STORES)


@needs_sglang
def test_a_function_whose_op_cannot_be_built_stays_sglangs(tmp_path):
    code = """
        assert functions.silu_and_mul(torch.ones(2, 32)) == "SGLang's"
        assert functions.silu_and_mul(torch.ones(2, 32)) == "SGLang's"
    """
    cold = {"SGLJIT_CACHE_DIR": str(tmp_path), "SGLJIT_JIT": "error"}
    printed = run(code, before=ACTIVATIONS, SGLJIT_ENGINES="on", **cold)
    assert printed.count("silu_and_mul failed, and silu_and_mul runs on the engine's own code") == 1


@needs_sglang
def test_functions_that_are_switched_off_have_no_hook():
    code = """
        from sgljit_sglang import backend
        assert backend._hooked == {"sglang.kernels.ops.attention.rope.apply_rope_inplace"}
        assert module.moe_fused_gate(torch.ones(2, 8), None, 2, "softmax") == "SGLang's"
    """
    run(code, before=GATE, SGLJIT_ENGINES="apply_rope_inplace")


@needs_sglang
@on_devices
def test_functions_in_a_compiled_graph(device):
    code = """
        def call(x, gates, bias, q, k):
            y = functions.silu_and_mul(x)
            weights, ids = module.moe_fused_gate(gates, bias, 4, scoring_func="sigmoid")
            rope.apply_rope_inplace(q, k, angles, positions, is_neox=True)
            return y, weights, ids, q, k

        angles, positions = torch.randn(8, 64), torch.arange(3)
        x, gates, bias, q, k = torch.randn(3, 64), torch.randn(3, 32), torch.randn(32), *torch.randn(2, 3, 2, 64)
        expected = call(x, gates, bias, q.clone(), k.clone())
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        for one, other in zip(compiled(x, gates, bias, q.clone(), k.clone()), expected):
            assert torch.equal(one, other)
        assert not theirs
    """
    run(code, before=ROTATIONS + ACTIVATIONS + GATE, device=device)
