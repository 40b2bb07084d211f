"""Transfers on the CPU: values, layouts, checked mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sgljit_core import ops
from sgljit_hicache import reference, samples

from .configurations import LAYOUTS, assert_same_bytes, check, make_indices, make_side, noise, random_transfer

family = ops["hicache"]
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["transfer_hicache_one_layer", "transfer_hicache_one_layer_mla"])
def test_samples_of_one_layer(name: str):
    for sample in getattr(samples, name)(CPU):
        expected = {name: sample[name].clone() for name in sample if name.endswith("cache_dst")}
        getattr(reference, name)(**{**sample, **expected})
        getattr(family, name)(**sample)
        for name_of_dst, wanted in expected.items():
            assert_same_bytes(sample[name_of_dst], wanted)


@pytest.mark.parametrize("name", ["transfer_hicache_all_layer", "transfer_hicache_all_layer_mla"])
def test_samples_of_all_layers(name: str):
    for sample in getattr(samples, name)(CPU):
        pool = next(iter(sample.values())).memory
        pool = pool if pool.dim() > 1 else pool.memory
        before = pool.clone()
        getattr(family, name)(**sample)
        got = pool.clone()
        pool.copy_(before)
        getattr(reference, name)(**sample)
        assert_same_bytes(got, pool)


@pytest.mark.parametrize("first", [0, 100, *(pytest.param(x, marks=pytest.mark.slow) for x in range(200, 1000, 100))])
def test_a_thousand_random_transfers(first: int):
    for seed in range(first, first + 100):
        random_transfer(seed, "cpu")


@pytest.mark.parametrize("dst_layout", LAYOUTS)
@pytest.mark.parametrize("src_layout", LAYOUTS)
def test_every_pair_of_layouts(dst_layout: str, src_layout: str):
    for run in (1, 16):
        dst = make_side(dst_layout, 128, 96, torch.bfloat16, "cpu", 2, page_size=16)
        src = make_side(src_layout, 160, 96, torch.bfloat16, "cpu", 2, page_size=16)
        indices = [make_indices(rows, 96, torch.int64, "cpu", run) for rows in (128, 160)]
        check(dst, src, *indices, element_dim=96)


def test_enough_rows_for_every_thread():
    dst = make_side("dense", 20_000, 512, torch.int16, "cpu", 2, page_size=1)
    src = make_side("page_first", 20_000, 512, torch.int16, "cpu", 2, page_size=1)
    check(dst, src, *(make_indices(20_000, 19_999, torch.int32, "cpu", 1) for _ in range(2)), element_dim=512)


def test_rows_may_move_inside_one_cache():
    k, v = (noise(64 * 32, "cpu").view(64, 32) for _ in range(2))
    expected = [cache.clone() for cache in (k, v)]
    dst, src = torch.arange(0, 64, 2), torch.arange(1, 64, 2)
    for cache in expected:
        cache[dst] = cache[src]
    family.transfer_hicache_one_layer(k, v, dst, k, v, src, check_indices=True)
    assert torch.equal(k, expected[0])
    assert torch.equal(v, expected[1])
    family.transfer_hicache_one_layer(k, v, dst, k, v, dst, check_indices=True)  # onto themselves
    assert torch.equal(k, expected[0])


def test_k_and_v_as_neighbours_in_one_buffer():
    pools = [noise(40 * 2 * 24, "cpu").view(40, 2, 24) for _ in range(2)]
    expected = pools[0].clone()
    dst, src = torch.randperm(40)[:20], torch.randperm(40)[:20]
    expected[dst] = pools[1][src]
    family.transfer_hicache_one_layer(pools[0][:, 0], pools[0][:, 1], dst, pools[1][:, 0], pools[1][:, 1], src)
    assert torch.equal(pools[0], expected)


def test_layers_of_a_page_as_neighbours():
    """From a layer to another of the same page-first pool, whose pages lie between each other's."""
    pool = noise(5 * 3 * 4 * 32, "cpu").view(5, 3, 4, 32)
    expected = pool.clone()
    expected[:, 0] = pool[:, 2]
    rows = torch.arange(20)
    family.transfer_hicache_one_layer_mla(pool[:, 0], rows, pool[:, 2], rows)
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("num_layers", [1, 5, 96, 97, 200])
def test_all_layers_into_pages(num_layers: int):
    """From a pool for each layer to one in which the layers of a page of 4 rows are neighbours, and back."""
    layers = [noise(24 * 48, "cpu").view(24, 48) for _ in range(num_layers)]
    pool = noise(6 * num_layers * 4 * 48, "cpu").view(6, num_layers, 4, 48)
    expected = pool.clone()
    dst, src = torch.randperm(24)[:13].int(), torch.randperm(24)[:13].int()
    for layer in range(num_layers):
        expected[dst.long() // 4, layer, dst.long() % 4] = layers[layer][src.long()]
    of_layers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    of_pool = torch.tensor([pool[:, layer].data_ptr() for layer in range(num_layers)], dtype=torch.uint64)
    family.transfer_hicache_all_layer_mla(
        of_pool, dst, of_layers, src, cache_src_stride_bytes=48, cache_dst_stride_bytes=48, page_size=4,
        cache_dst_page_stride_bytes=num_layers * 4 * 48, check_indices=True,
    )  # fmt: skip
    assert torch.equal(pool, expected)
    restored = [layer.clone() for layer in layers]
    for layer in layers:
        layer[src.long()] = 0
    family.transfer_hicache_all_layer_mla(
        of_layers, src, of_pool, dst, cache_src_stride_bytes=48, cache_dst_stride_bytes=48, page_size=4,
        cache_src_page_stride_bytes=num_layers * 4 * 48,
    )  # fmt: skip
    for layer, wanted in zip(layers, restored, strict=True):
        assert torch.equal(layer, wanted)


def test_the_right_kernel_can_be_told_by_row_size():
    assert family.can_use_hicache_jit_kernel(element_size=2048)
    assert family.can_use_hicache_jit_kernel(element_size=576, unroll=4, block_quota=2)
    assert family.can_use_hicache_jit_kernel(element_size=2048, page_size=64)
    assert not family.can_use_hicache_jit_kernel(element_size=100)
    assert not family.can_use_hicache_jit_kernel(element_size=0)


@pytest.mark.parametrize("value", ["0", *(pytest.param(value, marks=pytest.mark.slow) for value in ("", "1"))])
def test_indices_are_checked_by_default_and_the_environment_turns_it_off(value: str):
    program = (
        "import torch; from sgljit_core import ops\n"
        "x, y, i = torch.zeros(4, 16), torch.zeros(4, 16), torch.tensor([1, 2])\n"
        "ops['hicache'].transfer_hicache_one_layer_mla(x, torch.tensor([1, 1]), y, i)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SGLJIT_CHECK_INDICES": value},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (result.returncode != 0) == (value != "0"), result.stderr
    if value != "0":
        assert "indices_dst[1] is 1, as is indices_dst[0]" in result.stderr


@pytest.mark.parametrize("index", [-1, 4, 2**40])
@pytest.mark.parametrize("dst", [True, False])
def test_an_index_out_of_range_moves_nothing(index: int, dst: bool):
    around = torch.zeros(6, 16)
    bad, good = torch.tensor([0, index]), torch.tensor([2, 3])
    indices = (bad, good) if dst else (good, bad)
    with pytest.raises(IndexError, match=rf"indices_{'dst' if dst else 'src'}\[1\] is {index}, out of range"):
        family.transfer_hicache_one_layer_mla(around[1:5], indices[0], torch.ones(4, 16), indices[1])
    table, source = torch.tensor([around[1:5].data_ptr()]), torch.tensor([around.data_ptr()])
    with pytest.raises(IndexError):
        family.transfer_hicache_all_layer_mla(
            table, indices[0], source, indices[1], cache_src_stride_bytes=64, cache_dst_stride_bytes=64,
            num_rows_dst=4, num_rows_src=4,
        )  # fmt: skip
    assert not around.any()


def test_torch_compile():
    def there_and_back(k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        host_k, host_v = torch.zeros_like(k), torch.zeros_like(v)
        family.transfer_hicache_one_layer(host_k, host_v, i, k, v, j)
        family.transfer_hicache_one_layer(k, v, i, host_k, host_v, i, block_quota=2)
        return host_k + 1

    arguments = [torch.randn(8, 32), torch.randn(8, 32), torch.tensor([0, 3]), torch.tensor([5, 1])]
    copies = [tensor.clone() for tensor in arguments]
    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), there_and_back(*copies))
    assert torch.equal(arguments[0], copies[0])


