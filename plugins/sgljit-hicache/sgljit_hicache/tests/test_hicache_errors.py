"""What wrong arguments get: the text, the same on every device, before anything moves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_hicache.plugin import FAMILY

family = ops["hicache"]
Call = dict[str, Any]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device


def good_call() -> Call:
    """16 rows of 64 bytes, 4 of them moved."""
    caches = {f"{kv}_cache_{side}": torch.zeros(16, 32, dtype=torch.int16) for kv in "kv" for side in ("dst", "src")}
    return {**caches, "indices_dst": torch.arange(4), "indices_src": torch.arange(4)}


def on_device(value: Any, device: torch.device) -> Any:
    """A copy that keeps the strides, and what shares memory with itself."""
    if not isinstance(value, torch.Tensor):
        return value
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return moved.copy_(value) if 0 not in value.stride() else moved


def run(call: Call) -> None:
    family.transfer_hicache_one_layer(**call)


CASES: dict[str, tuple[Callable[[Call], object], type[Exception], str]] = {
    "row size": (
        lambda c: c.update(v_cache_src=torch.zeros(16, 24, dtype=torch.int16)),
        TensorMatchError,
        "transfer_hicache_one_layer: the row size differs: k_cache_dst has rows of 64 bytes, v_cache_src of 48: "
        "Tensor<16, 32>[strides=<32, 1>, dtype=int16, device={device}] and "
        "Tensor<16, 24>[strides=<24, 1>, dtype=int16, device={device}]",
    ),
    "dtype": (
        lambda c: c.update(k_cache_src=torch.zeros(16, 32, dtype=torch.bfloat16)),
        TensorMatchError,
        "transfer_hicache_one_layer: the dtype differs: k_cache_dst and k_cache_src are "
        "Tensor<16, 32>[strides=<32, 1>, dtype=int16, device={device}] and "
        "Tensor<16, 32>[strides=<32, 1>, dtype=bfloat16, device={device}]",
    ),
    "rank": (
        lambda c: c.update(k_cache_dst=torch.zeros(32, dtype=torch.int16)),
        TensorMatchError,
        "transfer_hicache_one_layer: k_cache_dst must have at least two dimensions, rows and elements: "
        "Tensor<32>[strides=<1>, dtype=int16, device={device}]",
    ),
    "elements apart": (
        lambda c: c.update(v_cache_dst=torch.zeros(16, 32, 2, dtype=torch.int16)[..., 0]),
        TensorMatchError,
        "transfer_hicache_one_layer: v_cache_dst must have rows without gaps between their elements: "
        "Tensor<16, 32>[strides=<64, 2>, dtype=int16, device={device}]",
    ),
    "element_dim": (
        lambda c: c.update(element_dim=48),
        TensorMatchError,
        "transfer_hicache_one_layer: k_cache_dst has rows of 32 elements, but element_dim is 48: "
        "Tensor<16, 32>[strides=<32, 1>, dtype=int16, device={device}]",
    ),
    "strides of K and V": (
        lambda c: c.update(v_cache_src=torch.zeros(16, 40, dtype=torch.int16)[:, :32]),
        TensorMatchError,
        "transfer_hicache_one_layer: k_cache_src and v_cache_src must have the same strides: "
        "Tensor<16, 32>[strides=<32, 1>, dtype=int16, device={device}] and "
        "Tensor<16, 32>[strides=<40, 1>, dtype=int16, device={device}]",
    ),
    "three strides of rows": (
        lambda c: c.update(k_cache_dst=torch.zeros(2, 3, 2, 2, 4, 32, dtype=torch.int16)[:, 0, :, 0], element_dim=32),
        TensorMatchError,
        "transfer_hicache_one_layer: k_cache_dst must have its rows at one stride, or in pages at two: "
        "Tensor<2, 2, 4, 32>[strides=<1536, 256, 32, 1>, dtype=int16, device={device}]",
    ),
    "lengths": (
        lambda c: c.update(indices_src=torch.arange(5)),
        TensorMatchError,
        "Size mismatch for shape#0('number of indices'): expected 4 but got 5",
    ),
    "no rows": (
        lambda c: c.update(k_cache_src=torch.zeros(0, 32, dtype=torch.int16), v_cache_src=torch.zeros(0, 32).short()),
        IndexError,
        "transfer_hicache_one_layer: there are 4 indices, but k_cache_src has no rows: "
        "Tensor<0, 32>[strides=<32, 1>, dtype=int16, device={device}]",
    ),
    "index dtypes": (
        lambda c: c.update(indices_src=torch.arange(4, dtype=torch.int32)),
        TensorMatchError,
        "DType mismatch: expected int64 but got int32",
    ),
    "float indices": (
        lambda c: c.update(indices_dst=torch.arange(4.0)),
        TensorMatchError,
        "DType mismatch: expected one of [int32, int64] but got float32",
    ),
    "indices apart": (
        lambda c: c.update(indices_dst=torch.arange(8)[::2]),
        TensorMatchError,
        "Stride mismatch: expected a contiguous tensor",
    ),
    "rows of one memory": (
        lambda c: c.update(k_cache_dst=torch.zeros(1, 32, dtype=torch.int16).expand(16, 32)),
        TensorMatchError,
        "transfer_hicache_one_layer: k_cache_dst and v_cache_dst must have the same strides: "
        "Tensor<16, 32>[strides=<0, 1>, dtype=int16, device={device}] and "
        "Tensor<16, 32>[strides=<32, 1>, dtype=int16, device={device}]",
    ),
    "unroll": (
        lambda c: c.update(unroll=3),
        ValueError,
        "transfer_hicache_one_layer: unroll must be 1, 2, 4, 8, 16 or 32, got 3",
    ),
    "block_quota": (
        lambda c: c.update(block_quota=0),
        ValueError,
        "transfer_hicache_one_layer: block_quota must be at least 1, got 0",
    ),
}


@pytest.mark.parametrize(("change", "error", "text"), CASES.values(), ids=CASES)
def test_a_call_that_does_not_match(
    change: Callable[[Call], object], error: type[Exception], text: str, device: torch.device
):
    call = good_call()
    change(call)
    call = {name: on_device(value, device) for name, value in call.items()}
    before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(error) as raised:
        run(call)
    expected = text.format(device=device)
    assert expected == str(raised.value) or str(raised.value).endswith(f"\n- Root cause: {expected}"), raised.value
    for name, value in before.items():
        assert torch.equal(call[name], value)


def between_elements(values: torch.Tensor) -> torch.Tensor:
    """The same values in host memory, at an odd address."""
    data = bytearray(1 + values.nbytes)
    return torch.frombuffer(data, dtype=values.dtype, offset=1).copy_(values)


@pytest.mark.parametrize("name", ["indices_dst", "indices_src"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_indices_between_elements(name: str, dtype: torch.dtype):
    call = {**good_call(), "indices_dst": torch.arange(4).to(dtype), "indices_src": torch.arange(4).to(dtype)}
    call["k_cache_src"] += 1
    call[name] = between_elements(call[name])
    text = (
        f"transfer_hicache_one_layer: {name}: its address is not a multiple of its element size, {dtype.itemsize} bytes"
    )
    with pytest.raises(ValueError, match=f"^{text}: Tensor<4>"):
        run(call)
    assert (call["k_cache_dst"] == 0).all()


OVERLAPS: dict[str, tuple[Callable[[torch.Tensor], Call], str]] = {
    "rows of a destination": (
        lambda b: {"cache_dst": b.as_strided((8, 32), (16, 1)), "cache_src": torch.zeros(8, 32, dtype=b.dtype)},
        "rows of cache_dst overlap each other",
    ),
    "pages of a destination": (
        lambda b: {
            "cache_dst": b.as_strided((4, 4, 32), (64, 32, 1)),
            "cache_src": torch.zeros(16, 32, dtype=b.dtype),
        },
        "rows of cache_dst overlap each other",
    ),
    "one row on": (
        lambda b: {"cache_dst": b.view(-1, 32)[1:], "cache_src": b.view(-1, 32)[:-1]},
        "cache_dst and cache_src overlap",
    ),
    "one element on": (
        lambda b: {"cache_dst": b.view(-1, 64)[:, 1:33], "cache_src": b.view(-1, 64)[:, :32]},
        "cache_dst and cache_src overlap",
    ),
    "another stride": (
        lambda b: {"cache_dst": b.view(-1, 32), "cache_src": b.view(-1, 64)[:, :32]},
        "cache_dst and cache_src overlap",
    ),
}


@pytest.mark.parametrize(("make", "text"), OVERLAPS.values(), ids=OVERLAPS)
def test_caches_that_share_memory(make: Callable[[torch.Tensor], Call], text: str, device: torch.device):
    buffer = torch.zeros(1024, dtype=torch.int16, device=device)
    call = {name: value.to(device) for name, value in make(buffer).items()}
    rows = torch.arange(4, device=device)
    with pytest.raises(ValueError, match=f"^transfer_hicache_one_layer_mla: {text}: ") as raised:
        family.transfer_hicache_one_layer_mla(**call, indices_dst=rows, indices_src=rows)
    assert not buffer.any()
    doubt = (
        ". Rows with different strides must not overlap, and rows that cannot be proven disjoint count as overlapping"
    )
    assert str(raised.value).endswith(doubt) == ("cache_src" in text)


@pytest.mark.parametrize("name", ["indices_dst", "indices_src"])
def test_indices_inside_of_a_destination(name: str, device: torch.device):
    """The rows would overwrite them after their check: the CPU would take what was written for indices."""
    pool = torch.arange(32, device=device).view(4, 8)
    before, other = pool.clone(), torch.tensor([0, 1, 2], device=device)
    call = {"indices_dst": other, "indices_src": other, name: pool[0, :3]}
    src = torch.full_like(pool, 10**13)
    text = f"transfer_hicache_one_layer_mla: {name} and cache_dst overlap: a write of a row would change indices while"
    for is_checked in (True, False):
        with pytest.raises(ValueError, match=f"^{text}"):
            family.transfer_hicache_one_layer_mla(cache_dst=pool, cache_src=src, check_indices=is_checked, **call)
    assert torch.equal(pool, before)
    # Beside the rows, and in the source: nothing is written there.
    family.transfer_hicache_one_layer_mla(pool[1:], cache_src=src[:3], **call)
    assert torch.equal(pool[1:], src[1:])
    family.transfer_hicache_one_layer_mla(src[:, 3:], cache_src=pool[:, 3:], **call)


def test_k_and_v_in_one_place(device: torch.device):
    call = {name: on_device(value, device) for name, value in good_call().items()}
    call["v_cache_dst"] = call["k_cache_dst"]
    with pytest.raises(ValueError, match=r"^transfer_hicache_one_layer: k_cache_dst and v_cache_dst overlap: "):
        run(call)


def test_the_source_may_be_one_row_for_all(device: torch.device):
    src = torch.arange(32, dtype=torch.int16, device=device).expand(16, 32)
    dst = torch.zeros(16, 32, dtype=torch.int16, device=device)
    rows = torch.arange(16, device=device)
    family.transfer_hicache_one_layer_mla(dst, rows, src, rows)
    assert torch.equal(dst, src)


INDICES: dict[str, tuple[list[int], list[int], type[Exception], str]] = {
    "negative": (
        [0, 1, 2, 3],
        [4, 5, -1, -2],
        IndexError,
        "indices_src[2] is -1, out of range for a cache of 16 rows",
    ),
    "too large": ([0, 16, 2, 3], [4, 5, 6, 7], IndexError, "indices_dst[1] is 16, out of range for a cache of 16 rows"),
    "the first of several": (
        [0, 1, 99, 1],
        [4, 5, 6, 99],
        IndexError,
        "indices_dst[2] is 99, out of range for a cache of 16 rows",
    ),
    "twice": (
        [3, 1, 2, 1],
        [4, 5, 6, 7],
        ValueError,
        "indices_dst[3] is 1, as is indices_dst[1]: two rows would be written to one place",
    ),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("dst", "src", "error", "text"), INDICES.values(), ids=INDICES)
def test_bad_indices(
    dst: list[int], src: list[int], error: type[Exception], text: str, dtype: torch.dtype, device: torch.device
):
    call = {name: on_device(value, device) for name, value in good_call().items()}
    call["indices_dst"] = torch.tensor(dst, dtype=dtype, device=device)
    call["indices_src"] = torch.tensor(src, dtype=dtype, device=device)
    with pytest.raises(error) as raised:
        run({**call, "check_indices": True})
    assert str(raised.value) == f"transfer_hicache_one_layer: {text}"


def test_a_destination_that_is_also_a_source(device: torch.device):
    cache = torch.zeros(16, 32, device=device)
    dst, src = torch.tensor([1, 5, 2], device=device), torch.tensor([1, 6, 5], device=device)
    with pytest.raises(ValueError, match=re.escape("indices_src[2] is 5, and indices_dst[1] overwrites that row")):
        family.transfer_hicache_one_layer_mla(cache, dst, cache, src, check_indices=True)


def test_many_indices_are_checked(device: torch.device):
    """More than a block, more than a hash table's first size; bad in the last place only."""
    cache, other = torch.zeros(70_000, 4, device=device), torch.ones(70_000, 4, device=device)
    rows = torch.randperm(70_000, device=device)
    family.transfer_hicache_one_layer_mla(cache, rows, other, rows, check_indices=True)
    assert (cache == 1).all()
    rows[-1] = rows[0]
    with pytest.raises(ValueError, match=re.escape(f"indices_dst[69999] is {int(rows[0])}, as is indices_dst[0]: ")):
        family.transfer_hicache_one_layer_mla(cache, rows, other, rows, check_indices=True)


