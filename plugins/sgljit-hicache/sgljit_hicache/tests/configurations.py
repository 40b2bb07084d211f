"""Random transfers, checked byte by byte: the pools that caches are cut from are compared whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sgljit_core import ops
from sgljit_hicache import reference
from sgljit_hicache.plugin import FAMILY

DTYPES = [torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64]
LAYOUTS = ["dense", "gaps", "heads", "page_first", "page_direct"]
PLACES = {"cpu": [("cpu", "cpu")], "cuda": [("cuda", "cuda"), ("cuda", "host"), ("host", "cuda"), ("host", "host")]}

Cut = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Side:
    """One side of a transfer: for each cache (K, V) a pool, and how to cut the cache out of it."""

    pools: list[torch.Tensor]
    cut: Cut
    num_rows: int

    def caches(self) -> list[torch.Tensor]:
        return [self.cut(pool) for pool in self.pools]

    def copy(self) -> Side:
        clones = [pool.clone().pin_memory() if pool.is_pinned() else pool.clone() for pool in self.pools]
        return Side(clones, self.cut, self.num_rows)


def noise(num_bytes: int, where: str) -> torch.Tensor:
    """Random bytes; "host" is pinned."""
    data = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    return data.pin_memory() if where == "host" else data.to(where)


def make_side(
    layout: str, num_rows: int, width: int, dtype: torch.dtype, where: str, num_caches: int, page_size: int
) -> Side:
    """Caches with ``num_rows`` rows (or a little more) of ``width`` elements, among bytes that must not change."""
    shape: tuple[int, ...]
    if layout == "dense":
        shape, cut = (num_rows + 2, width), lambda pool: pool[1:-1]
    elif layout == "gaps":
        gap = random.choice([1, 3, 16])
        shape, cut = (num_rows, width + 2 * gap), lambda pool: pool[:, gap:-gap]
    elif layout == "heads":
        heads = next(n for n in (8, 4, 3, 2, 1) if width % n == 0)
        shape, cut = (num_rows, heads, width // heads), lambda pool: pool
    elif layout == "page_first":
        shape, cut = (num_rows, 3, width), lambda pool: pool[:, 1]
    else:
        pages = -(-num_rows // page_size)
        num_rows = pages * page_size
        shape, cut = (pages, 3, page_size, width), lambda pool: pool[:, 1]
    count = 1
    for size in shape:
        count *= size
    pools = [noise(count * dtype.itemsize, where).view(dtype).view(shape) for _ in range(num_caches)]
    return Side(pools, cut, num_rows)


def make_indices(num_rows: int, count: int, dtype: torch.dtype, device: str, run: int) -> torch.Tensor:
    """``count`` different rows, in runs of ``run`` that follow each other."""
    runs = torch.randperm(num_rows // run)
    return (runs[:, None] * run + torch.arange(run)).flatten()[:count].to(device, dtype)


def assert_same_bytes(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got.flatten().view(torch.uint8), expected.flatten().view(torch.uint8))


def check(
    dst: Side,
    src: Side,
    indices_dst: torch.Tensor,
    indices_src: torch.Tensor,
    element_dim: int | None,
    launch: tuple[int, int, int, int] | None = None,
    **options: object,
) -> None:
    """Run an op of one layer and the reference; compare every byte of the pools of both sides.

    K and V can be launched as ``launch`` says: blocks, threads, rows of a chunk, and of a group of one (0: all).
    """
    family = ops["hicache"]
    expected, before = dst.copy(), src.copy()
    if len(dst.pools) == 2:
        name = "transfer_hicache_one_layer"
        arguments = [*dst.caches(), indices_dst, *src.caches(), indices_src]
        correct = [*expected.caches(), indices_dst, *src.caches(), indices_src]
    else:
        name = "transfer_hicache_one_layer_mla"
        arguments = [*dst.caches(), indices_dst, *src.caches(), indices_src]
        correct = [*expected.caches(), indices_dst, *src.caches(), indices_src]
    getattr(reference, name)(*correct, element_dim=element_dim)
    if launch is None:
        getattr(family, name)(*arguments, element_dim=element_dim, **options)
    else:
        FAMILY.host_module().launch_one_layer(*arguments, element_dim, None, *launch, False)
    if indices_dst.is_cuda:
        torch.cuda.synchronize()
    for got, wanted in zip(dst.pools + src.pools, expected.pools + before.pools, strict=True):
        assert_same_bytes(got, wanted)


def random_transfer(seed: int, device: str) -> None:
    """One transfer with everything drawn from ``seed``, which is named where it fails."""
    try:
        _random_transfer(seed, device)
    except Exception as error:
        raise AssertionError(f"seed {seed}") from error


def _random_transfer(seed: int, device: str) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    dtype = random.choice(DTYPES)
    # Rows of whole 16-byte words, for the fast kernels, and of anything.
    words = random.choice([1, 2, 7, 8, 9, 16, 32, 36, 64, 72, 100, 128, 129, 256, 600])
    # On CUDA each size is a kernel.
    odd = random.randint(1, 700) if device == "cpu" else random.choice([1, 3, 7, 12, 50, 101, 260, 602, 700])
    width = random.choice([words * 16 // dtype.itemsize, odd])
    num_caches, page_size, run = random.choice([1, 2]), random.choice([1, 5, 16, 64]), random.choice([1, 1, 3, 16, 64])
    dst_rows, src_rows = random.randint(run, 400), random.randint(run, 400)
    places = random.choice(PLACES[device])
    layouts = random.choice(LAYOUTS), random.choice(LAYOUTS)
    dst = make_side(layouts[0], dst_rows, width, dtype, places[0], num_caches, page_size)
    src = make_side(layouts[1], src_rows, width, dtype, places[1], num_caches, page_size)
    count = random.choice([1, 2, 31, 32, 33, 400])
    count = min(count, dst_rows // run * run, src_rows // run * run)
    index = random.choice([torch.int32, torch.int64])
    indices = [make_indices(rows, count, index, device, run) for rows in (dst_rows, src_rows)]
    options: dict[str, object] = {}
    if random.random() < 0.3:
        options["block_quota"] = random.choice([1, 2, 7, 1000])
    if random.random() < 0.2:
        options["unroll"] = random.choice([1, 2, 4])
    if random.random() < 0.2:
        options["check_indices"] = True
    launch = None
    if device == "cuda" and num_caches == 2 and random.random() < 0.4:
        chunk, group = random.choice([(0, 0), (1, 0), (37, 0), (128, 0), (128, 32), (96, 1), (4096, 0), (4096, 128)])
        launch = (random.choice([1, 3, 40]), random.choice([32, 256, 1024]), chunk, group)
    check(dst, src, *indices, width, launch, **options)
