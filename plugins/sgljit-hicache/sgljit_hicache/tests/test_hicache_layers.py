"""All layers, by their addresses: what is refused, and in checked mode which layers would be in each other's way."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from sgljit_core import freeze, ops
from sgljit_core.errors import CompileForbiddenError, TensorMatchError

from .configurations import noise

family = ops["hicache"]
ROW = 32  # bytes

PLACES = [
    pytest.param("cpu", "cpu", id="cpu"),
    pytest.param("cuda", "cpu", marks=pytest.mark.gpu, id="cuda, addresses on the CPU"),
    pytest.param("cuda", "cuda", marks=pytest.mark.gpu, id="cuda, addresses on the device"),
]


def table(addresses: list[int], where: str = "cpu") -> torch.Tensor:
    return torch.tensor(addresses, dtype=torch.int64, device=where)


def transfer(
    dst: list[int], of_dst: list[int], src: list[int], of_src: list[int], device: str, where: str, **options: Any
) -> None:
    """Rows of ``ROW`` bytes of one cache a layer, checked."""
    indices = [torch.tensor(rows, device=device) for rows in (of_dst, of_src)]
    strides = {"cache_dst_stride_bytes": ROW, "cache_src_stride_bytes": ROW, "element_size": ROW}
    family.transfer_hicache_all_layer_mla(
        table(dst, where), indices[0], table(src, where), indices[1], **{**strides, "check_indices": True, **options}
    )


@pytest.mark.parametrize(("device", "where"), PLACES[:2])
@pytest.mark.parametrize("name", ["k_ptr_dst", "v_ptr_dst", "k_ptr_src", "v_ptr_src"])
def test_a_null_address(name: str, device: str, where: str):
    """It would end the process, or on a device the context."""
    caches = [torch.zeros(3, 4, ROW, dtype=torch.uint8, device=device) for _ in range(4)]
    tables = {
        key: table([layer.data_ptr() for layer in cache], where)
        for key, cache in zip(("k_ptr_dst", "v_ptr_dst", "k_ptr_src", "v_ptr_src"), caches, strict=True)
    }
    tables[name][2] = 0
    rows = torch.arange(2, device=device)
    text = f"transfer_hicache_all_layer: {name}[2] is a null address: layer 2 has no cache there"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        family.transfer_hicache_all_layer(
            **tables, indices_dst=rows, indices_src=rows, kv_cache_src_stride_bytes=ROW, kv_cache_dst_stride_bytes=ROW
        )


@pytest.mark.gpu
def test_addresses_on_the_device_that_cannot_be_used():
    """Unchecked, the launch does not see them."""
    good = torch.zeros(4, ROW, dtype=torch.uint8, device="cuda")
    other, pageable = torch.zeros_like(good), torch.zeros(4, ROW, dtype=torch.uint8)
    for address, text in (
        (0, "ptr_src[1] is a null address: layer 1 has no cache there"),
        (other.data_ptr() + 8, "for these rows, addresses on the device must be multiples of 16"),
        (pageable.data_ptr(), "ptr_src is in pageable host memory, which a kernel cannot access"),
    ):
        far = torch.zeros_like(good)
        with pytest.raises(ValueError, match=re.escape(text)):
            transfer([good.data_ptr(), far.data_ptr()], [0], [other.data_ptr(), address], [0], "cuda", "cuda")


@pytest.mark.gpu
def test_a_kernel_that_cannot_be_made_is_known_before_anything_moves():
    """Of 98 layers two travel with a second launch, whose addresses allow words of 8 bytes only: another kernel."""
    num_layers, row_bytes = 98, 3088  # a size that no other test makes kernels for
    device = torch.ones(num_layers, 8, row_bytes, dtype=torch.uint8, device="cuda")
    pinned = torch.zeros(num_layers * 8 * row_bytes + 8, dtype=torch.uint8, pin_memory=True)
    layers_dst = [pinned.data_ptr() + layer * 8 * row_bytes + (8 if layer >= 96 else 0) for layer in range(num_layers)]
    tables = [table(layers_dst), table([layer.data_ptr() for layer in device])]
    rows = torch.arange(8, device="cuda")

    def move(layers: int) -> None:
        dst, src = (addresses[:layers] for addresses in tables)
        family.transfer_hicache_all_layer_mla(
            dst, rows, src, rows, cache_dst_stride_bytes=row_bytes, cache_src_stride_bytes=row_bytes
        )
        torch.cuda.synchronize()

    move(96)
    pinned.zero_()
    freeze("error")
    try:
        with pytest.raises(CompileForbiddenError, match="copy_rows<3088, 8"):
            move(num_layers)
    finally:
        freeze("on")
    assert not pinned.any()
    move(num_layers)
    assert pinned.sum() == num_layers * 8 * row_bytes


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_an_address_on_another_device():
    here = torch.zeros(4, ROW, dtype=torch.uint8, device="cuda:0")
    there = torch.zeros(4, ROW, dtype=torch.uint8, device="cuda:1")
    text = "two devices are mixed: the indices are on cuda:0 and ptr_src is on cuda:1"
    with pytest.raises(TensorMatchError, match=text):
        transfer([here.data_ptr()], [0], [there.data_ptr()], [0], "cuda:0", "cpu", check_indices=False)


@pytest.mark.gpu
def test_nothing_is_launched_before_an_error_in_a_later_launch():
    """Layer 150 travels with the second launch; the first must not have run."""
    dst = torch.zeros(150, 4, ROW, dtype=torch.uint8, pin_memory=True)
    src = torch.ones(150, 4, ROW, dtype=torch.uint8, device="cuda")
    addresses = [layer.data_ptr() for layer in dst]
    pageable = torch.zeros(4, ROW, dtype=torch.uint8)
    addresses[149] = pageable.data_ptr()
    with pytest.raises(ValueError, match="ptr_dst is in pageable host memory"):
        transfer(addresses, [1], [layer.data_ptr() for layer in src], [2], "cuda", "cpu", check_indices=False)
    torch.cuda.synchronize()
    assert not dst.any()


OVERLAPS: dict[str, tuple[list[int], list[int], list[int], list[int], str]] = {
    # In rows from the pool's beginning: the layers' destinations, their rows, the layers' sources, their rows.
    "one address": (
        [0, 0],
        [1, 2],
        [8, 12],
        [0, 1],
        "two rows would be written to one place: row 1 of ptr_dst[0], which indices_dst[0] names, and row 1 of "
        "ptr_dst[1], which indices_dst[0] names",
    ),
    "a row on": (
        [0, 1],
        [3, 2],
        [8, 12],
        [0, 1],
        "two rows would be written to one place: row 3 of ptr_dst[0], which indices_dst[0] names, and row 2 of "
        "ptr_dst[1], which indices_dst[1] names",
    ),
    "another layer's source": (
        [0, 4],
        [0, 1],
        [8, 2],
        [3, 2],
        "row 0 of ptr_dst[1], which indices_dst[0] names, and row 2 of ptr_src[1], which indices_src[1] names, "
        "overlap: a write of one would change the other while it is read",
    ),
    "another row of its own source": (
        [0, 4],
        [0, 1],
        [8, 4],
        [3, 0],
        "row 0 of ptr_dst[1], which indices_dst[0] names, and row 0 of ptr_src[1], which indices_src[1] names, "
        "overlap: a write of one would change the other while it is read",
    ),
}


@pytest.mark.parametrize(("device", "where"), PLACES)
@pytest.mark.parametrize(("dst", "of_dst", "src", "of_src", "text"), OVERLAPS.values(), ids=OVERLAPS)
def test_layers_in_each_others_way(
    dst: list[int], of_dst: list[int], src: list[int], of_src: list[int], text: str, device: str, where: str
):
    pool = noise(16 * ROW, device)
    before = pool.clone()
    tables = [[pool.data_ptr() + ROW * row for row in rows] for rows in (dst, src)]
    with pytest.raises(ValueError, match=f"^{re.escape(f'transfer_hicache_all_layer_mla: {text}')}$"):
        transfer(tables[0], of_dst, tables[1], of_src, device, where)
    assert torch.equal(pool, before)


@pytest.mark.parametrize(("device", "where"), PLACES)
def test_k_and_v_in_one_place(device: str, where: str):
    pool, rows = noise(64 * ROW, device), torch.arange(2, device=device)
    k_dst, k_src, v_src = (table([pool.data_ptr() + 4 * ROW * i], where) for i in (0, 1, 2))
    text = (
        "transfer_hicache_all_layer: two rows would be written to one place: row 0 of k_ptr_dst[0], which "
        "indices_dst[0] names, and row 0 of v_ptr_dst[0], which indices_dst[0] names"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        family.transfer_hicache_all_layer(
            k_dst,
            k_dst,
            rows,
            k_src,
            v_src,
            rows,
            kv_cache_src_stride_bytes=ROW,
            kv_cache_dst_stride_bytes=ROW,
            check_indices=True,
        )


@pytest.mark.parametrize(("device", "where"), PLACES)
def test_layers_that_share_a_pool_but_no_row(device: str, where: str):
    """Two layers take turns of four rows, which no stride tells; and a row may be its own source."""
    pool = noise(16 * ROW, device).view(16, ROW)
    expected = pool.clone()
    expected[[0, 9, 4, 13]] = pool[[0, 2, 4, 6]]
    layers = [pool.data_ptr(), pool[4].data_ptr()]
    transfer(layers, [0, 9], layers, [0, 2], device, where)
    assert torch.equal(pool, expected)


LISTS = ["indices_dst", "indices_src", "ptr_dst", "ptr_src"]


@pytest.mark.parametrize("name", LISTS)
def test_lists_inside_of_a_row_that_is_written(name: str):
    """The CPU reads them while it writes the rows."""
    pool, src = torch.zeros(8, ROW // 8, dtype=torch.int64), torch.full((8, ROW // 8), 10**13)
    lists = {"indices_dst": torch.tensor([0, 2]), "indices_src": torch.tensor([1, 0])}
    lists |= {"ptr_dst": table([pool.data_ptr()]), "ptr_src": table([src.data_ptr()])}
    strides = {"cache_dst_stride_bytes": ROW, "cache_src_stride_bytes": ROW}
    values = lists[name]
    lists[name] = pool[2, 1 : 1 + len(values)].copy_(values)
    before = pool.clone()
    text = (
        f"transfer_hicache_all_layer_mla: {name} and row 2 of ptr_dst[0], which indices_dst[1] names, overlap: a write "
        f"of the row would change {name} while it is read"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        family.transfer_hicache_all_layer_mla(**lists, **strides, check_indices=True)
    assert torch.equal(pool, before)
    # In a row that is not written, nothing is wrong.
    lists[name] = pool[1, : len(values)].copy_(values)
    family.transfer_hicache_all_layer_mla(**lists, **strides, check_indices=True)
    assert torch.equal(pool[[0, 2]], src[:2])
    assert torch.equal(lists[name], values)


def offset_of(index: int, stride: int, page_size: int, page_stride: int) -> int:
    return index // page_size * page_stride + index % page_size * stride


def would_race(
    dst: list[int],
    of_dst: list[int],
    src: list[int],
    of_src: list[int],
    row: int,
    offsets: Sequence[Callable[[int], int]],
) -> bool:
    """Every row against every other, byte by byte."""
    written = [(base + offsets[0](i), (layer, at)) for layer, base in enumerate(dst) for at, i in enumerate(of_dst)]
    read = [(base + offsets[1](i), (layer, at)) for layer, base in enumerate(src) for at, i in enumerate(of_src)]
    touches = [(a, b) for a, b in itertools.combinations(written, 2)]
    touches += [(a, b) for a, b in itertools.product(written, read) if a != b]
    return any(abs(a[0] - b[0]) < row for a, b in touches)


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_random_layers_are_refused_if_and_only_if_they_would_race(first: int):
    """Against every pair of rows; few bytes, so that about half of them meet."""
    refused = 0
    for seed in range(first, first + 500):
        random.seed(seed)
        row = random.choice([4, 6, 16])
        stride = random.choice([row, row + 2, 3 * row])
        page_size = random.choice([2, 4])
        pages = [random.choice([None, page_size * stride * n]) for n in random.choices([2, 3], k=2)]
        offsets = [
            functools.partial(offset_of, stride=stride, page_size=page_size, page_stride=page or page_size * stride)
            for page in pages
        ]
        num_layers, count = random.choice([1, 2, 3]), random.choice([1, 2, 3])
        unit = random.choice([1, row, row, stride, page_size * stride])
        dst, src = ([unit * random.randrange(24) for _ in range(num_layers)] for _ in range(2))
        if random.random() < 0.5:
            src = [base + 4096 for base in src]
        if random.random() < 0.2:
            src = dst
        of_dst, of_src = random.sample(range(8), count), random.choices(range(8), k=count)
        if random.random() < 0.3:
            of_src = of_dst
        pool = noise(16384, "cpu")
        before = pool.clone()
        options = {
            "element_size": row,
            "cache_dst_stride_bytes": stride,
            "cache_src_stride_bytes": stride,
            "page_size": page_size,
            "cache_dst_page_stride_bytes": pages[0],
            "cache_src_page_stride_bytes": pages[1],
        }
        tables = [[pool.data_ptr() + base for base in bases] for bases in (dst, src)]
        if would_race(dst, of_dst, src, of_src, row, offsets):
            refused += 1
            with pytest.raises(ValueError, match=r"two rows would be written to one place|while it is read"):
                transfer(tables[0], of_dst, tables[1], of_src, "cpu", "cpu", **options)
            assert torch.equal(pool, before)
        else:
            transfer(tables[0], of_dst, tables[1], of_src, "cpu", "cpu", **options)
            for to, of in zip(dst, src, strict=True):
                for i, j in zip(of_dst, of_src, strict=True):
                    at, start = to + offsets[0](i), of + offsets[1](j)
                    assert torch.equal(pool[at : at + row], before[start : start + row]), seed
    assert 100 < refused < 400