def test_nothing_to_do(device: torch.device):
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    cache, other = torch.ones(4, 8, device=device), torch.zeros(4, 8, device=device)
    family.transfer_hicache_one_layer_mla(cache, nothing, other, nothing, check_indices=True)
    family.transfer_hicache_one_layer(cache, other, nothing, cache.clone(), other.clone(), nothing)
    rows, empty = torch.arange(2, device=device), torch.empty(4, 0, device=device)
    family.transfer_hicache_one_layer_mla(empty, rows, empty.clone(), rows)
    table = torch.empty(0, dtype=torch.int64)
    family.transfer_hicache_all_layer_mla(table, rows, table, rows, cache_src_stride_bytes=8, cache_dst_stride_bytes=8)
    assert (cache == 1).all()


ALL_LAYERS: dict[str, tuple[Call, type[Exception], str]] = {
    "number of layers": (
        {"ptr_src": torch.zeros(3, dtype=torch.uint64)},
        TensorMatchError,
        r"Size mismatch for shape#0\('number of layers'\): expected 2 but got 3",
    ),
    "addresses": (
        {"ptr_src": torch.zeros(2)},
        TensorMatchError,
        r"DType mismatch: expected one of \[uint64, int64\] but got float32",
    ),
    "strides that differ": (
        {"cache_src_stride_bytes": 64},
        ValueError,
        "element_size is needed if the strides differ: 64 bytes at the source, 32 at the destination",
    ),
    "rows that overlap": (
        {"element_size": 48},
        ValueError,
        "rows of the destination overlap each other: rows of 48 bytes are 32 bytes apart",
    ),
    "pages that overlap": (
        {"page_size": 4, "cache_dst_page_stride_bytes": 100},
        ValueError,
        "pages of the destination overlap or interleave: a page takes 128 bytes, and pages are 100 bytes apart; for "
        "all layers at once, each page of a destination must end before the next begins",
    ),
    "pages that interleave": (
        {
            "page_size": 2,
            "element_size": 8,
            "cache_dst_stride_bytes": 16,
            "cache_dst_page_stride_bytes": 8,
        },
        ValueError,
        "pages of the destination overlap or interleave: a page takes 24 bytes, and pages are 8 bytes apart; for "
        "all layers at once, each page of a destination must end before the next begins",
    ),
    "no page size": (
        {"cache_dst_page_stride_bytes": 512},
        ValueError,
        "the page stride of the destination needs a page_size",
    ),
    "page size": ({"page_size": 0}, ValueError, "page_size must be at least 1 and less than 4294967295, got 0"),
    "no bytes": ({"element_size": 0}, ValueError, "element_size must be at least 1 byte, got 0"),
    "negative stride": (
        {"cache_src_stride_bytes": -32, "element_size": 32},
        ValueError,
        "the strides of the source must not be negative",
    ),
    "negative rows": ({"num_rows_dst": -1}, ValueError, "num_rows_dst must not be negative, got -1"),
    "negative index": (
        {"indices_src": torch.tensor([1, -3]), "check_indices": True},
        IndexError,
        r"indices_src\[1\] is -3; an index must not be negative",
    ),
    "index too large": (
        {"num_rows_dst": 1, "check_indices": True},
        IndexError,
        r"indices_dst\[1\] is 1, out of range for a cache of 1 rows",
    ),
}


