"""Stores and reads keep every bit, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.dlpack import to_dlpack

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_kvcache import reference
from sgljit_kvcache.plugin import FAMILY

family = ops["kvcache"]
zeros = torch.zeros


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.mark.parametrize("op", list(FAMILY.declared()))
def test_it_keeps_every_bit(op, device):
    torch.manual_seed(0)
    for sample in FAMILY.declared()[op].samples(device):
        wanted = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in sample.items()}
        getattr(reference, op)(**wanted)
        getattr(family, op)(**sample)
        for name, x in sample.items():
            if isinstance(x, torch.Tensor):
                bits = torch.uint8 if x.itemsize == 1 else x.dtype
                assert torch.equal(x.view(bits), wanted[name].view(bits)), name


DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
)


PLAIN = (0, 0, 0)
# Elements of a head, and those between heads, behind the heads of a token and before all. Of one byte, each of the last
# four allows only narrow words, for another reason.
LAYOUTS = ((8, PLAIN), (8, (1, 14, 0)), (8, (0, 1, 0)), (8, (0, 0, 1)), (7, (1, 0, 0)))


def noise(count, size, dtype, device, layout=PLAIN):
    """Two heads in the midst of others, as random bytes: PyTorch does not copy those of each dtype as they are."""
    gap, behind, before = (elements * dtype.itemsize for elements in layout)
    size *= dtype.itemsize
    stride = 2 * (size + gap) + behind
    memory = torch.randint(256, ((count + 1) * stride + before,), dtype=torch.uint8, device=device)
    return memory.as_strided((count, 2, size), (stride, size + gap, 1), before)


def check_copies(kinds, layouts, device):
    """All memory of a cache is compared, also what lies between its rows."""
    k, v, *caches = (noise(count, *kinds[i % 2], device, layouts[i]) for i, count in enumerate((4, 4, 8, 8)))
    (_, k_dtype), (_, v_dtype) = kinds
    slots = torch.tensor([5, -1, 0, 7], device=device)
    wanted = [cache._base.clone().as_strided(cache.shape, cache.stride(), cache.storage_offset()) for cache in caches]
    for cache, x in zip(wanted, (k, v), strict=True):
        cache[[5, 0, 7]] = x[[0, 2, 3]]
    in_caches = {"k_cache": caches[0].view(k_dtype), "v_cache": caches[1].view(v_dtype), "indices": slots}
    family.store_cache(k.view(k_dtype), v.view(v_dtype), **in_caches)
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(cache._base, expected._base)
    slots[1] = 5
    k, v = (noise(4, *kind, device, layout) for kind, layout in zip(kinds, layouts, strict=False))
    family.gather_cache(**in_caches, k=k.view(k_dtype), v=v.view(v_dtype))
    for x, expected in zip((k, v), wanted, strict=True):
        assert torch.equal(x, expected[[5, 5, 0, 7]])


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES if hasattr(torch, name)], ids=str)
def test_rows_of_every_dtype_keep_their_bits(dtype, device):
    """Values may have another dtype than keys: each is copied to a cache of its own."""
    torch.manual_seed(0)
    for (size, layout), odd in itertools.product(LAYOUTS, range(5)):  # of one tensor, and of all
        check_copies(((size, dtype), (size, dtype)), [layout if odd in (i, 4) else PLAIN for i in range(4)], device)
    for size, v_size in ((1, 1), (8, 6), (7, 8), (32, 31)):
        check_copies(((size, dtype), (v_size, torch.bfloat16)), 4 * [PLAIN], device)
    for sizes in ((16, 8), (16, 1), (6, 2)):
        buffer, parts = noise(8, sum(sizes), dtype, device)[:, :1], [noise(4, n, dtype, device)[:, :1] for n in sizes]
        wanted, slots = buffer.clone(), torch.tensor([5, -1, 0, 7], device=device)
        family.set_mla_kv_buffer(buffer.view(dtype), slots, *(part.view(dtype) for part in parts))
        wanted[[5, 0, 7]] = torch.cat(parts, -1)[[0, 2, 3]]
        assert torch.equal(buffer, wanted)


def test_large_rows_of_whole_lines_and_others_are_copied(device):
    """On the CPU rows of whole lines of 64 bytes go past the caches, if there are many. Caches are poisoned."""
    torch.manual_seed(0)
    for size, before in ((4096, 0), (4096, 4), (4096 + 32, 0)):
        k, v = torch.randint(256, (2, 2200, size), dtype=torch.uint8, device=device)
        memory = torch.full((2, 2300 * size + 8), 7, dtype=torch.uint8, device=device)
        caches = memory[:, before : before + 2300 * size].view(2, 2300, size)
        slots = torch.randperm(2300, device=device)[:2200]
        slots[::7] = -1
        family.store_cache(k, v, *caches, slots)
        wanted = torch.full_like(memory, 7)
        rows = wanted[:, before : before + 2300 * size].view(2, 2300, size)
        rows[:, slots[slots >= 0]] = torch.stack((k, v))[:, slots >= 0]
        assert torch.equal(memory, wanted)
        got = torch.full((2, 2200, size), 7, dtype=torch.uint8, device=device)
        family.gather_cache(*caches, slots.abs(), *got)
        assert torch.equal(got, rows[:, slots.abs()])


class Packed:
    """A tensor of uint8 that says by DLPack that it is of uint4."""

    def __init__(self, x):
        self._x = x

    def __dlpack_device__(self):
        return self._x.__dlpack_device__()

    def __dlpack__(self, **_):
        capsule = to_dlpack(self._x)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 21).value = 4  # behind the code of the dtype
        return capsule


def test_elements_of_less_than_a_byte_are_refused():
    """Two of them may share a byte."""
    k, k_cache = Packed(zeros(2, 1, 8).byte()), Packed(zeros(4, 1, 8).byte())
    text = r"(?s)^store_cache\(\): Tensor match failed for k, .*expected elements of whole bytes but got uint4"
    with pytest.raises(TensorMatchError, match=text):
        family.store_cache(**stored("cpu", k=k, k_cache=k_cache))
    out, nope, rope = (zeros(2, 4, size).byte() for size in (12, 8, 4))
    text = r"(?s)^concat_mla_\w\(\): Tensor match failed for [qk]_nope, .*expected elements of whole bytes but got"
    for concat, last in ((family.concat_mla_q, rope), (family.concat_mla_k, rope[:, 0])):
        with pytest.raises(TensorMatchError, match=text):
            concat(Packed(out.fill_(7)), Packed(nope), Packed(last))
        assert (out == 7).all()
    loc = torch.arange(2)
    text = r"(?s)^set_mla_kv_buffer\(\): .* for k_nope, .*expected elements of whole bytes but got uint4"
    with pytest.raises(TensorMatchError, match=text):
        family.set_mla_kv_buffer(Packed(out[:, 0]), loc, Packed(nope[:, 0]), Packed(rope[:, 0]))


CHECKED = """
import torch
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
family = ops["kvcache"]
k, v = (torch.ones(2000, 1, 8, device="cuda") for _ in "kv")
caches = [torch.zeros(2000, 1, 8, device="cuda") for _ in "kv"]
slots = torch.arange(2000, device="cuda", dtype=torch.{dtype})
slots[1] = -1
family.store_cache(k, v, *caches, slots)
assert caches[0].sum() == 1999 * 8
slots[1500] = 2000
for read in (False, True):
    slots[1] = 1
    call = (*caches, slots, k, v) if read else (k, v, *caches, slots)
    try:
        (family.gather_cache if read else family.store_cache)(*call)
    except TensorMatchError as error:
        assert "Index out of range: element 1500 is 2000, and k_cache has 2000 rows" in str(error), error
    else:
        raise AssertionError("not refused")
