"""Transfers on CUDA: the kernels compile with no GPU present; with one, values, streams, graphs and launches."""

from __future__ import annotations

import itertools

import pytest
import torch

from sgljit_core import CppType, ops, override_cuda_arch
from sgljit_hicache import reference, samples
from sgljit_hicache.plugin import FAMILY
from sgljit_tools.testing import build_variant

from .configurations import LAYOUTS, assert_same_bytes, check, make_indices, make_side, noise, random_transfer

family = ops["hicache"]

# Where a kernel finds the addresses of the caches; of csrc/hicache_params.h.
ONE_LAYER, MANY_LAYERS, LAYER_TABLES = (CppType(f"hicache::{t}") for t in ("Layers<1>", "Layers<96>", "LayerTables"))

ROW_BYTES = [16, 128, 576, 2048, 4112, 65536]
DIRECTIONS = [("cuda", "host"), ("host", "cuda"), ("cuda", "cuda")]


def last_launch() -> tuple[int, ...]:
    """Blocks, threads, and rows of a chunk and of a group of the last launch."""
    launch = torch.zeros(4, dtype=torch.int64)
    FAMILY.host_module().last_launch(launch)
    return tuple(launch.tolist())


ARCHS = [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=() if arch == (9, 0) else pytest.mark.slow, id=str(arch)) for arch in ARCHS]
)
@pytest.mark.parametrize(
    "row_bytes", [ROW_BYTES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in ROW_BYTES[1:])]
)
def test_kernels_compile_without_a_gpu(row_bytes: int, arch: tuple[int, int]):
    with override_cuda_arch(*arch):
        for caches, *rest in (
            (2, 32, False, torch.int64, ONE_LAYER),
            (1, 8, True, torch.int32, MANY_LAYERS),
            (2, 32, True, torch.int64, LAYER_TABLES),
        ):
            build_variant(FAMILY, "hicache.cuh", "hicache::copy_rows", row_bytes, 16, caches, *rest)


@pytest.mark.parametrize("word", [1, 2, 4, 8])
def test_rows_of_smaller_words_compile_without_a_gpu(word: int):
    with override_cuda_arch(8, 0):
        for row_words in (25, 512):
            shape = (row_words * word, word, 2, 32, True, torch.int32, MANY_LAYERS)
            build_variant(FAMILY, "hicache.cuh", "hicache::copy_rows", *shape)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["transfer_hicache_one_layer", "transfer_hicache_one_layer_mla"])