@pytest.mark.parametrize("name", ["ptr_dst", "ptr_src"])
def test_addresses_between_elements(name: str):
    cache, rows = torch.zeros(4, 32, dtype=torch.uint8), torch.arange(2)
    tables = {key: torch.tensor([cache.data_ptr()]) for key in ("ptr_dst", "ptr_src")}
    tables[name] = between_elements(tables[name])
    text = f"{name}: its address is not a multiple of its element size, 8 bytes: Tensor<1>"
    with pytest.raises(ValueError, match=text):
        family.transfer_hicache_all_layer_mla(
            **tables, indices_dst=rows, indices_src=rows, cache_src_stride_bytes=32, cache_dst_stride_bytes=32
        )


@pytest.mark.parametrize(("change", "error", "text"), ALL_LAYERS.values(), ids=ALL_LAYERS)
def test_all_layers_that_do_not_match(change: Call, error: type[Exception], text: str):
    caches = [torch.zeros(4, 32, dtype=torch.uint8) for _ in range(4)]
    table = torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64)
    call = {
        "ptr_dst": table[:2],
        "indices_dst": torch.arange(2),
        "ptr_src": table[2:],
        "indices_src": torch.arange(2),
        "cache_src_stride_bytes": 32,
        "cache_dst_stride_bytes": 32,
    }
    with pytest.raises(error, match=text):
        family.transfer_hicache_all_layer_mla(**{**call, **change})


