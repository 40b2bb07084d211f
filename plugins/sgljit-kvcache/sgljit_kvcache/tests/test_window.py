"""Windows that move and take new rows: every bit, nothing beside them, and what wrong arguments get."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch

from sgljit_core import ops, override_cuda_arch
from sgljit_core.errors import TensorMatchError
from sgljit_kvcache.plugin import FAMILY
from sgljit_tools.testing import build_variant

append = ops["kvcache"].append_to_window
zeros = torch.zeros
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def noise(*shape, dtype=torch.bfloat16, device="cpu"):
    """Any bits, those of NaN too."""
    *outer, size = shape
    return torch.randint(256, (*outer, size * dtype.itemsize), dtype=torch.uint8, device=device).view(dtype)


def words(x):
    """Integers for the bits, which a comparison takes as they are."""
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def moved(cache, x):
    """By PyTorch's roll, of integers."""
    tokens = x.shape[2]
    wanted = words(cache).roll(-tokens, dims=2)
    wanted[:, :, wanted.shape[2] - tokens :] = words(x)
    return wanted


def check(k_cache, v_cache, k, v):
    arguments = (k_cache, v_cache, k, v)
    wanted = [moved(k_cache, k), moved(v_cache, v), words(k).clone(), words(v).clone()]
    append(*arguments)
    for name, got, want in zip(("k_cache", "v_cache", "k", "v"), arguments, wanted, strict=True):
        assert torch.equal(words(got), want), name


def transposed(batch, heads, tokens, size, **options):
    """As a projection gives them: token by token."""
    return noise(batch, tokens, heads, size, **options).transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_move_and_new_ones_come_behind_them(dtype, device):
    torch.manual_seed(0)
    options = {"dtype": dtype, "device": device}
    for size, v_size in ((64, 64), (65, 65), (1, 1), (24, 6), (7, 256)):
        for batch, window, tokens in itertools.product((1, 3), (1, 5, 70), (0, 1, 3, 70)):
            if tokens > window:
                continue
            caches = [noise(batch, 2, window, n, **options) for n in (size, v_size)]
            check(*caches, *(transposed(batch, 2, tokens, n, **options) for n in (size, v_size)))


def test_a_window_of_new_rows_replaces_the_cache(device):
    caches = [torch.full((2, 3, 9, 40), float("nan"), device=device) for _ in "kv"]
    rows = [torch.randn(2, 3, 9, 40, device=device) for _ in "kv"]
    append(*caches, *rows)
    assert all(torch.equal(*pair) for pair in zip(caches, rows, strict=True))


@pytest.mark.parametrize("tokens", [1, 2, 300, 2047, 2048, 2049, 4999])
def test_windows_of_many_chunks(tokens, device):
    """A block goes over such a window in several, and threads of the CPU share the heads."""
    torch.manual_seed(1)
    for size, heads in ((64, 8), (3, 2), (1, 1)):
        caches = [noise(1, heads, 5000, size, device=device) for _ in "kv"]
        check(*caches, *(transposed(1, heads, tokens, size, device=device) for _ in "kv"))


def test_many_sequences(device):
    torch.manual_seed(2)
    caches = [noise(130, 3, 17, 96, device=device) for _ in "kv"]
    check(*caches, *(transposed(130, 3, 2, 96, device=device) for _ in "kv"))