def test_torch_compile_of_all_layers_outside_its_graphs():
    """To a graph the pools are unknown: the README says to keep the call out of graphs."""
    pools = [torch.zeros(3, 8, 32) for _ in range(2)]
    tables = [torch.tensor([layer.data_ptr() for layer in pool]) for pool in pools]
    rows = torch.tensor([0, 3]), torch.tensor([5, 1])

    @torch.compiler.disable
    def transfer() -> None:
        family.transfer_hicache_all_layer_mla(
            tables[0], rows[0], tables[1], rows[1], cache_src_stride_bytes=128, cache_dst_stride_bytes=128
        )

    def step(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        src.add_(1)
        transfer()
        read = dst * 2
        dst.add_(3)
        return read

    compiled = torch.compile(step, backend="aot_eager")
    for i in (1, 2, 3):
        expected = pools[0].clone()
        expected[:, rows[0]] = i
        assert torch.equal(compiled(*pools), 2 * expected)
        assert torch.equal(pools[0], expected + 3)


def test_torch_compile_asks_for_the_right_kernel():
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if family.can_use_hicache_jit_kernel(element_size=4 * x.shape[-1]) else x - 1

    family.can_use_hicache_jit_kernel(element_size=16)
    compiled = torch.compile(step, backend="aot_eager")
    assert torch.equal(compiled(torch.zeros(2, 4)), torch.ones(2, 4))
    assert torch.equal(compiled(torch.zeros(2, 5)), -torch.ones(2, 5))
    torch.compiler.reset()
    whole = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=False)
    assert torch.equal(whole(torch.zeros(2, 4)), torch.ones(2, 4))
    assert torch.equal(whole(torch.zeros(2, 5)), -torch.ones(2, 5))