# ---- CUDA ----


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["k_cache_dst", "v_cache_src"])
def test_pageable_memory(name: str):
    call = {key: value.cuda() for key, value in good_call().items()}
    call[name] = call[name].cpu()
    text = (
        f"transfer_hicache_one_layer: {name} is in pageable host memory, which a kernel cannot access: allocate it "
        f"with pin_memory=True, or register it with CUDA: Tensor<16, 32>[strides=<32, 1>, dtype=int16, device=cpu]"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        run(call)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_pageable_memory_behind_addresses():
    cache, other = torch.zeros(16, 32), torch.zeros(16, 32, device="cuda")
    dst, src = (torch.tensor([tensor.data_ptr()], dtype=torch.int64) for tensor in (cache, other))
    rows = torch.arange(4, device="cuda")
    with pytest.raises(ValueError, match="transfer_hicache_all_layer_mla: ptr_dst is in pageable host memory"):
        family.transfer_hicache_all_layer_mla(
            dst, rows, src, rows, cache_src_stride_bytes=128, cache_dst_stride_bytes=128
        )


@pytest.mark.gpu
def test_memory_registered_in_part():
    """The first half of the cache is pinned, the second is not."""
    cache = torch.zeros(2**20, 4)
    half = cache.numel() * 4 // 2
    runtime = torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(cache.data_ptr(), half, 0)) == 0
    try:
        rows = torch.arange(4, device="cuda")
        other = torch.ones(16, 4, device="cuda")
        with pytest.raises(ValueError, match="cache_dst is in pageable host memory"):
            family.transfer_hicache_one_layer_mla(cache, rows, other, rows)
        family.transfer_hicache_one_layer_mla(cache[: 2**19], rows, other, rows)
        torch.cuda.synchronize()
        assert (cache[:4] == 1).all()
    finally:
        runtime.cudaHostUnregister(cache.data_ptr())