def test_samples_of_one_layer(name: str):
    for sample in getattr(samples, name)(torch.device("cuda")):
        expected = {name: sample[name].clone() for name in sample if name.endswith("cache_dst")}
        getattr(reference, name)(**{**sample, **expected})
        getattr(family, name)(**sample)
        torch.cuda.synchronize()
        for name_of_dst, wanted in expected.items():
            assert_same_bytes(sample[name_of_dst], wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("row_bytes", [*ROW_BYTES, 100, 1001])
@pytest.mark.parametrize("num_caches", [1, 2])
def test_row_sizes(row_bytes: int, num_caches: int, direction: tuple[str, str]):
    rows = min(800, 2**22 // row_bytes)
    for count, index in ((1, torch.int64), (33, torch.int32), (rows - 3, torch.int64)):
        dst = make_side("dense", rows, row_bytes, torch.uint8, direction[0], num_caches, 1)
        src = make_side("dense", rows + 9, row_bytes, torch.uint8, direction[1], num_caches, 1)
        check(dst, src, *(make_indices(rows, count, index, "cuda", 1) for _ in range(2)), None)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("row_bytes", [16, 100, 128, 576, 2048, 8192, 20_000])
def test_every_launch_moves_every_row(row_bytes: int, direction: tuple[str, str]):
    """From one block to more than there is work for; as the rows come, and sorted in one chunk or in several."""
    for launch in (
        *((1, 32, 0, 0), (3, 1024, 0, 0), (500, 256, 0, 0), (1, 64, 512, 0), (3, 1024, 128, 0), (2, 32, 100, 0)),
        *((40, 256, 13, 0), (3, 64, 96, 32), (40, 256, 32, 32), (2, 1024, 128, 1), (7, 32, 60, 12), (1, 64, 512, 32)),
    ):
        for run in (64, 2, 1):  # of rows that follow each other; the longest stay in their order
            dst = make_side("dense", 700, row_bytes, torch.uint8, direction[0], 2, 1)
            src = make_side("dense", 700, row_bytes, torch.uint8, direction[1], 2, 1)
            indices = [make_indices(700, 500, torch.int64, "cuda", run) for _ in range(2)]
            check(dst, src, *indices, None, launch)
            assert last_launch() == launch


@pytest.mark.gpu
def test_a_chunk_of_the_most_rows():
    dst = make_side("dense", 9000, 64, torch.uint8, "host", 2, 1)
    src = make_side("dense", 9000, 64, torch.uint8, "cuda", 2, 1)
    for index in (torch.int32, torch.int64):
        indices = [make_indices(9000, 8999, index, "cuda", 1) for _ in range(2)]
        check(dst, src, *indices, None, (2, 1024, 4096, 0))
        check(dst, src, *indices, None, (2, 1024, 4096, 128))


@pytest.mark.gpu
@pytest.mark.parametrize("dst_layout", LAYOUTS)
@pytest.mark.parametrize("src_layout", LAYOUTS)
def test_every_pair_of_layouts(dst_layout: str, src_layout: str):
    for launch in (None, (2, 128, 48, 0), (2, 128, 48, 16)):
        for places in DIRECTIONS:
            dst = make_side(dst_layout, 128, 384, torch.bfloat16, places[0], 2, page_size=16)
            src = make_side(src_layout, 160, 384, torch.bfloat16, places[1], 2, page_size=16)
            indices = [make_indices(rows, 96, torch.int64, "cuda", 16) for rows in (128, 160)]
            check(dst, src, *indices, 384, launch)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_random_transfers(first: int):
    for seed in range(first, first + 100):
        random_transfer(seed, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("on_device", [False, True], ids=["addresses on the CPU", "addresses on the device"])
@pytest.mark.parametrize("num_layers", [1, 32, 96, 100])
@pytest.mark.parametrize("to_host", [False, True], ids=["h2d", "d2h"])
def test_all_layers(num_layers: int, on_device: bool, to_host: bool):
    """Between a pool for each layer on the device and a page-first pool in pinned memory."""
    width, page, rows = 256, 4, 64
    device_pools = [noise(num_layers * rows * width, "cuda").view(num_layers, rows, width) for _ in range(2)]
    host_pools = [
        noise(num_layers * rows * width, "host").view(rows // page, num_layers, page, width) for _ in range(2)
    ]
    on_gpu, on_host = (make_indices(rows, 33, torch.int64, "cuda", 1) for _ in range(2))
    before = [pool.clone() for pool in device_pools + host_pools]
    expected = [pool.clone() for pool in device_pools + host_pools]
    for kv in range(2):
        wanted_device, wanted_host = expected[kv], expected[2 + kv]
        at, to = on_gpu.cpu(), on_host.cpu()
        for layer in range(num_layers):
            if to_host:
                wanted_host[to // page, layer, to % page] = before[kv][layer][at.cuda()].cpu()
            else:
                wanted_device[layer][at.cuda()] = before[2 + kv][to // page, layer, to % page].cuda()

    def addresses(pools: list[torch.Tensor], dim: int) -> list[torch.Tensor]:
        tables = [torch.tensor([pool.select(dim, i).data_ptr() for i in range(num_layers)]) for pool in pools]
        return [table.cuda() if on_device else table for table in tables]

    device_tables, host_tables = addresses(device_pools, 0), addresses(host_pools, 1)
    page_stride = num_layers * page * width
    dst, src = (host_tables, device_tables) if to_host else (device_tables, host_tables)
    pages = {f"kv_cache_{'dst' if to_host else 'src'}_page_stride_bytes": page_stride}
    indices_dst, indices_src = (on_host, on_gpu) if to_host else (on_gpu, on_host)
    family.transfer_hicache_all_layer(
        *dst,
        indices_dst,
        *src,
        indices_src,
        kv_cache_src_stride_bytes=width,
        kv_cache_dst_stride_bytes=width,
        page_size=page,
        **pages,
    )
    torch.cuda.synchronize()
    for got, wanted in zip(device_pools + host_pools, expected, strict=True):
        assert_same_bytes(got, wanted)


@pytest.mark.gpu
def test_all_layers_of_odd_rows_between_devices():
    """Rows of 100 bytes, addresses on the CPU: words of four bytes."""
    pools = [noise(5 * 40 * 100, "cuda").view(5, 40, 100) for _ in range(2)]
    expected = pools[1].clone()
    dst, src = (make_indices(40, 17, torch.int32, "cuda", 1) for _ in range(2))
    expected[:, dst.long()] = pools[0][:, src.long()]
    tables = [torch.tensor([layer.data_ptr() for layer in pool]) for pool in pools]
    family.transfer_hicache_all_layer_mla(
        tables[1], dst, tables[0], src, cache_src_stride_bytes=100, cache_dst_stride_bytes=100
    )
    assert torch.equal(pools[1], expected)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("row_bytes", [64, 576, 2048, 16_384, 100])
@pytest.mark.parametrize("on_device", [False, True], ids=["addresses on the CPU", "addresses on the device"])
def test_every_layer_is_moved(row_bytes: int, direction: tuple[str, str], on_device: bool):
    """Layer by layer, as rows of a layer are neighbours, and row by row, as layers of a row are; few rows and many."""
    num_layers = 5
    many = 17_000 if row_bytes < 600 else 1000
    for count, quota, row_first in itertools.product((77, many), (None, 2), (False, True)):
        rows = count + 13
        pools = [noise(num_layers * rows * row_bytes, where) for where in direction for _ in "kv"]
        if row_first:
            caches = [pool.view(rows, num_layers, row_bytes).transpose(0, 1) for pool in pools]
        else:
            caches = [pool.view(num_layers, rows, row_bytes) for pool in pools]
        dst, src = (make_indices(rows, count, torch.int64, "cuda", 1) for _ in range(2))
        expected = [cache.cpu().clone() for cache in caches]
        for kv in range(2):
            expected[kv][:, dst.cpu()] = expected[2 + kv][:, src.cpu()]
        tables = [torch.tensor([layer.data_ptr() for layer in cache]) for cache in caches]
        if on_device:
            tables = [table.cuda() for table in tables]
        stride = row_bytes * (num_layers if row_first else 1)
        family.transfer_hicache_all_layer(
            *tables[:2],
            dst,
            *tables[2:],
            src,
            kv_cache_src_stride_bytes=stride,
            kv_cache_dst_stride_bytes=stride,
            element_size=row_bytes,
            block_quota=quota,
        )
        assert quota is None or last_launch()[0] <= quota
        torch.cuda.synchronize()
        for got, wanted in zip(caches, expected, strict=True):
            assert_same_bytes(got.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
def test_offsets_beyond_32_bits(direction: tuple[str, str]):
    """Rows at the end of caches of 5 GiB, as they come and sorted."""
    rows, width = 5 * 2**30 // 2048, 2048
    large = [torch.empty(rows, width, dtype=torch.uint8, device="cuda") for _ in "kv"]
    where = torch.tensor([0, rows - 1, rows // 2], device="cuda")
    small = torch.tensor([2, 0, 1], device="cuda")
    for chunk_rows in (0, 3):
        pattern = [noise(4 * width, "host" if "host" in direction else "cuda").view(4, width) for _ in "kv"]
        for cache in large:
            cache[where] = noise(3 * width, "cuda").view(3, width)
        if direction[0] == "cuda":
            FAMILY.host_module().launch_one_layer(
                *large, where, *pattern, small, None, None, 1, 64, chunk_rows, 0, False
            )
        else:
            FAMILY.host_module().launch_one_layer(
                *pattern, small, *large, where, None, None, 1, 64, chunk_rows, 0, False
            )
        torch.cuda.synchronize()
        for cache, rows_of_cache in zip(large, pattern, strict=True):
            assert torch.equal(cache[where].cpu(), rows_of_cache[small.to(rows_of_cache.device)].cpu())


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS[:2], ids=["h2d", "d2h"])
def test_the_launch_over_the_link(direction: tuple[str, str]):
    """It goes by the bytes that are neighbours, the memory that rows are scattered over, and the caller's quota."""

    def launch(row_bytes: int, count: int, host_bytes: int, **options: int) -> tuple[int, ...]:
        places = {"cuda": small, "host": pinned[:host_bytes]}
        dst, src = (places[where][: len(places[where]) // row_bytes * row_bytes] for where in direction)
        dst, src = dst.view(-1, row_bytes), src.view(-1, row_bytes)
        rows = torch.arange(count, device="cuda")
        family.transfer_hicache_one_layer_mla(dst, rows, src, rows, **options)
        return last_launch()

    small = torch.zeros(32 << 20, dtype=torch.uint8, device="cuda")
    pinned = torch.zeros(512 << 20, dtype=torch.uint8, pin_memory=True)
    near, far = 256 << 20, 512 << 20
    to_host = direction[0] == "host"
    assert launch(2048, 16, far) == (8, 32, 0, 0)  # bound by latency: a piece of a row for each eight threads
    for row_bytes, blocks in (
        (128, 16 if to_host else 32),
        (256, 8 if to_host else 16),
        (1152, 4),
        (2048, 2 if to_host else 4),
    ):
        assert launch(row_bytes, (4 << 20) // row_bytes, near) == (blocks, 512, 0, 0)
    assert launch(576, 8192, near) == (11, 512, 0, 0)  # not whole lines
    assert launch(256, 4096, far) == (32, 1024, 0, 0)
    assert launch(512, 4096, far) == (32, 1024, 0, 0)
    assert launch(1152, 4096, far) == (64, 256, 0, 0)
    assert launch(256, 8192, far) == (32, 512, 256, 0)  # sorted
    assert launch(256, 16383, far) == (32, 512, 512, 0)  # more than 32 KiB for each row
    assert launch(2048, 4096, far) == (16, 512, 0, 0)
    assert launch(4096, 4096, far) == (8, 512, 0, 0)
    assert launch(16384, 1024, far) == (2 if to_host else 4, 512, 0, 0)
    assert launch(256, 16384, far) == (32, 256, 512, 128)  # not more: whole groups
    assert launch(1152, 20001, far) == (32, 256, 640, 128)
    assert launch(256, 16384, far, page_size=64) == (8 if to_host else 16, 512, 0, 0)  # whole pages are neighbours
    assert launch(128, 16384, far, page_size=16) == (16, 512, 0, 0)
    assert launch(2048, 4096, near, block_quota=2) == (2, 512 if to_host else 1024, 0, 0)
    assert launch(2048, 4096, far, block_quota=2) == (2, 1024, 0, 0)
    assert launch(256, 65536, far, block_quota=2) == (2, 1024, 4096, 128)
    assert launch(256, 3, near, block_quota=2) == (1, 32, 0, 0)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_the_launch_on_the_device():
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    dst, src = (torch.zeros(16384, 2048, dtype=torch.uint8, device="cuda") for _ in range(2))
    rows = torch.randperm(16384, device="cuda")
    family.transfer_hicache_one_layer_mla(dst, rows, src, rows)
    assert last_launch()[0] >= sms
    family.transfer_hicache_one_layer_mla(dst, rows, src, rows, block_quota=5)
    assert last_launch()[0] == 5
    family.transfer_hicache_one_layer_mla(dst, rows[:3], src, rows[:3], block_quota=500)
    assert last_launch()[0] <= 3
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS[:2], ids=["h2d", "d2h"])
def test_addresses_on_the_device_take_the_launch_of_scattered_rows(direction: tuple[str, str]):
    """The host cannot read them: small caches, and sorted by the side that they are written to."""
    dst, src = (noise(20000 * 256, where).view(20000, 256) for where in direction)
    rows = [torch.randperm(20000, device="cuda") for _ in range(2)]
    tables = [torch.tensor([cache.data_ptr()], device="cuda") for cache in (dst, src)]
    strides = {"cache_src_stride_bytes": 256, "cache_dst_stride_bytes": 256}
    family.transfer_hicache_all_layer_mla(tables[0], rows[0], tables[1], rows[1], **strides)
    assert last_launch() == (16, 512, 1250, 0)
    torch.cuda.synchronize()
    assert torch.equal(dst[rows[0].to(dst.device)].cuda(), src[rows[1].to(src.device)].cuda())
    family.transfer_hicache_all_layer_mla(tables[0], rows[0][:4096], tables[1], rows[1][:4096], **strides)
    assert last_launch() == (32, 1024, 0, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("row_bytes", [2048, 2064, 4100, 4098, 15000])
def test_a_quiet_transfer_of_scattered_rows_moves_their_bytes_and_no_others(direction: tuple[str, str], row_bytes: int):
    """With addresses on the device any rows may be scattered: words of at most 4 bytes."""
    dst, src = (noise(1000 * row_bytes, where).view(1000, row_bytes) for where in direction)
    rows = [torch.randperm(1000, device="cuda")[:777] for _ in range(2)]
    tables = [torch.tensor([cache.data_ptr()], device="cuda") for cache in (dst, src)]
    strides = {"cache_src_stride_bytes": row_bytes, "cache_dst_stride_bytes": row_bytes}
    expected = dst.clone()
    expected[rows[0].to(dst.device)] = src[rows[1].to(src.device)].to(dst.device)
    family.transfer_hicache_all_layer_mla(tables[0], rows[0], tables[1], rows[1], block_quota=2, **strides)
    assert last_launch()[0] == 2
    torch.cuda.synchronize()
    assert_same_bytes(dst, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("count", [16, 2000])
def test_another_stream(direction: tuple[str, str], count: int):
    """The kernel runs on the current stream: after what is queued there, without waiting for it here."""
    dst = make_side("dense", 2048, 2048, torch.uint8, direction[0], 2, 1)
    src = make_side("dense", 2048, 2048, torch.uint8, direction[1], 2, 1)
    indices = [make_indices(2048, count, torch.int64, "cuda", 1) for _ in range(2)]
    check(dst.copy(), src, *indices, None)  # compiled and loaded
    late = [index.clone() for index in indices]
    for index in late:
        index.zero_()
    expected = dst.copy()
    reference.transfer_hicache_one_layer(*expected.caches(), indices[0], *src.caches(), indices[1])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # cycles, so that a kernel on any other stream comes too early
        for index, value in zip(late, indices, strict=True):
            index.copy_(value)
        family.transfer_hicache_one_layer(*dst.caches(), late[0], *src.caches(), late[1])
    assert not stream.query()
    stream.synchronize()
    for got, wanted in zip(dst.pools, expected.pools, strict=True):
        assert_same_bytes(got, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [16, 2000])
def test_graph_capture_and_replay_with_other_data(count: int):
    """To the host and back in one graph: on sm_90 each launch depends on the one before, inside the graph too."""
    src, back = (noise(2048 * 1024, "cuda").view(2048, 1024) for _ in range(2))
    pinned = noise(2048 * 1024, "host").view(2048, 1024)
    rows, places = (torch.arange(count, device="cuda") for _ in range(2))

    def there_and_back() -> None:
        family.transfer_hicache_one_layer_mla(pinned, places, src, rows)
        family.transfer_hicache_one_layer_mla(back, rows, pinned, places)

    there_and_back()  # a capture must not meet a compile
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there_and_back()
    for seed in range(3):
        torch.manual_seed(seed)
        src.random_(0, 256)
        rows.copy_(torch.randperm(2048, device="cuda")[:count])
        places.copy_(torch.randperm(2048, device="cuda")[:count])
        back.zero_()
        graph.replay()
        expected = torch.zeros_like(back)
        expected[rows] = src[rows]
        assert torch.equal(back, expected)


@pytest.mark.gpu
def test_a_chain_of_dependent_launches():
    """Each transfer reads what the one before it wrote; a kernel right ahead of it makes its indices."""
    caches = [noise(4096 * 512, where).view(4096, 512) for where in ("cuda", "cuda", "host")]
    before = caches[0].clone()
    rows = torch.randperm(4096, device="cuda")
    order = [0, 1, 2, 0, 2, 1, 0]
    for count in (64, 4096):
        chosen, index = rows[:count], torch.zeros(count, dtype=torch.int64, device="cuda")
        for a, b in itertools.pairwise(order):
            torch.add(chosen, 0, out=index)
            family.transfer_hicache_one_layer_mla(caches[b], index, caches[a], index)
            index.zero_()
        torch.cuda.synchronize()
        assert torch.equal(caches[0], before)
        for cache in caches[1:]:
            assert torch.equal(cache[chosen.to(cache.device)].cuda(), before[chosen])


@pytest.mark.gpu
def test_transfers_beside_each_other():
    """Both directions at once on two streams, many times."""
    caches = [noise(4096 * 1024, where).view(4096, 1024) for where in ("cuda", "host", "host", "cuda")]
    rows = [torch.randperm(4096, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(10):
        for side, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                dst, src = caches[2 * side : 2 * side + 2]
                family.transfer_hicache_one_layer_mla(dst, rows[0], src, rows[1])
    torch.cuda.synchronize()
    at, of = rows[0].cpu(), rows[1].cpu()
    for dst, src in (caches[:2], caches[2:]):
        assert torch.equal(dst.cpu()[at], src.cpu()[of])


@pytest.mark.gpu
def test_memory_that_is_registered_and_not_allocated_pinned():
    cache = torch.zeros(1000, 64)
    runtime = torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(cache.data_ptr(), cache.numel() * 4, 0)) == 0
    try:
        rows = torch.arange(1000, device="cuda")
        source = torch.randn(1000, 64, device="cuda")
        family.transfer_hicache_one_layer_mla(cache, rows, source, rows)
        torch.cuda.synchronize()
        assert torch.equal(cache, source.cpu())
    finally:
        runtime.cudaHostUnregister(cache.data_ptr())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.complex64], ids=str)
def test_any_dtype(dtype: torch.dtype):
    src = noise(64 * 576 * 8, "cuda").bitwise_and_(1).view(dtype).view(64, -1)
    dst = torch.zeros_like(src, device="cpu").pin_memory()
    rows = torch.randperm(64, device="cuda")
    family.transfer_hicache_one_layer_mla(dst, rows, src, rows)
    torch.cuda.synchronize()
    assert_same_bytes(dst, src.cpu())


@pytest.mark.gpu
def test_torch_compile():
    def there(k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        copy_k, copy_v = torch.zeros_like(k), torch.zeros_like(v)
        family.transfer_hicache_one_layer(copy_k, copy_v, i, k, v, j)
        return copy_k + copy_v

    arguments = [
        *(torch.randn(8, 32, device="cuda") for _ in range(2)),
        *(torch.randperm(8, device="cuda") for _ in range(2)),
    ]
    compiled = torch.compile(there, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), there(*arguments))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device():
    src = noise(4096 * 1024, "cpu").view(4096, 1024).to("cuda:1")
    pinned = noise(4096 * 1024, "host").view(4096, 1024)
    rows = torch.randperm(4096, device="cuda:1")
    family.transfer_hicache_one_layer_mla(pinned, rows, src, rows)  # while device 0 is current
    torch.cuda.synchronize("cuda:1")
    assert torch.cuda.current_device() == 0
    assert torch.equal(pinned, src.cpu())