def test_nothing_to_do_is_done(device):
    for batch, heads, window, tokens, size in ((0, 2, 4, 1, 8), (2, 0, 4, 1, 8), (2, 2, 4, 0, 8), (2, 2, 0, 0, 8)):
        caches = [torch.ones(batch, heads, window, size, device=device) for _ in "kv"]
        append(*caches, *(zeros(batch, heads, tokens, size, device=device) for _ in "kv"))
        assert all((cache == 1).all() for cache in caches)
    caches = [torch.ones(2, 2, 4, size, device=device) for size in (0, 8)]
    append(*caches, *(zeros(2, 2, 1, size, device=device) for size in (0, 8)))
    assert torch.equal(caches[1][0, 0, :, 0].cpu(), torch.tensor([1.0, 1, 1, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_nothing_beside_the_caches_is_written(dtype, device):
    """They lie in one buffer, at addresses and with rows that only narrow loads take; rows of k and v have gaps."""
    torch.manual_seed(3)
    for size, gap, shift in ((32, 32, 0), (32, 8, 4), (16, 2, 2), (16, 1, 1), (5, 3, 3)):
        count = 2 * 3 * 11 * size
        buffer = noise(2 * (count + 64), dtype=dtype, device=device)
        own = slice(shift, shift + count), slice(count + 64, 2 * count + 64)
        rows = [transposed(2, 3, 4, size + gap, dtype=dtype, device=device)[..., gap:] for _ in "kv"]
        caches = [buffer[place].view(2, 3, 11, size) for place in own]
        wanted = words(buffer).clone()
        for place, cache, x in zip(own, caches, rows, strict=True):
            wanted[place] = moved(cache, x).flatten()
        append(*caches, *rows)
        assert torch.equal(words(buffer), wanted), (size, gap, shift)


def test_new_rows_may_have_any_distances(device):
    """In another order, rows that are one row, and the same rows for keys and values."""
    torch.manual_seed(4)
    for x in (
        noise(3, 4, 2, 16, device=device).permute(2, 1, 0, 3),
        noise(2, 4, 3, 48, device=device)[..., 16:32],
        noise(1, 1, 1, 16, device=device).expand(2, 4, 3, 16),
    ):
        check(*(noise(2, 4, 7, 16, device=device) for _ in "kv"), x, x)


@pytest.mark.parametrize("dimension", [0, 1, 2], ids=["sequences", "heads", "rows"])
def test_distances_beyond_32_bits(dimension, device):
    """The distance is so long, in elements; the memory between is never touched."""
    far = 2**32 + 64
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] < 5 * far:
        pytest.skip("not enough memory")
    try:
        memory = [torch.empty(2 * far, dtype=torch.uint8, device=device).view(DTYPES[3]) for _ in "kv"]
    except RuntimeError:
        pytest.skip("not enough memory")
    shape, strides = [1, 1, 1, 64], [0, 0, 0, 1]
    shape[dimension], strides[dimension] = 2, far
    rows = [x.as_strided(shape, strides) for x in memory]
    for x in rows:
        words(x).copy_(torch.randint(256, x.shape, dtype=torch.uint8, device=device))
    batch, heads, _, _ = shape
    check(*(noise(batch, heads, 4, 64, dtype=DTYPES[3], device=device) for _ in "kv"), *rows)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_elements_than_32_bits_count():
    if torch.cuda.mem_get_info()[0] < 5 * 2**32:
        pytest.skip("not enough memory")
    options = {"dtype": DTYPES[3], "device": "cuda"}
    for heads, window, size in ((33, 2**20, 128), (1, 2**32 + 5, 1)):
        cache, small = noise(1, heads, window, size, **options), noise(1, heads, window, 0, **options)
        rows, none = noise(1, heads, 1, size, **options), noise(1, heads, 1, 0, **options)
        wanted = torch.cat((words(cache)[:, :, 1:], words(rows)), dim=2)
        append(cache, small, rows, none)
        assert torch.equal(words(cache), wanted)
        del cache, wanted


def given(device, **changed):
    arguments = {name: zeros(2, 3, 4, 8) for name in ("k_cache", "v_cache")}
    arguments |= {name: zeros(2, 3, 1, 8) for name in ("k", "v")}
    return {name: x.to(device) for name, x in {**arguments, **changed}.items()}


BAD = {
    "dimensions of k_cache": ({"k_cache": zeros(2, 4, 8)}, "k_cache", "Dimension mismatch: expected 4 but got 3"),
    "batch of v_cache": ({"v_cache": zeros(1, 3, 4, 8)}, "v_cache", r"shape#0\('batch'\): expected 2 but got 1"),
    "heads of v_cache": ({"v_cache": zeros(2, 1, 4, 8)}, "v_cache", r"shape#1\('heads'\): expected 3 but got 1"),
    "window of v_cache": ({"v_cache": zeros(2, 3, 5, 8)}, "v_cache", r"shape#2\('window'\): expected 4 but got 5"),
    "batch of k": ({"k": zeros(3, 3, 1, 8)}, "k", r"shape#0\('batch'\): expected 2 but got 3"),
    "size of k": ({"k": zeros(2, 3, 1, 6)}, "k", r"shape#3\('size of keys'\): expected 8 but got 6"),
    "size of v": ({"v": zeros(2, 3, 1, 6)}, "v", r"shape#3\('size of values'\): expected 8 but got 6"),
    "heads of v": ({"v": zeros(2, 1, 1, 8)}, "v", r"shape#1\('heads'\): expected 3 but got 1"),
    "tokens of v": ({"v": zeros(2, 3, 2, 8)}, "v", r"shape#2\('tokens'\): expected 1 but got 2"),
    "dtype of v_cache": ({"v_cache": zeros(2, 3, 4, 8).half()}, "v_cache", "expected float32 but got float16"),
    "dtype of k": ({"k": zeros(2, 3, 1, 8).half()}, "k", "expected float32 but got float16"),
    "no element": ({"k_cache": zeros(2, 3, 4, 8).long()}, "k_cache", r"one of \[float32, .*\] but got int64"),
    "more tokens than a window": (
        {name: zeros(2, 3, 5, 8) for name in "kv"},
        "k",
        r"shape#2\('tokens'\): expected at most 4, the window of k_cache, but got 5",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        append(**given(device, **changed))


@pytest.mark.parametrize("name", ["k", "v"])
def test_gaps_inside_a_row_are_refused(name, device):
    arguments = given(device)
    arguments[name] = arguments[name].repeat(1, 1, 1, 2)[..., ::2]
    with pytest.raises(TensorMatchError, match=rf"(?s)for {name}, Tensor<.*stride#3: expected 1 but got 2"):
        append(**arguments)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_a_cache_with_gaps_is_refused(name, device):
    wide, long, turned = (zeros(*size).to(device) for size in ((2, 3, 4, 16), (2, 3, 5, 8), (2, 4, 3, 8)))
    for cache in (wide[..., :8], long[:, :, :4], turned.transpose(1, 2)):
        arguments = {**given(device), name: cache}
        with pytest.raises(TensorMatchError, match=rf"(?s)for {name}, Tensor<.*contiguous"):
            append(**arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["v_cache", "k", "v"])
def test_a_tensor_on_another_device_is_refused(name):
    arguments = given("cuda")
    arguments[name] = arguments[name].cpu()
    with pytest.raises(TensorMatchError, match=rf"(?s)for {name}, Tensor<.*Device mismatch: expected cuda"):
        append(**arguments)


def test_shared_memory_is_refused_and_nothing_is_written(device):
    memory = torch.arange(768.0, device=device)
    cache, before = memory[:192].view(2, 3, 4, 8), memory.clone()
    for name, other, changed in (
        ("k_cache", "v_cache", {"k_cache": cache, "v_cache": cache}),
        ("k_cache", "v_cache", {"k_cache": cache, "v_cache": memory[191:383].view(2, 3, 4, 8)}),
        ("k_cache", "k", {"k_cache": cache, "k": cache[:, :, 3:]}),
        ("k_cache", "v", {"k_cache": cache, "v": memory[184:232].view(2, 3, 1, 8)}),
        ("v_cache", "k", {"v_cache": cache, "k": cache[:1, :1, :1].expand(2, 3, 1, 8)}),
        (
            "v_cache",
            "v",
            {"v_cache": memory[192:384].view(2, 3, 4, 8), "v": memory.as_strided((2, 3, 1, 8), (384, 8, 8, 1))},
        ),
    ):
        with pytest.raises(ValueError, match=rf"{name} shares memory with {other}: "):
            append(**given(device, **changed))
    assert torch.equal(memory, before)


def test_neighbours_in_memory_are_not_refused(device):
    check(*noise(4, 2, 3, 4, 8, dtype=torch.float32, device=device))
    rows, memory = 2 * 3 * 8, noise(6 * 2 * 3 * 8, dtype=torch.float32, device=device)
    k, k_cache, v, v_cache = memory.split((rows, 2 * rows, rows, 2 * rows))
    check(k_cache.view(2, 3, 2, 8), v_cache.view(2, 3, 2, 8), k.view(2, 3, 1, 8), v.view(2, 3, 1, 8))


SHARED = """
import torch
from sgljit_core import ops
caches, rows = ([torch.randint(99, (3, 2, n, 5)).float() for _ in "kv"] for n in (6, 2))
wanted = [torch.cat((cache[:, :, 2:], x), 2) for cache, x in zip(caches, rows)]
ops["kvcache"].append_to_window(*caches, *rows)
assert all(torch.equal(*pair) for pair in zip(caches, wanted))
"""


@pytest.mark.slow
def test_threads_of_the_cpu_share_heads():
    script = (sys.executable, "-c", SHARED)
    environment = {**os.environ, "SGLJIT_SPLIT_ALWAYS": "1"}
    result = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


ARCHS = [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=() if arch == (9, 0) else pytest.mark.slow, id=str(arch)) for arch in ARCHS]
)
def test_kernels_compile_without_a_gpu(arch):
    with override_cuda_arch(*arch):
        for word in (1, 2, 4, 8, 16):
            build_variant(FAMILY, "window.cuh", "kvcache::append", word)


@pytest.mark.gpu
def test_a_chain_of_dependent_launches():
    """Each launch reads what the one before it wrote; nothing else stands between them."""
    torch.manual_seed(5)
    for heads, window, size in ((8, 128, 64), (4, 1024, 256), (3, 2500, 9)):
        caches = [noise(2, heads, window, size, device="cuda") for _ in "kv"]
        rows = [transposed(2, heads, 50, size, device="cuda") for _ in "kv"]
        wanted = [moved(*pair) for pair in zip(caches, rows, strict=True)]
        for token in range(50):
            append(*caches, *(x[:, :, token : token + 1] for x in rows))
        for cache, want in zip(caches, wanted, strict=True):
            assert torch.equal(words(cache), want)


@pytest.mark.gpu
def test_graph_capture_and_replay_with_other_data():
    caches = [noise(1, 8, 128, 64, device="cuda") for _ in "kv"]
    rows = [noise(1, 8, 1, 64, device="cuda") for _ in "kv"]
    append(*(x.clone() for x in caches), *rows)  # a capture must not meet a compile
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        append(*caches, *rows)
        append(*caches, *rows)
    for seed in range(3):
        torch.manual_seed(seed)
        for x in (*caches, *rows):
            x.copy_(noise(*x.shape, device="cuda"))
        wanted = [moved(cache, x.repeat(1, 1, 2, 1)) for cache, x in zip(caches, rows, strict=True)]
        graph.replay()
        for cache, want in zip(caches, wanted, strict=True):
            assert torch.equal(words(cache), want)


@pytest.mark.gpu
def test_another_stream():
    """The kernel runs on the current stream: after what is queued there, without waiting for it here."""
    caches = [zeros(2, 4, 100, 64, device="cuda") for _ in "kv"]
    rows = [zeros(2, 4, 1, 64, device="cuda") for _ in "kv"]
    fresh = [torch.randn_like(x) for x in (*caches, *rows)]
    append(*caches, *rows)  # compiled and loaded
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # cycles, so that a kernel on any other stream comes too early
        for x, data in zip((*caches, *rows), fresh, strict=True):
            x.copy_(data)
        append(*caches, *rows)
    assert not stream.query()
    stream.synchronize()
    for cache, before, x in zip(caches, fresh[:2], fresh[2:], strict=True):
        assert torch.equal(words(cache), moved(before, x))