@pytest.mark.gpu
def test_indices_on_the_wrong_device():
    call = {key: value.cuda() for key, value in good_call().items()}
    indices = {key: value.cpu() for key, value in call.items() if key.startswith("indices")}
    text = (
        "transfer_hicache_one_layer: the indices are on cpu and k_cache_dst is on cuda:0: a transfer from or to a CUDA "
        "device needs its indices on that device"
    )
    with pytest.raises(TensorMatchError, match=re.escape(text)):
        run({**call, **indices})
    with pytest.raises(TensorMatchError, match="Device mismatch: expected cuda:0 but got cpu"):
        run({**call, "indices_src": indices["indices_src"]})


@pytest.mark.gpu
def test_addresses_on_the_device_and_indices_on_the_cpu():
    table, rows = torch.zeros(2, dtype=torch.int64, device="cuda"), torch.arange(2)
    with pytest.raises(TensorMatchError, match="the indices are on cpu and the addresses on cuda:0"):
        family.transfer_hicache_all_layer_mla(
            table, rows, table, rows, cache_src_stride_bytes=8, cache_dst_stride_bytes=8
        )


@pytest.mark.gpu
def test_addresses_of_device_memory_and_indices_on_the_cpu():
    """A copy by the CPU would end the process."""
    caches = [torch.zeros(4, 32), torch.zeros(4, 32, device="cuda")]
    tables = [torch.tensor([cache.data_ptr()], dtype=torch.int64) for cache in caches]
    rows = torch.arange(2)
    text = "the indices are on cpu and ptr_src is on cuda:0: a transfer from or to a CUDA device needs its indices on"
    with pytest.raises(TensorMatchError, match=text):
        family.transfer_hicache_all_layer_mla(
            tables[0], rows, tables[1], rows, cache_src_stride_bytes=128, cache_dst_stride_bytes=128
        )


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_two_devices_mixed():
    call = {key: value.cuda() for key, value in good_call().items()}
    call["v_cache_src"] = call["v_cache_src"].to("cuda:1")
    text = "two devices are mixed: the indices are on cuda:0 and v_cache_src is on cuda:1"
    with pytest.raises(TensorMatchError, match=text):
        run(call)