slots[1500] = -1
try:
    family.gather_cache(*caches, slots, k, v)
except TensorMatchError as error:
    assert "element 1500 is -1" in str(error), error
else:
    raise AssertionError("not refused")
slots.copy_(torch.arange(2000))
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        family.store_cache(k, v, *caches, slots)
except TensorMatchError as error:
    assert "capture without SGLJIT_CHECK_INDICES=1" in str(error), error
else:
    raise AssertionError("captured")
"""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_slots_on_a_gpu_are_checked_where_the_environment_says_so(dtype):
    script = (sys.executable, "-c", CHECKED.format(dtype=dtype))
    environment = {**os.environ, "SGLJIT_CHECK_INDICES": "1"}
    result = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


UNCHECKED = """
import torch
from sgljit_core import ops
memory = torch.zeros(2, 8, 1, 8)
k = v = torch.ones(1, 1, 8)
ops["kvcache"].store_cache(k, v, memory[0, :4], memory[1, :4], torch.tensor([5]))  # in the memory, beyond the cache
assert memory.sum(dim=(0, 2, 3)).tolist() == [0, 0, 0, 0, 0, 16, 0, 0]
"""


@pytest.mark.parametrize("value", ["0", pytest.param(None, marks=pytest.mark.slow)])
def test_slots_on_the_cpu_are_checked_unless_the_environment_says_no(value):
    environment = {name: text for name, text in os.environ.items() if name != "SGLJIT_CHECK_INDICES"}
    environment |= {"SGLJIT_CHECK_INDICES": value} if value is not None else {}
    script = (sys.executable, "-c", UNCHECKED)
    result = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    if value is None:
        assert "Index out of range: element 0 is 5, and k_cache has 4 rows" in result.stderr
    else:
        assert result.returncode == 0, result.stderr


def stored(device, **changed):
    given = {name: zeros(2, 1, 8, device=device) for name in ("k", "v")}
    given |= {name: zeros(4, 1, 8, device=device) for name in ("k_cache", "v_cache")}
    return {**given, "indices": torch.arange(2, device=device), **changed}


BAD = {
    "dtype of k": ({"k": zeros(2, 1, 8).half()}, "k", "expected float32, the dtype of k_cache, but got float16"),
    "dtype of v_cache": (
        {"v_cache": zeros(4, 1, 8).half()},
        "v",
        "expected float16, the dtype of v_cache, but got float32",
    ),
    "dtype as wide": ({"k": zeros(2, 1, 8).int()}, "k", "expected float32, the dtype of k_cache, but got int32"),
    "size of v": ({"v": zeros(2, 1, 6)}, "v", "for a row: expected 8, that of v_cache, but got 6"),
    "heads of k_cache": ({"k_cache": zeros(4, 2, 8)}, "k_cache", "rows of each, such as heads: expected 1 but got 2"),
    "tokens of v": ({"v": zeros(3, 1, 8)}, "v", "number of rows: expected 2, the elements of indices, but got 3"),
    "dimensions of k": ({"k": zeros(8)}, "k", "Dimension mismatch"),
    "dtype of indices": ({"indices": zeros(2)}, "indices", "expected one of .int32, int64. but got float32"),
    "shape of indices": ({"indices": zeros(2, 1).long()}, "indices", "Dimension mismatch: expected 1 but got 2"),
    "stride of indices": ({"indices": zeros(4).long()[::2]}, "indices", "side by side, but got a stride of 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    apart = {key: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for key, x in changed.items()}
    arguments = stored(device, **{key: apart[key].copy_(x) for key, x in changed.items()})
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        family.store_cache(**arguments)


@pytest.mark.gpu
def test_an_index_on_another_device_is_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for indices, Tensor<.*Device mismatch: expected cuda"):
        family.store_cache(**stored("cuda", indices=torch.arange(2)))


def test_an_index_out_of_range_is_refused_on_the_cpu():
    for slot in (4, 1 << 40):
        given = stored("cpu", k=torch.ones(2, 1, 8), indices=torch.tensor([0, slot]))
        text = rf"(?s)for indices, Tensor<2>.*Index out of range: element 1 is {slot}, and k_cache has 4 rows"
        with pytest.raises(TensorMatchError, match=text):
            family.store_cache(**given)
        assert not given["k_cache"].any()
    with pytest.raises(TensorMatchError, match=r"(?s)for indices, .*element 0 is -1, and k_cache has 4 rows"):
        family.gather_cache(**stored("cpu", indices=torch.tensor([-1, 0])))


def test_shared_memory_is_refused(device):
    cache = zeros(4, 1, 8, device=device)
    for changed in ({"k_cache": cache, "v_cache": cache}, {"k_cache": cache, "v": cache[2:]}):
        with pytest.raises(ValueError, match=r"rows of [kv]_cache share memory"):
            family.store_cache(**stored(device, **changed))
    memory = torch.zeros(16, dtype=torch.int64, device=device)
    cache = memory.view(torch.float32).view(4, 1, 8)
    with pytest.raises(ValueError, match=r"k_cache shares memory with indices, .* must not write to an index"):
        family.store_cache(**stored(device, k_cache=cache, indices=memory[:2]))
    assert not memory.any()


def expect_one_of(got, candidates):
    assert torch.stack([got == one for one in candidates]).any(0).all()


def test_tokens_of_one_slot_change_no_other_and_leave_there_elements_of_their_own(device):
    torch.manual_seed(0)
    slots = torch.tensor([5, 2, 5, 5, -1], device=device)
    k, v = torch.randn(2, 5, 2, 1000, device=device)
    caches = [torch.full((8, 2, 1000), 7.0, device=device) for _ in "kv"]
    family.store_cache(k, v, *caches, slots)
    for cache, x in zip(caches, (k, v), strict=True):
        expect_one_of(cache[5], x[[0, 2, 3]])
        assert torch.equal(cache[2], x[1])
        assert (cache[[0, 1, 3, 4, 6, 7]] == 7).all()
    nope, rope = torch.randn(5, 512, device=device), torch.randn(5, 64, device=device)
    buffer = torch.full((8, 576), 7.0, device=device)
    family.set_mla_kv_buffer(buffer, slots, nope, rope)
    expect_one_of(buffer[5], torch.cat((nope, rope), 1)[[0, 2, 3]])
    assert (buffer[[0, 1, 3, 4, 6, 7]] == 7).all()
    packed, apart = (torch.full((8, 656), 0x55, dtype=torch.uint8, device=device) for _ in "ab")
    family.set_mla_kv_buffer_fp8(packed, slots, nope, rope)
    family.set_mla_kv_buffer_fp8(apart, torch.arange(5, device=device), nope, rope)
    expect_one_of(packed[5], apart[[0, 2, 3]])
    assert torch.equal(packed[2], apart[1])
    assert (packed[[0, 1, 3, 4, 6, 7]] == 0x55).all()


@pytest.mark.parametrize("op", ["set_mla_kv_buffer", "set_mla_kv_buffer_fp8"])
def test_a_slot_of_latent_rows_out_of_range_is_refused_on_the_cpu(op):
    for slot in (4, 1 << 40):
        columns = 656 if op.endswith("fp8") else 576
        buffer = torch.full((4, columns), 7.0).byte() if op.endswith("fp8") else torch.full((4, columns), 7.0)
        with pytest.raises(TensorMatchError, match=rf"for loc, (?s:.*)element 1 is {slot}, and kv_buffer has 4 rows"):
            getattr(family, op)(buffer, torch.tensor([0, slot]), torch.ones(2, 512), torch.ones(2, 64))
        assert (buffer == 7).all()


def test_latent_rows_are_gathered_as_two_slices_of_their_buffer(device):
    torch.manual_seed(0)
    buffer = torch.randn(8, 1, 576, device=device).bfloat16()
    slots = torch.tensor([6, 0, 6, 3], device=device)
    nope, rope = (torch.full((4, 1, size), torch.nan, dtype=torch.bfloat16, device=device) for size in (512, 64))
    family.gather_cache(buffer[..., :512], buffer[..., 512:], slots, nope, rope)
    assert torch.equal(torch.cat((nope, rope), -1), buffer[slots])
    again = torch.full_like(buffer, 7.0)
    family.set_mla_kv_buffer(again, slots, nope, rope)
    assert torch.equal(again[slots], buffer[slots])


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_blocks_may_be_any_distance_apart(size, heads_first, device):
    """All memory of the caches is compared, also what lies between their blocks."""
    torch.manual_seed(0)
    k, v = torch.randn(9, 4, 6, device=device), torch.randn(9, 4, 10, device=device)
    slots = torch.randperm(7 * size, device=device)[: min(9, 7 * size - 1)]
    slots[0] = -1
    k, v = k[: len(slots)], v[: len(slots)]
    for gap, behind in ((0, 0), (0, 5), (3, 0), (2, 7)):
        caches = []
        for x in (k, v):
            shape = (7, 4, size, x.shape[2]) if heads_first else (7, size, 4, x.shape[2])
            row = x.shape[2] + gap
            strides = (shape[1] * shape[2] * row + behind, shape[2] * row, row, 1)
            memory = torch.full((7 * strides[0],), 7.0, device=device)
            caches.append(memory.as_strided(shape, strides))
        wanted = [x._base.clone().as_strided(x.shape, x.stride()) for x in caches]
        reference.store_cache(k, v, *wanted, slots, heads_first=heads_first)
        family.store_cache(k, v, *caches, slots, heads_first=heads_first)
        for cache, expected in zip(caches, wanted, strict=True):
            assert torch.equal(cache._base, expected._base)
        read = [torch.full_like(x, 3.0) for x in (k, v)]
        family.gather_cache(*caches, slots.abs(), *read, heads_first=heads_first)
        expected = [torch.full_like(x, 3.0) for x in (k, v)]
        reference.gather_cache(*wanted, slots.abs(), *expected, heads_first=heads_first)
        assert all(map(torch.equal, read, expected))


def test_blocks_that_do_not_fit_are_refused(device):
    given, cache = stored(device), zeros(2, 2, 1, 8, device=device)
    apart = zeros(2, 2, 2, 1, 8, device=device)
    for changed, error, text in (
        ({"k_cache": cache[..., :6]}, TensorMatchError, "for k, .*for a row: expected 6, that of k_cache, but got 8"),
        ({"k_cache": zeros(2, 2, 2, 8, device=device)}, TensorMatchError, "such as heads: expected 1 but got 2"),
        ({"k_cache": cache.transpose(0, 3)}, TensorMatchError, "side by side, but got a stride of 16"),
        ({"k_cache": apart[:, 0].expand(2, 2, 3, 8)}, TensorMatchError, "rows of a block share memory"),
        ({"k_cache": zeros(2, 2, 2, 1, 8, device=device)}, TensorMatchError, "expected 3 but got 5"),
        ({"v_cache": cache, "k_cache": cache}, ValueError, "rows of k_cache share memory|rows of v_cache share memory"),
        (
            {"heads_first": True},
            ValueError,
            r"^k_cache: heads_first is for a cache of blocks, \[blocks, heads, block_si",
        ),
    ):
        with pytest.raises(error, match=f"(?s){text}"):
            family.store_cache(**{**given, **changed})
    family.store_cache(**{**given, "k_cache": apart[:, 0], "v_cache": apart[:, 1]})
    if device.type == "cpu":
        index = {"indices": torch.tensor([0, 4])}
        with pytest.raises(TensorMatchError, match="element 1 is 4, and k_cache has 4 rows"):
            family.store_cache(**{**given, "k_cache": apart[:, 0], "v_cache": apart[:, 1], **index})


@pytest.mark.parametrize("step", [(1, -1, 1), (1, 1, -1), (-1, -1, -1)], ids=str)
def test_blocks_in_reverse_are_written_and_their_memory_is_compared(step):
    """Tokens or heads that lie behind each other, in memory that begins at the last of them."""
    numpy = pytest.importorskip("numpy", reason="PyTorch has no negative strides")
    backwards = tuple(slice(None, None, one) for one in step)
    memory = numpy.full((2, 3, 4, 2, 8), 7, dtype=numpy.float32)
    k_cache, v_cache = (one[backwards] for one in memory)
    k, v = numpy.random.default_rng(0).standard_normal((2, 3, 2, 8), dtype=numpy.float32)
    slots = numpy.array([5, -1, 0])
    family.store_cache(k, v, k_cache, v_cache, slots)
    wanted = numpy.full_like(memory, 7)
    for cache, x in ((wanted[0][backwards], k), (wanted[1][backwards], v)):
        cache[1, 1], cache[0, 0] = x[0], x[2]
    assert (memory == wanted).all()
    with pytest.raises(ValueError, match="rows of k_cache share memory with each other or with other rows of v_cache"):
        family.store_cache(k, v, k_cache, k_cache, slots)
    with pytest.raises(ValueError, match=r"rows of k_cache share memory .* other rows of v,"):
        family.store_cache(k, memory[0, 0, :3], k_cache, v_cache, slots)
    inside = memory[0].reshape(-1).view(numpy.int64)[:3]
    inside[:] = (0, 1, 2)
    wanted = memory.copy()
    for caches, name in (((k_cache, v_cache), "k_cache"), ((v_cache, k_cache), "v_cache")):
        with pytest.raises(ValueError, match=f"^{name} shares memory with indices"):
            family.store_cache(k, v, *caches, inside)
    assert (memory == wanted).all()


@pytest.mark.parametrize("scale_ue8m0", [False, True])
def test_a_latent_row_in_fp8_is_within_half_a_step_of_the_exact_quotient(scale_ue8m0, device):
    torch.manual_seed(0)
    nope, rope = torch.randn(5, 512, device=device), torch.randn(5, 64, device=device).bfloat16()
    nope[1, :128], nope[2, 128], nope[3, 256] = 0, 1e30, torch.nan
    buffer = torch.full((8, 1, 656), 0x55, dtype=torch.uint8, device=device)
    slots = torch.tensor([6, 2, -1, 0, 5], device=device)
    family.set_mla_kv_buffer_fp8(buffer, slots, nope, rope.float(), scale_ue8m0=scale_ue8m0)
    assert (buffer[[1, 3, 4, 7]] == 0x55).all()
    stored, exact = buffer[[6, 2, 0, 5], 0], nope[[0, 1, 3, 4]].double().view(4, 4, 128)
    q, scale = stored[:, :512].view(torch.float8_e4m3fn).double().view(4, 4, 128), stored[:, 512:528]
    scale = scale.contiguous().view(torch.float32).double()
    assert q.isnan().sum() == 1
    assert torch.equal(q.isnan(), exact.isnan())
    exact, q = exact.nan_to_num(nan=0.0), q.nan_to_num(nan=0.0)
    wanted = (exact.abs().amax(-1) / 448).clamp(min=2.0**-126)
    if scale_ue8m0:
        fraction, exponent = torch.frexp(wanted)
        assert torch.equal(scale, torch.ldexp(torch.ones_like(wanted), exponent - (fraction == 0.5).int()))
    else:
        assert ((scale - wanted).abs() <= wanted * 2**-23).all()
    error = (q * scale[..., None] - exact).abs()
    assert (error <= (exact.abs() / 16 + scale[..., None] * 2**-10) * 1.001).all()
    assert torch.equal(stored[:, 528:].contiguous().view(torch.bfloat16), rope[[0, 1, 3, 4]])


@pytest.mark.parametrize("scale_ue8m0", [False, True])
def test_a_latent_row_in_fp8_has_the_bytes_of_the_quantisation_by_groups(scale_ue8m0, device):
    pytest.importorskip("sgljit_quant")
    torch.manual_seed(0)
    nope = torch.randn(9, 512, device=device) * torch.logspace(-38, 38, 9, device=device)[:, None]
    nope[1, :128], nope[2, 130], nope[3, 260], nope[4, 5] = 0, torch.inf, torch.nan, 3e38
    slots, rope = torch.arange(9, device=device), torch.zeros(9, 64, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        buffer = torch.full((9, 656), 0x55, dtype=torch.uint8, device=device)
        x = nope.to(dtype)
        family.set_mla_kv_buffer_fp8(buffer, slots, x, rope.to(dtype), scale_ue8m0=scale_ue8m0)
        q = torch.zeros(9, 512, device=device).to(torch.float8_e4m3fn)
        scales = torch.full((9, 4), torch.nan, device=device)
        ops["quant"].per_token_group_quant_fp8(x, q, scales, 128, eps=0.0, scale_ue8m0=scale_ue8m0)
        assert torch.equal(buffer[:, :512], q.view(torch.uint8))
        assert torch.equal(buffer[:, 512:528], scales.view(torch.uint8))


def test_latent_rows_in_fp8_that_do_not_fit_are_refused(device):
    good = {
        "kv_buffer": zeros(4, 1, 656, device=device).byte(),
        "loc": torch.arange(2, device=device),
        "k_nope": torch.ones(2, 512, device=device),
        "k_rope": torch.ones(2, 64, device=device),
    }
    memory = zeros(4 * 660, device=device).byte()
    for changed, name, text in (
        ({"kv_buffer": zeros(4, 656, device=device)}, "kv_buffer", "expected uint8 or float8_e4m3fn but got float32"),
        ({"kv_buffer": zeros(4, 576, device=device).byte()}, "kv_buffer", "a row: expected 656 but got 576"),
        ({"kv_buffer": memory.as_strided((4, 656), (656, 1), 1)}, "kv_buffer", "whole words of 4 bytes"),
        ({"kv_buffer": memory.as_strided((4, 656), (658, 1))}, "kv_buffer", "whole words of 4 bytes"),
        ({"k_nope": torch.ones(2, 256, device=device)}, "k_nope", "a row: expected 512 but got 256"),
        ({"k_rope": torch.ones(2, 32, device=device)}, "k_rope", "a row: expected 64 but got 32"),
        ({"k_rope": torch.ones(3, 64, device=device)}, "k_rope", "expected 2, the elements of loc, but got 3"),
        ({"k_rope": torch.ones(2, 64, device=device).half()}, "k_rope", "expected float32, the dtype of k_nope, but"),
        ({"loc": torch.arange(3, device=device)}, "k_nope", "expected 3, the elements of loc, but got 2"),
    ):
        said = rf"(?s)^set_mla_kv_buffer_fp8\(\): Tensor match failed for {name}, Tensor<.*{text}"
        with pytest.raises(TensorMatchError, match=said):
            family.set_mla_kv_buffer_fp8(**{**good, **changed})
    assert not good["kv_buffer"].any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_parts_of_heads_at_odd_addresses_and_of_odd_sizes(first, dtype, device):
    """All memory of an output is compared, also what lies between its heads."""
    for tokens, heads, nope, rope in ((1, 1, 1, 1), (3, 2, 7, 3), (5, 16, 128, 64)):

        def make(*shape):
            memory = torch.randint(0, 250, (*shape[:-1], shape[-1] + first + 1), device=device).to(dtype)
            return memory[..., first:-1]

        parts = make(tokens, heads, nope), make(tokens, heads, rope)
        shared = make(tokens, rope)
        for op, last in (("concat_mla_q", parts[1]), ("concat_mla_k", shared)):
            out = make(tokens, heads, nope + rope)
            wanted = out._base.clone()
            whole = torch.cat((parts[0], last if last.dim() == 3 else last[:, None].expand(-1, heads, -1)), -1)
            wanted[..., first:-1] = whole
            getattr(family, op)(out, parts[0], last)
            assert torch.equal(out._base, wanted)


def test_parts_of_heads_that_do_not_fit_are_refused(device):
    out, nope, rope = (torch.full((2, 3, size), 7.0, device=device) for size in (12, 8, 4))
    q = {"q": out, "q_nope": nope, "q_rope": rope}
    for changed, name, text in (
        ({"q": out[..., :11]}, "q", "a row: expected 12, those of q_nope and q_rope, but got 11"),
        ({"q_nope": nope[:, :2]}, "q", "the rows of each, such as heads: expected 2 but got 3"),
        ({"q_rope": rope[:1]}, "q", "the number of rows: expected 1 but got 2"),
        ({"q_rope": rope.half()}, "q_rope", "expected float32, the dtype of q, but got float16"),
        ({"q": out[0]}, "q", "Dimension mismatch: expected 3 but got 2"),
    ):
        said = rf"(?s)^concat_mla_q\(\): Tensor match failed for {name}, Tensor<.*{text}"
        with pytest.raises(TensorMatchError, match=said):
            family.concat_mla_q(**{**q, **changed})
    with pytest.raises(TensorMatchError, match=r"(?s)^concat_mla_k\(\): .* for k_rope, .*expected 2 but got 6"):
        family.concat_mla_k(out, nope, rope)
    with pytest.raises(ValueError, match="rows of q share memory with each other or with other rows of q_nope"):
        family.concat_mla_q(out, out[..., 2:10], rope)
    assert (out == 7).all()


def test_parts_of_a_latent_row_that_do_not_fit_are_refused_before_anything_is_written(device):
    buffer, loc = zeros(4, 1, 12, device=device), torch.arange(2, device=device)
    nope, rope = torch.ones(2, 1, 8, device=device), torch.ones(2, 1, 4, device=device)
    for arguments, name, text in (
        ((buffer, loc, nope, rope[..., :3]), "kv_buffer", "expected 11, those of k_nope and k_rope, but got 12"),
        ((buffer, loc, nope, rope[:1]), "k_rope", "number of rows: expected 2, the elements of loc, but got 1"),
        ((buffer, loc, nope, rope.half()), "k_rope", "expected float32, the dtype of kv_buffer, but got float16"),
        ((zeros(4, 2, 12, device=device), loc, nope, rope), "kv_buffer", "each, such as heads: expected 1 but got 2"),
    ):
        with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
            family.set_mla_kv_buffer(*arguments)
    assert not buffer.any()
