"""Transfers on CUDA: the kernels compile with no GPU present; with one, values, streams, graphs and launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from sgljit_core import ops, override_cuda_arch
from sgljit_hicache import reference, samples
from sgljit_hicache.ops import host_module, variants
from sgljit_hicache.plugin import FAMILY

from .configurations import LAYOUTS, assert_same_bytes, check, make_indices, make_side, noise, random_transfer

family = ops["hicache"]

ROW_BYTES = [16, 128, 576, 2048, 4112, 65536]
DIRECTIONS = [("cuda", "host"), ("host", "cuda"), ("cuda", "cuda")]
ROWS, BULK, ANY = 0, 1, 2


@contextmanager
def launched(method: int, blocks: int = 0, threads: int = 0, stages: int = 0, stage_bytes: int = 0) -> Iterator[None]:
    """Every transfer inside is launched this way."""
    host_module().override_launch(method, blocks, threads, stages, stage_bytes)
    try:
        yield
    finally:
        host_module().override_launch(-1, 0, 0, 0, 0)


def is_hopper() -> bool:
    return torch.cuda.get_device_capability() >= (9, 0)


def last_launch() -> tuple[int, int, int]:
    """Method, blocks and threads of the last launch."""
    packed = host_module().last_launch()
    return packed >> 56, packed >> 28 & 0xFFFFFFF, packed & 0xFFFFFFF


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)], ids=["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_kernels_compile_without_a_gpu(row_bytes: int, arch: tuple[int, int]):
    pdl = arch >= (9, 0)
    with override_cuda_arch(*arch):
        for caches, paged, index, table in (
            (2, False, torch.int64, 0),
            (1, True, torch.int32, 1),
            (2, True, torch.int64, 2),
        ):
            rest = (paged, pdl, index, table)
            FAMILY.build_variant("hicache.cuh", "hicache::copy_rows", row_bytes, caches, 32, *rest)
            if pdl:
                FAMILY.build_variant("hicache.cuh", "hicache::copy_bulk", row_bytes, caches, 4, 6, 8192, *rest)


@pytest.mark.parametrize("word", [1, 2, 4, 8, 16])
def test_the_kernel_for_any_row_compiles_without_a_gpu(word: int):
    with override_cuda_arch(8, 0):
        FAMILY.build_variant("hicache.cuh", "hicache::copy_any", word, 2, True, False, torch.int32, 1)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_checks_compile_without_a_gpu(index: torch.dtype):
    with override_cuda_arch(9, 0):
        FAMILY.build_variant("hicache.cuh", "hicache::check_indices", index)
        FAMILY.build_variant("hicache.cuh", "hicache::check_reads", index)


@pytest.mark.slow
def test_every_declared_variant_builds():
    with override_cuda_arch(9, 0):
        builds = list(variants())
        assert len(builds) > 25
        for build in builds:
            build()


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
        assert (last_launch()[0] == ANY) == (row_bytes % 16 != 0)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("row_bytes", [16, 128, 576, 2048, 8192, 20_000])
def test_every_kernel_moves_every_row(row_bytes: int, direction: tuple[str, str]):
    """Rows through registers and in bulk, from one block to more than there is work for, more passes than stages."""
    launches = [(ROWS, 1, 32), (ROWS, 3, 1024), (ROWS, 500, 256)]
    if is_hopper():
        launches += [
            (BULK, 1, 32, 2, 4096), (BULK, 2, 128, 6, 8192), (BULK, 7, 256, 3, 8192), (BULK, 300, 64, 4, 2048)
        ]  # fmt: skip
    for launch in launches:
        for num_caches, run in ((1, 1), (2, 16), (2, 1)):
            dst = make_side("dense", 700, row_bytes, torch.uint8, direction[0], num_caches, 1)
            src = make_side("dense", 700, row_bytes, torch.uint8, direction[1], num_caches, 1)
            indices = [make_indices(700, 500, torch.int64, "cuda", run) for _ in range(2)]
            with launched(*launch):
                check(dst, src, *indices, None)
                assert last_launch()[:2] == launch[:2]


@pytest.mark.gpu
@pytest.mark.parametrize("dst_layout", LAYOUTS)
@pytest.mark.parametrize("src_layout", LAYOUTS)
def test_every_pair_of_layouts(dst_layout: str, src_layout: str):
    methods = [ROWS, BULK] if is_hopper() else [ROWS]
    for method in methods:
        for places in DIRECTIONS:
            dst = make_side(dst_layout, 128, 384, torch.bfloat16, places[0], 2, page_size=16)
            src = make_side(src_layout, 160, 384, torch.bfloat16, places[1], 2, page_size=16)
            indices = [make_indices(rows, 96, torch.int64, "cuda", 16) for rows in (128, 160)]
            with launched(method):
                check(dst, src, *indices, element_dim=384)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_random_transfers(first: int):
    for seed in range(first, first + 100):
        with launched(BULK if is_hopper() and seed % 3 == 0 else -1):
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
    """Rows of 100 bytes, addresses on the CPU: the kernel for any row."""
    pools = [noise(5 * 40 * 100, "cuda").view(5, 40, 100) for _ in range(2)]
    expected = pools[1].clone()
    dst, src = (make_indices(40, 17, torch.int32, "cuda", 1) for _ in range(2))
    expected[:, dst.long()] = pools[0][:, src.long()]
    tables = [torch.tensor([layer.data_ptr() for layer in pool]) for pool in pools]
    family.transfer_hicache_all_layer_mla(
        tables[1], dst, tables[0], src, cache_src_stride_bytes=100, cache_dst_stride_bytes=100
    )
    assert torch.equal(pools[1], expected)
    assert last_launch()[0] == ANY


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("row_bytes", [64, 576, 2048, 16_384, 100])
def test_every_kernel_moves_every_layer(row_bytes: int, direction: tuple[str, str]):
    """Layer by layer, as rows of a layer are neighbours, and row by row, as layers of a row are."""
    num_layers, rows, count = 5, 90, 77
    launches = [(ROWS, 2, 128), (ROWS, 50, 256)]
    if is_hopper():
        launches += [(BULK, 2, 128, 3, 8192), (BULK, 3, 32, 2, 4096)]
    for launch, row_first in itertools.product(launches, (False, True)):
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
        stride = row_bytes * (num_layers if row_first else 1)
        with launched(*launch):
            family.transfer_hicache_all_layer(
                *tables[:2],
                dst,
                *tables[2:],
                src,
                kv_cache_src_stride_bytes=stride,
                kv_cache_dst_stride_bytes=stride,
                element_size=row_bytes,
            )
        torch.cuda.synchronize()
        for got, wanted in zip(caches, expected, strict=True):
            assert_same_bytes(got.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS, ids=["h2d", "d2h", "d2d"])
def test_offsets_beyond_32_bits(direction: tuple[str, str]):
    """Rows at the end of a cache of 5 GiB, whatever the kernel."""
    rows, width = 5 * 2**30 // 2048, 2048
    large = torch.empty(rows, width, dtype=torch.uint8, device="cuda")
    where = torch.tensor([0, rows - 1, rows // 2], device="cuda")
    small = torch.tensor([2, 0, 1], device="cuda")
    for method in [ROWS, BULK] if is_hopper() else [ROWS]:
        pattern = noise(4 * width, "host" if "host" in direction else "cuda").view(4, width)
        large[where] = 0
        with launched(method):
            if direction[0] == "cuda":
                family.transfer_hicache_one_layer_mla(large, where, pattern, small)
                assert torch.equal(large[where].cpu(), pattern[small.to(pattern.device)].cpu())
            else:
                large[where] = noise(3 * width, "cuda").view(3, width)
                family.transfer_hicache_one_layer_mla(pattern, small, large, where)
                torch.cuda.synchronize()
                assert torch.equal(pattern[small.to(pattern.device)].cpu(), large[where].cpu())


@pytest.mark.gpu
def test_the_default_launch_goes_by_direction():
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    on_device = [torch.zeros(16384, 2048, dtype=torch.uint8, device="cuda") for _ in range(2)]
    pinned = torch.zeros(16384, 2048, dtype=torch.uint8, pin_memory=True)
    rows = torch.randperm(16384, device="cuda")
    for dst, src in ((on_device[0], pinned), (pinned, on_device[0])):
        to_host = dst is pinned
        family.transfer_hicache_one_layer_mla(dst, rows, src, rows)
        assert last_launch() == ((BULK, 4, 64) if is_hopper() and to_host else (ROWS, 2, 512))
        family.transfer_hicache_one_layer_mla(dst, rows[:512], src, rows[:512])
        assert last_launch() == ((BULK, 2, 128) if is_hopper() and to_host else (ROWS, 2, 512))
        family.transfer_hicache_one_layer_mla(dst, rows, src, rows, block_quota=3)
        assert last_launch()[1] == 3
        family.transfer_hicache_one_layer_mla(dst, rows[:16], src, rows[:16])
        assert last_launch()[0] == ROWS
        assert last_launch()[1] <= 4
    family.transfer_hicache_one_layer(*on_device, rows, pinned, pinned, rows)  # 64 MiB
    assert last_launch() == (ROWS, 3, 1024)
    large = torch.empty(300 << 20, dtype=torch.uint8, pin_memory=True)[: 16384 * 2048].view(16384, 2048)
    for dst, src in ((on_device[0], large), (large, on_device[0])):  # what counts is the whole allocation
        for count in (16384, 512):
            family.transfer_hicache_one_layer_mla(dst, rows[:count], src, rows[:count])
            assert last_launch() == (ROWS, 4, 512)
    family.transfer_hicache_one_layer_mla(on_device[0], rows, on_device[1], rows)
    assert last_launch()[1] >= sms
    family.transfer_hicache_one_layer_mla(on_device[0], rows, on_device[1], rows, block_quota=5)
    assert last_launch()[1] == 5
    family.transfer_hicache_one_layer_mla(on_device[0], rows[:3], on_device[1], rows[:3], block_quota=500)
    assert last_launch()[1] <= 3
    torch.cuda.synchronize()


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