@pytest.mark.gpu
def test_checks_cannot_be_captured():
    call = {key: value.cuda() for key, value in good_call().items()}
    run({**call, "check_indices": True})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="indices cannot be checked while the stream is being captured"):
            run({**call, "check_indices": True})
        run(call)  # the capture is still good
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("page_size", [0, -1, 2**32 - 1])
def test_a_page_size_that_is_none_is_refused_for_one_layer_too(page_size: int):
    text = rf"page_size must be at least 1 and less than 4294967295, got {page_size}"
    caches = [torch.zeros(4, 16), torch.arange(2), torch.zeros(4, 16), torch.arange(2)]
    with pytest.raises(ValueError, match=text):
        family.transfer_hicache_one_layer_mla(*caches, page_size=page_size)
    with pytest.raises(ValueError, match=text):
        family.can_use_hicache_jit_kernel(element_size=16, page_size=page_size)


def test_a_page_size_changes_nothing_for_one_layer():
    dst, src = torch.zeros(4, 16), torch.rand(4, 16)
    family.transfer_hicache_one_layer_mla(dst, torch.tensor([3, 0]), src, torch.tensor([1, 2]), page_size=2)
    assert torch.equal(dst[[3, 0]], src[[1, 2]])
    assert not dst[1:3].any()


@pytest.mark.parametrize(
    ("chunk_rows", "group_rows", "wrong"),
    [
        (100, 32, "32, got 100"),
        (100, -50, "-50, got 100"),
        (-64, 32, "32, got -64"),
        (8192, 0, "1, got 8192"),
    ],
)
def test_a_chunk_that_is_not_whole_groups_is_refused(chunk_rows: int, group_rows: int, wrong: str):
    caches = [torch.zeros(4, 16, dtype=torch.uint8) for _ in range(4)]
    rows = torch.arange(4)
    launch = (3, 64, chunk_rows, group_rows, False)
    text = f"launch_one_layer: a chunk must be whole groups: expected 0 to 4096 rows in multiples of {wrong}"
    with pytest.raises(RuntimeError, match=f"{text}$"):
        FAMILY.host_module().launch_one_layer(*caches[:2], rows, *caches[2:], rows, None, None, *launch)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4), torch.zeros(3, dtype=torch.int64), torch.zeros(8, dtype=torch.int32)]
)
def test_a_launch_is_written_to_four_int64(wrong: torch.Tensor):
    with pytest.raises(RuntimeError, match=r"a launch is four int64 on the CPU$"):
        FAMILY.host_module().last_launch(wrong)
