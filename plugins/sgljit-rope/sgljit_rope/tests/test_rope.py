"""The ops against float64, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_rope import reference
from sgljit_rope.plugin import FAMILY

family = ops["rope"]
ones = torch.ones
FP8 = torch.float8_e4m3fn
FLOATS = r"expected one of \[float32, float16, bfloat16\]"
ROUNDED = {torch.float32: 2**-20, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.mark.parametrize(
    "op",
    [x if x == "fused_qk_norm_rope" else pytest.param(x, marks=pytest.mark.slow) for x in FAMILY.declared()],
)
@pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in ROUNDED]
)
def test_it_agrees_with_float64(op, dtype, device):
    torch.manual_seed(0)
    samples = [sample for sample in FAMILY.declared()[op].samples(device) if next(iter(sample.values())).dtype == dtype]
    assert samples
    for sample in samples:
        wanted = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in sample.items()}
        getattr(reference, op)(**wanted)
        getattr(family, op)(**sample)
        for name, x in sample.items():
            if isinstance(x, torch.Tensor):
                close = ROUNDED.get(x.dtype, 0)
                torch.testing.assert_close(x, wanted[name], rtol=close, atol=4 * close)
        if "k_cache" in sample:
            kept = sample["out_loc"] >= 0
            slots = sample["out_loc"][kept].long()
            assert torch.equal(sample["k_cache"][slots], sample["k"][kept])
            assert torch.equal(sample["v_cache"][slots], sample["v"][kept])
        if "kv_buffer" in sample:
            kept = sample["out_loc"] >= 0
            rows = torch.cat((sample["k_nope"], sample["k_rope"]), -1)[kept]
            assert torch.equal(sample["kv_buffer"][sample["out_loc"][kept].long()].view_as(rows), rows)


@pytest.mark.parametrize("stored", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in ROUNDED]
)
def test_rounded_first_it_has_the_bits_of_two_ops(stored, dtype, device):
    pytest.importorskip("sgljit_norm")
    torch.manual_seed(0)
    after = "_with_kvcache" * stored
    matters = False
    for sample in FAMILY.declared()[f"fused_qk_norm_rope{after}"].samples(device):
        if sample["q"].dtype != dtype or (device.type == "cuda" and sample["q"].shape[2] % 16 != 0):
            continue
        once, twice, apart = (
            {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in sample.items()} for _ in range(3)
        )
        getattr(family, f"fused_qk_norm_rope{after}")(**once | {"round_first": False})
        getattr(family, f"fused_qk_norm_rope{after}")(**twice | {"round_first": True})
        norm = getattr(ops["norm"], "gemma_" * apart.pop("gemma") + "fused_inplace_qknorm")
        norm(*(apart[name] for name in ("q", "k")), *(apart.pop(f"{name}_weight") for name in "qk"), apart.pop("eps"))
        del apart["round_first"]
        getattr(family, f"apply_rope_inplace{after}")(**apart)
        for name, x in apart.items():
            if isinstance(x, torch.Tensor):
                if device.type == "cuda" and dtype == torch.float32:  # nothing is rounded, and sums have their order
                    torch.testing.assert_close(twice[name], x, rtol=2**-21, atol=2**-21)
                else:
                    assert torch.equal(twice[name], x), name
                matters |= not torch.equal(once[name], x)
    if dtype != torch.float32 or device.type == "cpu":
        assert matters == (dtype != torch.float32)


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("size", [64, 96, 128, 256])
def test_heads_together_have_the_bits_of_each_head_alone(size, is_neox, device):
    """On a GPU a thread takes two heads of a token where their number is even."""
    torch.manual_seed(0)
    q_weight, k_weight = torch.randn(2, size, device=device).bfloat16()
    for tokens in (1, 70, 3001):
        make = functools.partial(torch.randn, tokens, 2, size, device=device, dtype=torch.bfloat16)
        cos_sin = torch.randn(tokens + 3, size, device=device)
        positions = torch.randperm(tokens + 3, device=device)[:tokens]
        slots = torch.randperm(tokens + 5, device=device)[:tokens]
        slots[1::3] = -1
        q, k, v = make(), make(), make()
        k_cache, v_cache = (torch.full((tokens + 5, 2, size), 7.0, device=device).bfloat16() for _ in range(2))
        for norm, stored in itertools.product((False, True), repeat=2):
            name = ("fused_qk_norm_rope" if norm else "apply_rope_inplace") + "_with_kvcache" * stored
            results = []
            for heads in ([slice(None)], [slice(0, 1), slice(1, 2)]):
                tensors = [x.clone() for x in (q, k, v, k_cache, v_cache)]
                for of in heads:
                    part = [x[:, of] for x in tensors]
                    weights, (rows, caches) = [q_weight, k_weight] * norm, (part[: 2 + stored], part[3:] * stored)
                    where = [cos_sin, positions, *[slots] * stored]
                    getattr(family, name)(*rows, *weights, *caches, *where, is_neox=is_neox)
                results.append(tensors)
            for together, alone in zip(*results, strict=True):
                assert torch.equal(together, alone)
            assert not torch.equal(results[0][0], q)
            assert torch.equal(results[0][3], k_cache) != stored


def at_odd_addresses(x):
    memory = torch.full((*x.shape[:-1], x.shape[-1] + 1), 7, dtype=x.dtype, device=x.device)
    memory[..., 1:] = x
    return memory[..., 1:]


@pytest.mark.parametrize(
    "op",
    [
        "apply_rope_inplace",
        "fused_qk_norm_rope",
        *(
            pytest.param(f"{name}_with_kvcache", marks=pytest.mark.slow)
            for name in ("apply_rope_inplace", "fused_qk_norm_rope")
        ),
    ],
)
@pytest.mark.parametrize(("size", "paired"), [(64, 64), (7, 6), (80, 32)])
def test_slices_at_odd_addresses_and_heads_of_odd_sizes(op, size, paired, device):
    torch.manual_seed(0)
    for tokens, is_neox in itertools.product((1, 9), (True, False)):
        shapes = {"q": (tokens, 4, size), "k": (tokens, 2, size), "cos_sin_cache": (40, paired)}
        if "norm" in op:
            shapes |= {"q_weight": (size,), "k_weight": (size,)}
        if "kvcache" in op:
            shapes |= {"v": (tokens, 2, size), "k_cache": (20, 2, size), "v_cache": (20, 2, size)}
        given = {name: at_odd_addresses(torch.randn(shape).bfloat16().to(device)) for name, shape in shapes.items()}
        where = {"positions": torch.arange(tokens, device=device) * 3, "is_neox": is_neox}
        if "kvcache" in op:
            where["out_loc"] = torch.tensor([3, -1, 19, 0, 8, -1, 5, 6, 7], device=device)[:tokens]
        wanted = {name: x.clone() for name, x in given.items()}
        getattr(reference, op)(**wanted, **where)
        getattr(family, op)(**given, **where)
        for name, x in given.items():
            torch.testing.assert_close(x, wanted[name], rtol=2**-7, atol=2**-5)
            assert (x._base[..., 0] == 7).all(), "written beside the rows"


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("nope", "rope", "paired"), [(512, 64, 64), (7, 7, 6), (1, 96, 32), (0, 64, 64)])
def test_latent_rows_have_the_bits_of_the_rotation_and_lie_where_they_should(nope, rope, paired, is_neox, device):
    """At odd addresses and at even ones; all memory of what is written is compared."""
    torch.manual_seed(0)
    for tokens, gap in itertools.product((1, 9, 300), (0, 1)):

        def make(*shape, gap=gap):
            memory = torch.randn(*shape[:-1], shape[-1] + 2 * gap, device=device).bfloat16()
            return memory[..., gap : gap + shape[-1]]

        q, k, kv_buffer = make(tokens, 5, rope + 4)[..., 4:], make(tokens, 1, nope + rope), make(400, 1, nope + rope)
        cos_sin, positions = torch.randn(40, paired, device=device), torch.randint(40, (tokens,), device=device)
        slots = torch.randperm(400, device=device)[:tokens]
        slots[1::3] = -1
        wanted = [x._base.clone().as_strided(x.shape, x.stride(), x.storage_offset()) for x in (q, k, kv_buffer)]
        family.apply_rope_inplace(wanted[0], wanted[1][..., nope:], cos_sin, positions, is_neox=is_neox)
        wanted[2][slots[slots >= 0]] = wanted[1][slots >= 0]
        parts = k.split((nope, rope), dim=-1)
        family.apply_rope_inplace_with_mla_kvcache(q, *parts, kv_buffer, cos_sin, positions, slots, is_neox=is_neox)
        for x, expected in zip((q, k, kv_buffer), wanted, strict=True):
            assert torch.equal(x._base, expected._base)


def latent(device, **changed):
    arguments = {"q_rope": ones(2, 3, 8), "k_nope": ones(2, 12), "k_rope": ones(2, 1, 8), "kv_buffer": ones(4, 1, 20)}
    arguments |= {"cos_sin_cache": ones(5, 8), "positions": torch.arange(2), "out_loc": torch.arange(2), **changed}
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}


BAD_LATENT = {
    "dtype of q_rope": ({"q_rope": ones(2, 3, 8).to(FP8)}, "q_rope", f"{FLOATS} but got float8_e4m3fn"),
    "dtype of k_nope": ({"k_nope": ones(2, 12).half()}, "k_nope", "expected float32, the dtype of q_rope, but got flo"),
    "dtype of k_rope": ({"k_rope": ones(2, 8).half()}, "k_rope", "expected float32, the dtype of q_rope, but got floa"),
    "buffer in FP8": ({"kv_buffer": ones(4, 20).to(FP8)}, "kv_buffer", "float32, the dtype of k_rope, but got float8"),
    "one element": ({"q_rope": ones(2, 3, 1)}, "q_rope", "for head_dim: expected at least 2, a pair, but got 1"),
    "size of k_rope": ({"k_rope": ones(2, 6)}, "k_rope", "for a row: expected 8, that of q_rope, but got 6"),
    "size of a slot": (
        {"kv_buffer": ones(4, 1, 21)},
        "kv_buffer",
        "expected 20, those of k_nope and k_rope, but got 21",
    ),
    "tokens of k_nope": ({"k_nope": ones(3, 12)}, "k_nope", "number of rows: expected 2, that of q_rope, but got 3"),
    "tokens of k_rope": ({"k_rope": ones(3, 8)}, "k_rope", "number of rows: expected 2, that of q_rope, but got 3"),
    "heads of k_rope": ({"k_rope": ones(2, 3, 8)}, "kv_buffer", "rows of each, such as heads: expected 3 but got 1"),
    "heads of a slot": (
        {"kv_buffer": ones(4, 3, 20)},
        "kv_buffer",
        "rows of each, such as heads: expected 1 but got 3",
    ),
    "dimensions of k_nope": ({"k_nope": ones(12)}, "k_nope", "Dimension mismatch: expected 3 but got 1"),
    "rope_dim": ({"rope_dim": 6}, "cos_sin_cache", "expected rope_dim, 6, but got 8"),
    "rope_dim above": ({"cos_sin_cache": ones(5, 10)}, "cos_sin_cache", "up to 4 pairs, but got 10"),
    "positions": ({"positions": torch.arange(3)}, "positions", "expected 2 .*but got 3"),
    "dtype of out_loc": ({"out_loc": ones(2)}, "out_loc", "expected one of .int32, int64. but got float32"),
}


@pytest.mark.parametrize("case", BAD_LATENT)
def test_latent_rows_that_do_not_fit_are_refused_before_anything_is_written(case, device):
    changed, name, text = BAD_LATENT[case]
    arguments = latent(device, **changed)
    before = {key: x.clone() for key, x in arguments.items() if isinstance(x, torch.Tensor)}
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        family.apply_rope_inplace_with_mla_kvcache(**arguments)
    for key, x in before.items():
        assert torch.equal(arguments[key].view(torch.uint8), x.view(torch.uint8))


def test_latent_rows_in_memory_of_others_are_refused(device):
    both, buffer = ones(2, 24, device=device), ones(4, 20, device=device)
    for changed, names in (
        ({"k_nope": both[:, :12], "k_rope": both[:, 8:16]}, ("k_rope", "k_nope")),
        ({"q_rope": both.view(2, 3, 8), "k_rope": both[:, 16:]}, ("q_rope", "k_rope")),
        ({"kv_buffer": buffer, "k_nope": buffer[:2, 8:]}, ("kv_buffer", "k_nope")),
    ):
        text = "rows of {} share memory with each other or with other rows of {}".format(*names)
        with pytest.raises(ValueError, match=text):
            family.apply_rope_inplace_with_mla_kvcache(**latent(device) | changed)
    memory = torch.arange(200, device=device)
    inside = memory.view(torch.float32)[:80].view(4, 20)
    with pytest.raises(ValueError, match="kv_buffer shares memory with out_loc"):
        family.apply_rope_inplace_with_mla_kvcache(**latent(device) | {"kv_buffer": inside, "out_loc": memory[:2]})
    assert torch.equal(memory, torch.arange(200, device=device))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_an_index_of_latent_rows_out_of_range_is_refused_on_the_cpu(index):
    for name, table, value, count in (
        ("positions", "cos_sin_cache", 5, 5),
        ("positions", "cos_sin_cache", -1, 5),
        ("out_loc", "kv_buffer", 4, 4),
    ):
        arguments = latent("cpu", **{name: torch.tensor([0, value], dtype=index)})
        text = rf"(?s)for {name}, Tensor<2>.*Index out of range: element 1 is {value}, and {table} has {count} rows"
        with pytest.raises(TensorMatchError, match=text):
            family.apply_rope_inplace_with_mla_kvcache(**arguments)
        assert all((arguments[name] == 1).all() for name in ("q_rope", "k_rope", "kv_buffer"))


@pytest.mark.parametrize("op", ["apply_rope_inplace_with_kvcache"])
def test_tokens_of_one_slot_change_no_other_and_leave_there_elements_of_their_own(op, device):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 5, 2, 256, device=device)
    k_cache, v_cache = torch.full((2, 8, 2, 256), 7.0, device=device)
    cos_sin, positions = torch.randn(40, 256, device=device), torch.arange(5, device=device)
    slots = torch.tensor([5, 2, 5, 5, -1], device=device)
    getattr(family, op)(q, k, v, k_cache, v_cache, cos_sin, positions, slots)
    for cache, x in ((k_cache, k), (v_cache, v)):
        assert torch.stack([cache[5] == x[i] for i in (0, 2, 3)]).any(0).all()
        assert torch.equal(cache[2], x[1])
        assert (cache[[0, 1, 3, 4, 6, 7]] == 7).all()


def test_a_quarter_turn_is_known(device):
    for is_neox, wanted in ((True, [-3.0, -4, 1, 2]), (False, [-2.0, 1, -4, 3])):
        q = torch.tensor([[[1.0, 2, 3, 4]]], device=device)
        k = q.clone()
        cos_sin = torch.tensor([[9.0, 9, 9, 9], [0, 0, 1, 1]], device=device)
        family.apply_rope_inplace(q, k, cos_sin, torch.tensor([1], device=device), is_neox=is_neox)
        assert q.flatten().tolist() == k.flatten().tolist() == wanted


def test_what_it_turns_it_turns_back(device):
    for is_neox in (True, False):
        q, k = torch.randn(3, 4, 64, device=device), torch.randn(3, 2, 64, device=device)
        before = q.clone(), k.clone()
        angles = torch.rand(3, 32, device=device) * 7
        cos_sin, positions = torch.cat((angles.cos(), angles.sin()), -1), torch.arange(3, device=device)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        family.apply_rope_inplace(q, k, cos_sin, positions, is_neox=is_neox)
        assert (q - before[0]).norm() > 1
        family.apply_rotary_pos_emb_inplace(q, k, cos, sin, is_neox=is_neox, inverse=True)
        torch.testing.assert_close((q, k), before)
        family.apply_rotary_pos_emb_inplace(q, k, cos[None], sin[None], is_neox=is_neox)
        family.apply_rope_inplace(q, k, cos_sin, positions, is_neox=is_neox, inverse=True)
        torch.testing.assert_close((q, k), before)


def test_angles_that_do_not_fit_are_refused(device):
    for changed, name, text in (
        ({"k": ones(2, 1, 6)}, "k", "for a row: expected 8, that of q, but got 6"),
        ({"cos": ones(3, 8)}, "cos", "number of rows: expected 2 but got 3"),
        ({"sin": ones(2, 6)}, "sin", "expected elements for 4 pairs but got 3"),
        ({"sin": ones(2, 7)}, "sin", "each row must consist of 2 parts of equal size, got 7 elements"),
        ({"cos": ones(2, 10), "sin": ones(2, 10)}, "cos", "up to 4 pairs, but got 5"),
        ({"cos": ones(2, 8).long()}, "cos", f"{FLOATS} but got int64"),
        ({"sin": ones(2, 8).to(FP8)}, "sin", f"{FLOATS} but got float8_e4m3fn"),
        ({"q": ones(2, 3, 8).to(FP8), "k": ones(2, 1, 8).to(FP8)}, "q", f"{FLOATS} but got float8_e4m3fn"),
        ({"k": ones(2, 1, 8).half()}, "k", "expected float32, the dtype of q, but got float16"),
        ({"q": ones(2, 3, 1), "k": ones(2, 1, 1)}, "q", "for head_dim: expected at least 2, a pair, but got 1"),
    ):
        arguments = {"q": ones(2, 3, 8), "k": ones(2, 1, 8), "cos": ones(2, 8), "sin": ones(2, 8), **changed}
        with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
            family.apply_rotary_pos_emb_inplace(**{key: x.to(device) for key, x in arguments.items()})


def of_transformers(x, cos, sin):
    """As its models compute it, in float64."""
    x, cos, sin = x.double(), cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    if cos.shape[-1] != x.shape[-1]:  # gpt-oss
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return (x * cos) + (torch.cat((-second, first), dim=-1) * sin)


LAYOUTS = {  # of [batch, heads, sequence, head_dim]
    "contiguous": lambda make, b, h, s, d: make(b, h, s, d),
    "projection": lambda make, b, h, s, d: make(b, s, h, d).transpose(1, 2),
    "batch beside heads": lambda make, b, h, s, d: make(s, b, h, d).permute(1, 2, 0, 3),
    "slices": lambda make, b, h, s, d: make(b, s, h, 3 * d).transpose(1, 2)[..., d : 2 * d],
    "odd slices": lambda make, b, h, s, d: make(b, s, h, d + 1).transpose(1, 2)[..., 1:],
    "gaps": lambda make, b, h, s, d: make(b + 1, s + 2, h + 3, d + 4)[1:, 2:, 3:, 4:].transpose(1, 2),
    "gaps in the batch": lambda make, b, h, s, d: make(s + 1, b + 2, h + 3, d)[1:, 2:, 3:].permute(1, 2, 0, 3),
    "one head for all": lambda make, b, h, s, d: make(b, 1, s, d).expand(b, h, s, d),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_at_any_strides_turn_as_in_transformers(layout, parts, device):
    torch.manual_seed(0)
    single, half, brain = ROUNDED
    mixed = ((half, single, half), (brain, single, single), (single, brain, half), (brain, half, brain))
    dtypes = itertools.cycle(((single,) * 3, (half,) * 3, (brain,) * 3, *mixed))
    for batch, tokens, size in ((1, 7, 64), (3, 5, 64), (3, 1, 64), (2, 4, 6)):
        for (of_cos, cos_gap), (of_sin, sin_gap) in itertools.product({(1, 0), (batch, 0), (batch, 1)}, repeat=2):
            dtype, cos_dtype, sin_dtype = next(dtypes)
            make = functools.partial(torch.randn, device=device, dtype=dtype)
            q, k = (LAYOUTS[layout](make, batch, heads, tokens, size) for heads in (4, 2))
            cos = torch.randn(of_cos, tokens + cos_gap, size // parts, device=device).to(cos_dtype)[:, cos_gap:]
            sin = torch.randn(of_sin, tokens + sin_gap, size // parts, device=device).to(sin_dtype)[:, sin_gap:]
            for into in list(LAYOUTS)[:-1]:
                outs = [LAYOUTS[into](make, *x.shape) for x in (q, k)]
                bases = [out if out._base is None else out._base.fill_(7) for out in outs]
                for out in outs:
                    out.fill_(torch.nan)
                family.apply_rotary_pos_emb(q, k, cos, sin, *outs)
                for x, out, base in zip((q, k), outs, bases, strict=True):
                    close = ROUNDED[dtype]
                    wanted = of_transformers(x, cos, sin).to(dtype)
                    torch.testing.assert_close(out, wanted, rtol=close, atol=4 * close)
                    out.fill_(7)
                    assert torch.all(base == 7), "written beside the rows"


def test_outputs_may_be_parts_of_one_tensor(device):
    """Of which no two rows share memory, wherever those of the other lie between."""
    for order, axis in itertools.product(itertools.permutations(range(3)), range(4)):
        q_out, k_out = torch.zeros(4, 4, 4, 16, device=device).permute(*order, 3).chunk(2, dim=axis)
        q, k = torch.randn(2, *q_out.shape, device=device)
        cos, sin = torch.randn(2, len(q), *q.shape[2:], device=device)
        for parts in (slice(None), slice(q.shape[-1] // 2)):
            q_out.fill_(torch.nan), k_out.fill_(torch.nan)
            angles = cos[..., parts], sin[..., parts]
            family.apply_rotary_pos_emb(q, k, *angles, q_out, k_out)
            for x, out in ((q, q_out), (k, k_out)):
                torch.testing.assert_close(out, of_transformers(x, *angles).float(), rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("shape", [(0, 4, 3, 8), (1, 4, 0, 8), (3, 4, 0, 8), (2, 4, 3, 0), (2, 0, 3, 8)])
def test_no_elements_are_no_work(shape, device):
    batch, _, tokens, size = shape
    for of_angles, kv_heads in ((1, 0), (batch, 0), (1, 2), (batch, 2)):
        q, k = torch.ones(shape, device=device), torch.ones(batch, kv_heads, tokens, size, device=device)
        cos = torch.full((of_angles, tokens, size), 2.0, device=device)
        q_out, k_out = torch.zeros_like(q), torch.zeros_like(k)
        for angles in (cos, cos[..., : size // 2]):
            q_out.zero_(), k_out.zero_()
            family.apply_rotary_pos_emb(q, k, angles, torch.zeros_like(angles), q_out, k_out)
            assert torch.equal(q_out, 2 * q)
            assert torch.equal(k_out, 2 * k)


def test_one_angle_for_a_pair_gives_the_bits_of_two_alike(device):
    """Rounded once, too: so the two kinds of angles are two ways to say one thing."""
    for dtype, size in itertools.product(ROUNDED, (64, 6, 2)):
        q, k = (torch.randn(2, heads, 5, size, device=device, dtype=dtype) for heads in (4, 2))
        cos, sin = torch.randn(2, 2, 5, size // 2, device=device).to(dtype)
        outs = [[torch.full_like(x, torch.nan) for x in (q, k)] for _ in range(2)]
        family.apply_rotary_pos_emb(q, k, cos, sin, *outs[0])
        family.apply_rotary_pos_emb(q, k, cos.repeat(1, 1, 2), sin.repeat(1, 1, 2), *outs[1])
        assert torch.equal(outs[0][0], outs[1][0])
        assert torch.equal(outs[0][1], outs[1][1])


def apart(device, **changed):
    arguments = {"q": ones(3, 4, 2, 8), "k": ones(3, 1, 2, 8), "cos": ones(3, 2, 8), "sin": ones(3, 2, 8)}
    arguments |= {"q_out": torch.zeros(3, 4, 2, 8), "k_out": torch.zeros(3, 1, 2, 8), **changed}
    # As they lie: x.to(device) closes gaps.
    on_device = {
        name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for name, x in arguments.items()
    }
    return {name: on_device[name].copy_(x) for name, x in arguments.items()}


APART = {
    "q of three dimensions": ({"q": ones(4, 2, 8)}, "q", "Dimension mismatch: expected 4 but got 3"),
    "cos of two dimensions": ({"cos": ones(2, 8)}, "cos", "Dimension mismatch: expected 3 but got 2"),
    "batch of k": ({"k": ones(1, 1, 2, 8)}, "k", "Size mismatch for shape#0.'batch'.: expected 3 but got 1"),
    "sequence of k": ({"k": ones(3, 1, 1, 8)}, "k", "Size mismatch for shape#2.'sequence'.: expected 2 but got 1"),
    "size of k": ({"k": ones(3, 1, 2, 6)}, "k", "Size mismatch for shape#3.'head_dim'.: expected 8 but got 6"),
    "batch of cos": ({"cos": ones(2, 2, 8)}, "cos", "Size mismatch for shape#0.'batch'.: expected 3 but got 2"),
    "sequence of sin": ({"sin": ones(3, 3, 8)}, "sin", "Size mismatch for shape#1.'sequence'.: expected 2 but got 3"),
    "half of sin": ({"sin": ones(3, 2, 4)}, "sin", "Size mismatch for shape#2.'head_dim'.: expected 8 but got 4"),
    "half of cos": ({"cos": ones(3, 2, 4)}, "sin", "Size mismatch for shape#2.'head_dim / 2'.: expected 4 but got 8"),
    "less than half": (
        {"cos": ones(3, 2, 3), "sin": ones(3, 2, 3)},
        "cos",
        "Size mismatch for shape#2.'head_dim'.: expected 8 but got 3",
    ),
    "heads of q_out": ({"q_out": ones(3, 5, 2, 8)}, "q_out", "shape#1.'heads of q'.: expected 4 but got 5"),
    "heads of k_out": ({"k_out": ones(3, 4, 2, 8)}, "k_out", "shape#1.'heads of k'.: expected 1 but got 4"),
    "dtype of q": ({"q": ones(3, 4, 2, 8).double()}, "q", "DType mismatch"),
    "dtype of k": ({"k": ones(3, 1, 2, 8).half()}, "k", "DType mismatch: expected float32 but got float16"),
    "dtype of q_out": ({"q_out": ones(3, 4, 2, 8).half()}, "q_out", "DType mismatch: expected float32 but got float16"),
    "dtype of sin": ({"sin": ones(3, 2, 8).long()}, "sin", "DType mismatch: expected one of .*float32"),
    "gaps in q": ({"q": ones(3, 4, 2, 16)[..., ::2]}, "q", "Size mismatch for stride#3: expected 1 but got 2"),
    "gaps in cos": ({"cos": ones(3, 2, 16)[..., ::2]}, "cos", "Size mismatch for stride#2: expected 1 but got 2"),
    "odd, with half as many angles": (
        {"q": ones(3, 4, 2, 7), "k": ones(3, 1, 2, 7), "cos": ones(3, 2, 3), "sin": ones(3, 2, 3)},
        "cos",
        "Size mismatch for shape#2.'head_dim'.: expected 7 but got 3",
    ),
    "odd": (
        {"q": ones(3, 4, 2, 7), "k": ones(3, 1, 2, 7), "cos": ones(3, 2, 7), "sin": ones(3, 2, 7)}
        | {"q_out": ones(3, 4, 2, 7), "k_out": ones(3, 1, 2, 7)},
        "q",
        "Size mismatch for head_dim: expected an even number, pairs, but got 7",
    ),
}


@pytest.mark.parametrize("case", APART)
def test_heads_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = APART[case]
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        family.apply_rotary_pos_emb(**apart(device, **changed))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["k", "cos", "sin", "q_out", "k_out"])
def test_heads_on_another_device_are_refused(name):
    arguments = apart("cuda")
    with pytest.raises(TensorMatchError, match=rf"(?s)for {name}, Tensor<.*Device mismatch: expected cuda"):
        family.apply_rotary_pos_emb(**arguments | {name: arguments[name].cpu()})


SHARED = {  # the shape, the strides and the first element of tensors in one piece of memory
    "heads": {"q_out": ((3, 4, 2, 8), (16, 0, 8, 1), 0)},
    "sequences": {"q_out": ((3, 4, 2, 8), (0, 16, 8, 1), 0)},
    "sequences, in part": {"k_out": ((3, 1, 2, 8), (15, 16, 8, 1), 0)},
    "in place": {"q": ((3, 4, 2, 8), (64, 16, 8, 1), 0), "q_out": ((3, 4, 2, 8), (64, 16, 8, 1), 0)},
    "in place, crossed": {"k": ((3, 1, 2, 8), (8, 16, 24, 1), 0), "k_out": ((3, 1, 2, 8), (16, 16, 8, 1), 0)},
    "the next sequence": {"q": ((3, 4, 2, 8), (64, 16, 8, 1), 0), "q_out": ((3, 4, 2, 8), (64, 16, 8, 1), 64)},
    "outputs": {"q_out": ((3, 4, 2, 8), (64, 16, 8, 1), 0), "k_out": ((3, 1, 2, 8), (16, 16, 8, 1), 191)},
    "k and q_out": {"k": ((3, 1, 2, 8), (0, 0, 8, 1), 32), "q_out": ((3, 4, 2, 8), (64, 16, 8, 1), 0)},
    "sin and k_out": {"sin": ((1, 2, 8), (0, 8, 1), 40), "k_out": ((3, 1, 2, 8), (16, 16, 8, 1), 0)},
}


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("of_angles", [1, 3])
def test_outputs_in_memory_of_others_are_refused(case, of_angles, device):
    memory = torch.ones(512, device=device)
    changed = {name: memory.as_strided(*where) for name, where in SHARED[case].items()}
    arguments = apart(device, cos=ones(of_angles, 2, 8)) | changed
    with pytest.raises(ValueError, match=r"rows of \w_out share memory with each other or with rows of"):
        family.apply_rotary_pos_emb(**arguments)
    assert torch.all(memory == 1)


def given(device, **changed):
    arguments = {"q": ones(2, 3, 8), "k": ones(2, 1, 8), "v": ones(2, 1, 8), "q_weight": ones(8), "k_weight": ones(8)}
    arguments |= {"k_cache": ones(4, 1, 8), "v_cache": ones(4, 1, 8), "cos_sin_cache": ones(5, 8)}
    arguments |= {"positions": torch.arange(2), "out_loc": torch.arange(2), **changed}
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}


BAD = {
    "odd head": ({"q": ones(2, 3, 7), "k": ones(2, 1, 7)}, "q_weight|cos_sin_cache", "Size mismatch for a row"),
    "rope_dim odd": ({"cos_sin_cache": ones(5, 7)}, "cos_sin_cache", "expected a multiple of 2 elements, .* but got 7"),
    "rope_dim above": ({"cos_sin_cache": ones(5, 10)}, "cos_sin_cache", "up to 4 pairs, but got 10"),
    "rope_dim": ({"rope_dim": 6}, "cos_sin_cache", "expected rope_dim, 6, but got 8"),
    "dtype of q": ({"q": ones(2, 3, 8).long()}, "q", f"{FLOATS} but got int64"),
    "q and k in FP8": (
        {"q": ones(2, 3, 8).to(FP8), "k": ones(2, 1, 8).to(FP8)},
        "q",
        f"{FLOATS} but got float8_e4m3fn",
    ),
    "dtype of k": ({"k": ones(2, 1, 8).half()}, "k", "expected float32, the dtype of q, but got float16"),
    "dtype of v": ({"v": ones(2, 1, 8).to(FP8)}, "v", "expected float32, the dtype of q, but got float8_e4m3fn"),
    "dtype of q_weight": ({"q_weight": ones(8).to(FP8)}, "q_weight", f"{FLOATS} but got float8_e4m3fn"),
    "dtype of k_weight": ({"k_weight": ones(8).int()}, "k_weight", f"{FLOATS} but got int32"),
    "dtype of the table": ({"cos_sin_cache": ones(5, 8).to(FP8)}, "cos_sin_cache", f"{FLOATS} but got float8_e4m3fn"),
    "integers as the table": ({"cos_sin_cache": ones(5, 8).byte()}, "cos_sin_cache", f"{FLOATS} but got uint8"),
    "k_cache in FP8": (
        {"k_cache": ones(4, 1, 8).to(FP8)},
        "k_cache",
        "expected float32, the dtype of k, but got float8",
    ),
    "dtype of v_cache": ({"v_cache": ones(4, 1, 8).half()}, "v_cache", "float32, the dtype of k, but got float16"),
    "one element": (
        {"q": ones(2, 3, 1), "k": ones(2, 1, 1)},
        "q",
        "for head_dim: expected at least 2, a pair, but got 1",
    ),
    "size of k": ({"k": ones(2, 1, 6)}, "k", "for a row: expected 8, that of q, but got 6"),
    "size of v": ({"v": ones(2, 1, 6)}, "v", "for a row: expected 8, that of v_cache, but got 6"),
    "tokens of k": ({"k": ones(3, 1, 8)}, "k", "number of rows: expected 2, that of q, but got 3"),
    "tokens of v": ({"v": ones(3, 1, 8)}, "v", "number of rows: expected 2, that of q, but got 3"),
    "heads of v_cache": (
        {"v_cache": ones(4, 2, 8)},
        "v_cache",
        "the rows of each, such as heads: expected 1 but got 2",
    ),
    "weight": ({"k_weight": ones(7)}, "k_weight", "for a row: expected 8 but got 7"),
    "dtype of positions": ({"positions": ones(2)}, "positions", "expected one of .int32, int64. but got float32"),
    "shape of positions": ({"positions": ones(1, 2).long()}, "positions", "Dimension mismatch: expected 1 but got 2"),
    "number of positions": ({"positions": torch.arange(3)}, "positions", "expected 2 .*but got 3"),
    "dtype of out_loc": ({"out_loc": ones(2)}, "out_loc", "expected one of .int32, int64. but got float32"),
    "number of out_loc": ({"out_loc": torch.arange(3)}, "out_loc", "expected 2 .*but got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for ({name}), Tensor<.*{text}"):
        family.fused_qk_norm_rope_with_kvcache(**given(device, **changed))


@pytest.mark.gpu
def test_positions_on_another_device_are_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for positions, Tensor<.*Device mismatch: expected cuda"):
        family.fused_qk_norm_rope_with_kvcache(**{**given("cuda"), "positions": torch.arange(2)})


def test_an_index_out_of_range_is_refused_on_the_cpu():
    for name, table, value, count in (
        ("positions", "cos_sin_cache", 5, 5),
        ("positions", "cos_sin_cache", -1, 5),
        ("out_loc", "k_cache", 4, 4),
    ):
        arguments = given("cpu", **{name: torch.tensor([0, value])})
        text = rf"(?s)for {name}, Tensor<2>.*Index out of range: element 1 is {value}, and {table} has {count} rows"
        with pytest.raises(TensorMatchError, match=text):
            family.fused_qk_norm_rope_with_kvcache(**arguments)
        assert torch.equal(arguments["q"], ones(2, 3, 8))


def test_shared_memory_is_refused(device):
    x = ones(2, 4, 8, device=device)
    with pytest.raises(ValueError, match="rows of q share memory with each other or with other rows of k"):
        family.fused_qk_norm_rope_with_kvcache(**given(device) | {"q": x[:, :3], "k": x[:, 2:3]})


@pytest.mark.parametrize("eps", [-1.0, torch.nan])
def test_an_eps_that_is_not_at_least_0_is_refused(eps):
    arguments = given("cpu")
    with pytest.raises(ValueError, match=f"eps must be at least 0, got {eps:.0f}"):
        family.fused_qk_norm_rope_with_kvcache(**arguments, eps=eps)
    for name in ("v", "k_cache", "v_cache", "out_loc"):
        del arguments[name]
    with pytest.raises(ValueError, match=f"eps must be at least 0, got {eps:.0f}"):
        family.fused_qk_norm_rope(**arguments, eps=eps)
