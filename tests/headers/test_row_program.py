"""Row programs (row_program.h): operands, pairs, groups, segments, on both devices; PyTorch in float64 is the judge."""

from __future__ import annotations

import itertools
import platform
import re
import shutil
import subprocess
from collections import Counter

import pytest
import torch
from headers import toolbox

from sgljit_core import CppEnum, CppType, KernelFamily, override_cuda_arch, parallel_compile
from sgljit_core.errors import CompileError, TensorMatchError
from sgljit_tools.recording.recorder import record
from sgljit_tools.testing import build_variant

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.bfloat16, *(pytest.param(x, marks=pytest.mark.slow) for x in (torch.float32, torch.float16))]
CLOSE = {torch.float32: 2**-20, torch.float16: 2**-10, torch.bfloat16: 2**-7}
EPS = 1e-6
NAN, INFINITY = float("nan"), float("inf")
each_device = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    toolbox.find()
    site = tmp_path_factory.mktemp("site")
    csrc = site / "row_programs_on_disk" / "csrc"
    csrc.mkdir(parents=True)
    (csrc.parent / "__init__.py").touch()
    for name in ("row_programs.h", "row_programs.cpp"):
        shutil.copy(toolbox.CSRC / name, csrc)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield KernelFamily("row_programs", "row_programs_on_disk")


@pytest.fixture(scope="module")
def programs(family):
    return family.load_host(
        "row_programs", cpp_files=["row_programs.cpp"], header_only=False, extra_cflags=toolbox.WARNINGS
    )


def random(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def poisoned(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.full_like(like, NAN, dtype=dtype or like.dtype)


def expect(got: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    tolerance = CLOSE[got.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x.double(), x.shape[-1:], weight.double(), EPS)


def rotated(x: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, order: str) -> torch.Tensor:
    size = cos_sin.shape[-1]
    cos, sin = cos_sin[positions.long()].double()[:, None].chunk(2, -1)
    x, rest = x.double().split([size, x.shape[-1] - size], -1)
    a, b = x.chunk(2, -1) if order == "neox" else (x[..., ::2], x[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    both = torch.cat([a, b], -1) if order == "neox" else torch.stack([a, b], -1).flatten(-2)
    return torch.cat([both, rest], -1)


SHAPES = [(0, 64), (1, 1), (1, 64), (3, 7), (5, 100), (2, 1000), (3, 4096), (1, 5120), (2, 16384), (1, 40_001)]


@each_device
@each_dtype
@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=str)
def test_a_reduction_and_a_row_for_all_of_another_dtype(programs, device, dtype, weight_dtype):
    for rows, columns in SHAPES:
        x = random(rows, columns, dtype=dtype, device=device)
        weight = random(columns, dtype=weight_dtype or dtype, device=device)
        out = poisoned(x)
        programs.rmsnorm(x, weight, out, EPS)
        expect(out, rms_norm(x, weight))


@each_device
@each_dtype
def test_outputs_in_place_are_of_what_was_there_before(programs, device, dtype):
    for rows, columns in SHAPES:
        x, residual = (random(rows, columns, dtype=dtype, device=device) for _ in range(2))
        weight = random(columns, dtype=dtype, device=device)
        total = x.double() + residual.double()
        programs.fused_add_rmsnorm(x, residual, weight, EPS)
        expect(residual, total)
        expect(x, rms_norm(total, weight), 2 * CLOSE[dtype])


@pytest.mark.slow
@each_device
@each_dtype
def test_several_reductions(programs, device, dtype):
    for rows, columns in SHAPES:
        x = random(rows, columns, dtype=dtype, device=device) + 3
        weight, bias = (random(columns, dtype=dtype, device=device) for _ in range(2))
        out = poisoned(x)
        programs.layernorm(x, weight, bias, out, EPS)
        wanted = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), EPS)
        expect(out, wanted, 4 * CLOSE[dtype])
        programs.softmax(x, out)
        expect(out, x.double().softmax(-1))


@each_device
@each_dtype
def test_a_program_of_any_columns(programs, device, dtype):
    for rows, columns in SHAPES[1:]:
        x = random(rows, columns, dtype=dtype, device=device)
        out = poisoned(x)
        programs.any_softmax(x, out)
        expect(out, x.double().softmax(-1))


@pytest.mark.gpu
def test_sizes_below_one_power_of_two_of_loads_share_a_kernel_of_any_columns(programs):
    """So a new one may come in a capture, which a kernel that compiles would end."""
    graph, x = torch.cuda.CUDAGraph(), random(3, 1016, dtype=torch.bfloat16, device="cuda")
    out = poisoned(x)
    programs.any_softmax(x[:, :1000].clone(), out[:, :1000].clone())
    with torch.cuda.graph(graph):
        programs.any_softmax(x, out)
    graph.replay()
    expect(out, x.double().softmax(-1))
    x, out, scales = (torch.ones(2, columns, device="cuda") for columns in (256, 256, 2))
    with pytest.raises(ValueError, match=r"rows with groups or pairs are held .* holds none of 64 loads"):
        programs.any_per_group(x, out, scales)


@pytest.mark.slow
@each_device
@each_dtype
def test_a_value_for_each_row_and_outputs_of_another_dtype(programs, device, dtype):
    for rows, columns in SHAPES[1:]:
        x = random(rows, columns, dtype=dtype, device=device)
        out = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn, device=device)
        scale = torch.full((rows, 1), NAN, device=device)
        programs.per_token(x, out, scale)
        expect(scale, x.double().abs().amax(-1, keepdim=True) / 448)
        expect(out.double() * scale, x, 2**-4 * x.abs().max().item())
        for of_rows in (scale, scale.half(), scale.bfloat16(), scale.to(torch.int64)):
            back = poisoned(x)
            programs.scaled(x, of_rows, back)
            expect(back, x.double() * of_rows)


@each_device
@each_dtype
def test_a_monoid_and_a_value_of_integers_for_each_row(programs, device, dtype):
    for rows, columns in SHAPES:
        x = random(rows, columns, dtype=dtype, device=device)
        if columns > 2:
            x[:, columns // 2 :] = x[:, : columns - columns // 2].clone()  # equal ones: the first counts
        for index in (torch.int32, torch.int64):
            wanted = x.float().max(-1, keepdim=True).values
            for stored in (torch.float32, torch.float16, torch.bfloat16):  # rounded where it has more digits
                largest = torch.full((rows, 1), NAN, dtype=stored, device=device)
                found = x.new_full((rows, 1), -1, dtype=index)
                programs.argmax(x, largest, found)
                assert torch.equal(largest, wanted.to(stored))
            first = (x.float() == wanted).int().argmax(-1, keepdim=True)
            assert torch.equal(found.long(), first)


@each_device
@each_dtype
def test_a_softmax_by_a_monoid_is_that_of_two_passes(programs, device, dtype):
    for rows, columns in SHAPES[1:]:
        for factor in (1, 30):
            x = (factor * torch.randn(rows, columns, device=device)).to(dtype)
            x[:, : columns // 3] = -INFINITY
            out = poisoned(x)
            programs.online_softmax(x, out)
            expect(out, x.double().softmax(-1))
    x = torch.full((3, 100), -INFINITY, dtype=dtype, device=device)
    x[1, 50], x[2, 50] = 2, NAN
    out = torch.zeros_like(x)
    programs.online_softmax(x, out)
    torch.testing.assert_close(out, x.softmax(-1), rtol=0, atol=0, equal_nan=True)


@each_device
@each_dtype
def test_moments_by_a_monoid(programs, device, dtype):
    for rows, columns in SHAPES[1:]:
        for shift in (0, 256):
            x = (16 * torch.randn(rows, columns, device=device) + shift).to(dtype)
            mean, variance = (torch.full((rows, 1), NAN, device=device) for _ in range(2))
            programs.moments(x, mean, variance)
            exact = x.double()
            expect(mean, exact.mean(-1, keepdim=True), 2**-14)
            wanted = exact.var(-1, keepdim=True, correction=0)
            torch.testing.assert_close(variance.double(), wanted, rtol=2**-10, atol=0)


@each_device
@each_dtype
def test_a_row_for_each_group_of_rows(programs, device, dtype):
    """Such as the bias of an expert, for all of its tokens."""
    for groups, rows, columns in ((0, 3, 8), (1, 1, 1), (3, 1, 64), (1, 5, 7), (4, 3, 100), (2, 33, 4096)):
        wide = random(groups, rows + 2, columns, dtype=dtype, device=device)
        x, bias = wide[:, 1:-1], random(groups, columns, dtype=dtype, device=device)
        out = poisoned(x)
        programs.affine_groups(x, bias, out, 3)
        expect(out, x.double() * 3 + bias[:, None].double())
    with pytest.raises(TensorMatchError, match=r"(?s)for shift.*number of rows: expected 2 but got 3"):
        programs.affine_groups(x, torch.ones(3, columns, dtype=dtype, device=device), out, 3)


@each_device
@each_dtype
def test_each_group_of_columns_has_its_part_of_the_row_for_all(programs, device, dtype):
    """Such as the weight of a norm of groups: a row for all rows, but not for all groups."""
    for rows, groups, size in ((0, 3, 8), (1, 1, 1), (1, 2, 64), (3, 4, 7), (5, 3, 128), (2, 2, 4096), (2, 3, 16384)):
        x = random(rows, groups * size, dtype=dtype, device=device)
        weight = random(groups * size, dtype=dtype, device=device)
        out = poisoned(x)
        programs.group_rmsnorm(x, weight, out, size, EPS)
        expect(
            out,
            rms_norm(x.unflatten(-1, (groups, size)), torch.ones(size, device=device)).flatten(-2) * weight.double(),
        )
    with pytest.raises(TensorMatchError, match=r"(?s)for weight.*rows of each, such as heads: expected 3 but got 2"):
        programs.group_rmsnorm(x, weight[: 2 * size], out, size, EPS)
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of weight"):
        programs.group_rmsnorm(x, x[1], x, size, EPS)


@pytest.mark.slow
@each_device
@each_dtype
def test_a_list_of_what_a_row_is_reduced_to_by_a_monoid_with_a_field(programs, device, dtype):
    for rows, columns in SHAPES:
        x = random(rows, columns, dtype=dtype, device=device)
        order = x.float().sort(stable=True, descending=True)
        for size, index in ((0, torch.int32), (1, torch.int64), (min(columns, 32), torch.int32)):
            largest = torch.full((rows, 2 * size), NAN, device=device)[:, ::2]
            found = torch.full((size, rows), -1, dtype=index, device=device).t()
            programs.ranked(x, largest, found, size)
            assert torch.equal(found.long(), order.indices[:, :size])
            assert torch.equal(largest, order.values[:, :size] + torch.arange(size, device=device))


@each_device
@each_dtype
def test_the_largest_of_a_row_are_ranked_by_keys_with_nan_below_all(programs, device, dtype):
    special = [NAN, -INFINITY, INFINITY, 0.0, -0.0, -1.0, 1.0, -NAN]
    for rows, columns in SHAPES:
        x = random(rows, columns, dtype=dtype, device=device)
        some = torch.tensor(special, dtype=dtype, device=device).repeat(rows, columns)[:, :columns]
        x = torch.where(random(rows, columns, dtype=dtype, device=device) > 0, some, x)
        k = min(columns, 32)
        found = torch.full((rows, k), -1, dtype=torch.int32, device=device)
        programs.largest(x, found, k)
        for row, of_row in zip(found.tolist(), x.tolist(), strict=True):
            keys = [(value != value, 0 if value != value else -value) for value in of_row]
            assert row == sorted(range(columns), key=keys.__getitem__)[:k]


@each_device
def test_a_list_that_does_not_fit_is_refused(programs, device):
    x, numbers = torch.ones(3, 40, device=device), torch.empty(3, 33, device=device)
    for columns, size in ((40, 33), (4, 5)):
        text = f"a list of {size} states; it has at most 32, and one for each of the {columns} elements of a row"
        with pytest.raises(ValueError, match=text):
            programs.ranked(x[:, :columns], numbers[:, :size], numbers[:, :size].int(), size)
    with pytest.raises(TensorMatchError, match=r"(?s)for columns.*Size mismatch for a row: expected 4 but got 5"):
        programs.ranked(x, numbers[:, :4], numbers[:, :5].int(), 4)
    with pytest.raises(
        TensorMatchError, match=r"(?s)for largest.*DType mismatch: expected one of .float32, float16, bfloat16, int"
    ):
        programs.ranked(x, numbers[:, :4].to(torch.int8), numbers[:, :4].int(), 4)
    with pytest.raises(ValueError, match="rows of largest share memory with each other"):
        programs.ranked(x, numbers[:1, :4].expand(3, 4), numbers[:, :4].int(), 4)


@pytest.mark.slow
@each_device
@each_dtype
def test_a_chain_that_rounds_in_between_is_two_calls(programs, device, dtype):
    """The second stage gets the values that the first call alone would store. The bits agree if the sums do."""
    for rows, columns in SHAPES:
        x = 3 * random(rows, columns, dtype=dtype, device=device)
        between = poisoned(x)
        out, wanted = (torch.zeros_like(x, dtype=torch.float8_e4m3fn) for _ in range(2))
        scale, wanted_scale = (torch.full((rows, 1), NAN, device=device) for _ in range(2))
        programs.rmsnorm(x, torch.ones(columns, device=device), between, EPS)
        programs.per_token(between, wanted, wanted_scale)
        programs.chained(x, out, scale, EPS)
        assert torch.equal(scale, wanted_scale)
        assert torch.equal(out.view(torch.uint8), wanted.view(torch.uint8))
    if dtype == torch.float32:  # nothing is rounded in between, and the compiler may contract the stages' products
        return
    for size, paired in HEADS:
        x = random(9, 90, size, dtype=dtype, device=device)
        apart, weight = x.clone(), torch.ones(size, dtype=dtype, device=device)
        cos_sin, positions = torch.randn(50, paired, device=device), torch.arange(9, device=device)
        programs.qknorm(apart[:, :60], apart[:, 60:], weight, weight, EPS)
        programs.rope_neox(apart[:, :60], apart[:, 60:], cos_sin, positions)
        programs.rounded_prologue(x, weight, cos_sin, positions, EPS)
        if size <= 256 or device == "cpu":
            assert torch.equal(x, apart)
        else:  # the last bit of a sum may differ, as a block sums a long row in one of the two
            assert (x != apart).float().mean() < 1e-2
            assert (x - apart).float().norm() <= 1e-3 * apart.float().norm()


@each_device
@each_dtype
def test_a_map_of_rows_of_any_size_and_alignment(programs, device, dtype):
    """Rows without gaps, with gaps, that begin at odd addresses, and that end within a vector."""
    for rows, columns in [*SHAPES, (3, 5), (7, 130), (65, 1), (7, 22_861), (65, 8_197)]:  # the more, the wider vectors
        for stride, first in ((columns, 0), (columns, 1), (columns + 3, 0), (columns + 8, 0)):
            buffer = torch.full((rows * stride + 9,), NAN, dtype=dtype, device=device)
            buffer[first : first + rows * stride] = random(rows * stride, dtype=dtype, device=device)
            x, out = buffer[first:].as_strided((rows, columns), (stride, 1)), torch.full_like(buffer, 7)
            y = out[first:].as_strided((rows, columns), (stride, 1))
            for shift in (
                random(rows, columns, dtype=dtype, device=device),
                random(columns, dtype=dtype, device=device),
            ):
                wanted = torch.full_like(out, 7)
                wanted[first:].as_strided((rows, columns), (stride, 1)).copy_(x.double() * 3 + shift.double())
                out.fill_(7)
                programs.affine(x, shift, y, 3)
                expect(out, wanted)
            before = x.clone()
            programs.mean(x, x)
            expect(x, before.double() / columns)


@each_device
def test_rows_without_elements_have_a_value(programs, device):
    scale = torch.full((3, 1), NAN, device=device)
    programs.per_token(
        torch.empty(3, 0, device=device), torch.empty(3, 0, dtype=torch.float8_e4m3fn, device=device), scale
    )
    assert (scale == 2.0**-126).all()


@each_device
def test_a_maximum_ignores_nan(programs, device):
    for columns in (1, 7, 64, 4096, 40_001):
        x = torch.randn(3, columns, device=device)
        x[0, columns // 2], x[1] = NAN, NAN
        out, scale = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.full((3, 1), NAN, device=device)
        programs.per_token(x, out, scale)
        wanted = x.double().abs().nan_to_num(0).amax(-1, keepdim=True) / 448
        expect(scale, wanted.clamp(min=2.0**-126))


@each_device
def test_a_sum_of_many_terms_is_exact_and_the_same_in_each_run(programs, device):
    """Terms of one sign: the error stays some units in the last place, and does not grow with the row."""
    for columns in (16384, 1 << 20):
        x = torch.rand(2, columns, device=device) + 0.5
        weight, runs = torch.ones(columns, device=device), [torch.empty_like(x) for _ in range(2)]
        for out in runs:
            programs.rmsnorm(x, weight, out, 0)
        assert torch.equal(*runs)
        expect(runs[0], x.double() / x.double().square().mean(-1, keepdim=True).sqrt(), 2**-21)


@each_device
@each_dtype
@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.slow) for n in (16, 32)), 128, 256])
def test_a_value_for_each_group_in_any_layout(programs, device, dtype, size):
    shapes = ((0, 256), (1, 256), (3, 512), (5, 7168), *([(33, 1408)] if size < 256 else []))
    if size == 256 and dtype == torch.float32 and device == "cuda":  # a warp shares a group, by loads of 16 bytes
        x, scales = torch.ones(1, 256, device=device), torch.zeros(1, 1, device=device)
        with pytest.raises(TensorMatchError, match="groups of 256 elements need rows at multiples of 8 elements"):
            programs.per_group_256(x, x.to(torch.float8_e4m3fn), scales)
        return
    for rows, columns in shapes:
        x = random(rows, columns, dtype=dtype, device=device)
        groups = x.double().view(rows, columns // size, size)
        largest = groups.abs().amax(-1)
        buffer = torch.full((columns // size, rows + 3), NAN, device=device)
        for scales in (torch.full((rows, columns // size), NAN, device=device), buffer.t()[:rows]):
            out = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn, device=device)
            getattr(programs, f"per_group_{size}")(x, out, scales)
            expect(scales, largest / 448)
            expect(out.double().view(groups.shape) * scales[..., None], groups, 2**-4 * 4)
        assert buffer[:, rows:].isnan().all()


@each_device
def test_words_of_groups_are_of_bytes(programs, device):
    """Four values of another type would be written behind each other's places."""
    x = torch.ones(2, 1024, device=device)
    scales = torch.full((2, 2, 4), 7.0, device=device)
    with pytest.raises(TensorMatchError, match=r"(?s)for scales, .*Size mismatch for a row: expected 8 but got 4"):
        programs.per_group_of_words(x, x.clone(), scales)
    assert (scales == 7).all()


@each_device
@each_dtype
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_rows_by_an_index(programs, device, dtype, index):
    for tokens, heads, size in itertools.product((0, 1, 9), (1, 2), (1, 64, 128, 576)):
        k, v = (random(tokens, 3 * heads, size, dtype=dtype, device=device)[:, heads : 2 * heads] for _ in range(2))
        caches = [torch.full((20, heads, size), 7.0, dtype=dtype, device=device) for _ in range(2)]
        slots = torch.tensor([3, -1, 19, 0, 8, -1, 5, 6, 7], dtype=index, device=device)[:tokens]
        programs.store(k, v, *caches, slots)
        for x, cache in zip((k, v), caches, strict=True):
            wanted = torch.full_like(cache, 7.0)
            wanted[slots[slots >= 0].long()] = x[slots >= 0]
            assert torch.equal(cache, wanted)
        table = random(20, size, dtype=dtype, device=device)
        positions = torch.randint(0, 20, (tokens,), dtype=index, device=device)
        out = torch.empty(tokens, size, dtype=dtype, device=device)
        programs.gather(table, positions, out)
        assert torch.equal(out, table[positions.long()])


@each_device
@each_dtype
def test_a_copy_keeps_every_bit(programs, device, dtype):
    words = torch.int32 if dtype == torch.float32 else torch.int16
    bits = torch.iinfo(words)
    x = torch.randint(bits.min, bits.max, (5, 96), dtype=words, device=device).view(dtype)  # NaN of all kinds
    out = torch.zeros_like(x)
    programs.gather(x, torch.arange(5, device=device), out)
    assert torch.equal(out.view(words), x.view(words))


HEADS = [(128, 128), (128, 64), (64, 64), (256, 256), (80, 80), (96, 32), (576, 64), (6, 2), (7, 4), (2, 2)]


@pytest.mark.slow
@each_device
@each_dtype
@pytest.mark.parametrize("order", ["neox", "interleaved"])
def test_pairs_of_heads_in_slices_of_a_projection(programs, device, dtype, order):
    for size, paired in HEADS:
        for tokens, position_type in ((0, torch.int64), (1, torch.int32), (9, torch.int64)):
            qkv = random(tokens, 6 * size, dtype=dtype, device=device)
            q, k = qkv[:, : 4 * size].view(tokens, 4, size), qkv[:, 4 * size : 5 * size].view(tokens, 1, size)
            before = qkv.clone()
            cos_sin = torch.randn(50, paired, device=device)
            positions = torch.randint(0, 50, (tokens,), dtype=position_type, device=device)
            wanted = [rotated(x, cos_sin, positions, order) for x in (q, k)]
            getattr(programs, f"rope_{order}")(q, k, cos_sin, positions)
            for got, want in zip((q, k), wanted, strict=True):
                expect(got, want, 4 * CLOSE[dtype])
            assert torch.equal(qkv[:, 5 * size :], before[:, 5 * size :])


@each_device
@each_dtype
def test_segments_have_their_own_numbers_of_rows(programs, device, dtype):
    for tokens, q_heads, k_heads, size in ((0, 4, 2, 64), (1, 32, 8, 128), (7, 3, 1, 256), (5, 1, 5, 80)):
        q, k = (random(tokens, heads, size, dtype=dtype, device=device) for heads in (q_heads, k_heads))
        q_weight, k_weight = (random(size, dtype=dtype, device=device) for _ in range(2))
        wanted = [rms_norm(q, q_weight), rms_norm(k, k_weight)]
        programs.qknorm(q, k, q_weight, k_weight, EPS)
        expect(q, wanted[0])
        expect(k, wanted[1])


@each_device
@each_dtype
def test_a_prologue_of_several_stages(programs, device, dtype):
    for size, paired in HEADS[:6]:
        tokens, heads = 9, 2
        k = random(tokens, heads, size, dtype=dtype, device=device)
        weight = random(size, dtype=dtype, device=device)
        cos_sin = torch.randn(50, paired, device=device)
        positions = torch.randint(0, 50, (tokens,), device=device)
        cache = torch.full((20, heads, size), 7.0, dtype=dtype, device=device)
        slots = torch.tensor([3, -1, 19, 0, 8, -1, 5, 6, 7], device=device)
        wanted = rotated(rms_norm(k, weight), cos_sin, positions, "neox")
        programs.prologue(k, weight, cos_sin, positions, cache, slots, EPS)
        expect(k, wanted, 4 * CLOSE[dtype])
        stored = torch.full_like(cache, 7.0)
        stored[slots[slots >= 0]] = k[slots >= 0]
        assert torch.equal(cache, stored)


@each_device
@each_dtype
@pytest.mark.parametrize("op", ["attention", "alike_attention"])
def test_each_segment_has_its_own_program_or_that_of_the_first(programs, op, device, dtype):
    for tokens, q_heads, kv_heads, size, paired in ((0, 4, 2, 64, 64), (1, 32, 8, 128, 128), (9, 4, 2, 128, 64)):
        qkv = random(tokens, (q_heads + 2 * kv_heads) * size, dtype=dtype, device=device)
        parts = qkv.split([q_heads * size, kv_heads * size, kv_heads * size], -1)
        q, k, v = (
            part.view(tokens, -1, size) if tokens else part.view(0, part.shape[1] // size, size) for part in parts
        )
        before = v.clone()
        weights = [random(size, dtype=dtype, device=device) for _ in range(2)]
        cos_sin, positions = torch.randn(50, paired, device=device), torch.arange(tokens, device=device) * 3
        caches = [torch.full((20, kv_heads, size), 7.0, dtype=dtype, device=device) for _ in range(2)]
        slots = torch.tensor([3, -1, 19, 0, 8, -1, 5, 6, 7], device=device)[:tokens]
        wanted = [
            rotated(rms_norm(x, weight), cos_sin, positions, "neox") for x, weight in zip((q, k), weights, strict=True)
        ]
        getattr(programs, op)(q, k, v, *weights, cos_sin, positions, *caches, slots, EPS)
        expect(q, wanted[0], 4 * CLOSE[dtype])
        expect(k, wanted[1], 4 * CLOSE[dtype])
        assert torch.equal(v, before)
        for x, cache in zip((k, v), caches, strict=True):
            stored = torch.full_like(cache, 7.0)
            stored[slots[slots >= 0]] = x[slots >= 0]
            assert torch.equal(cache, stored)
    with pytest.raises(
        TypeError, match="row program: segment 0 uses operand 1 of SGL_OPERANDS, counted from 0, which was not passed"
    ):
        getattr(programs, f"{op}_without_weight")(torch.ones(1, 1, 64, dtype=dtype, device=device))


@each_device
def test_one_of_the_alike_segments_has_what_they_store(programs, device):
    q, cache = (torch.ones(3, 1, 64, device=device) for _ in range(2))
    slots, weight, angles = (
        torch.arange(3, device=device),
        torch.ones(64, device=device),
        torch.ones(3, 64, device=device),
    )
    with pytest.raises(
        TypeError, match="row program: segment 0 uses operand 3 of SGL_OPERANDS, counted from 0, which was not passed"
    ):
        programs.alike_attention_without_caches(q, weight, angles, cache, slots)


@each_device
def test_a_segment_may_lack_only_rows_that_others_store_by_an_index(programs, device):
    q, cache = (torch.ones(3, 1, 64, device=device) for _ in range(2))
    with pytest.raises(
        TypeError, match="row program: segment 0 uses operand 3 of SGL_OPERANDS, counted from 0, which was not passed"
    ):
        programs.attention_without_slots(q, torch.ones(64, device=device), torch.ones(3, 64, device=device), cache)


@each_device
def test_wrong_operands_are_named_with_the_rule(programs, device):
    x, weight = torch.ones(3, 64, device=device), torch.ones(64, device=device)
    out = torch.empty_like(x)
    wrong = {
        r"for weight.*Size mismatch for a row: expected 64 but got 63": (x, weight[1:], out),
        r"for out.*Size mismatch for the number of rows: expected 3 but got 2": (x, weight, out[1:]),
        r"for weight.*DType mismatch: expected one of \[float32, float16, bfloat16, float8\] but got int64": (
            x,
            weight.long(),
            out,
        ),
        r"for x.*expected the elements of a row side by side": (x.t().contiguous().t(), weight, out),
    }
    for text, arguments in wrong.items():
        with pytest.raises(TensorMatchError, match=f"(?s){text}"):
            programs.rmsnorm(*arguments, EPS)
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of x"):
        programs.rmsnorm(x[:2], weight, x[1:], EPS)
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of weight"):
        programs.rmsnorm(x, x[0], x, EPS)
    said = "row program: segment 0 keeps a value for x, which it does not store: sgl::store needs it, too"
    with pytest.raises(TypeError, match=said):
        programs.forgetful(x, out)
    for way, name in enumerate(["other"] * 5 + ["out"]):
        said = f"segment 0 reads {name} after it keeps a value for out, which may be stored by then: "
        with pytest.raises(TypeError, match=f"row program: {said}read all operands before"):
            programs.reads_late(x, x, out, way)
    if device == "cpu":  # its other ways compile on no device
        programs.reads_late(x, weight, out, 0)  # a row for all shares no memory with an output
        assert torch.equal(out, x)
    table = torch.ones(4, 64, device=device)
    for index, text in (
        (torch.zeros(3, device=device), "for index, .*DType mismatch: expected one of .int32, int64. but got float32"),
        (torch.zeros(3, 1, dtype=torch.int64, device=device), "for index, .*Dimension mismatch: expected 1 but got 2"),
        (
            torch.zeros(2, dtype=torch.int64, device=device),
            "Size mismatch for the number of rows: expected 2 but got 3",
        ),
    ):
        with pytest.raises(TensorMatchError, match=f"(?s){text}"):
            programs.gather(table, index, out)
    with pytest.raises(TensorMatchError, match=r"for cos_sin.*(?s:.)*up to 32 pairs, but got 66"):
        programs.rope_neox(x[:, None], x[:, None].clone(), torch.ones(4, 66, device=device), torch.zeros(3).long())
    with pytest.raises(TensorMatchError, match="expected whole groups of 128 but got 64"):
        programs.per_group_128(x, x.to(torch.float8_e4m3fn), x[:, :1])
    headless, cache = torch.empty(3, 0, 64, device=device), torch.zeros(3, 1, 64, device=device)
    slots = torch.arange(3, device=device)
    with pytest.raises(TensorMatchError, match=r"for k_cache.*(?s:.)*rows of each, such as heads: .* 0 but got 1"):
        programs.store(headless, headless, cache, cache.clone(), slots)


@each_device
def test_an_operand_that_is_not_used_has_the_rows_of_another_as_nobody_checks_them(programs, device):
    x, wrong, out = (
        torch.randn(2, 4, device=device),
        torch.ones(7, 3, device=device),
        torch.full((2, 4), NAN, device=device),
    )
    said = (
        "row program: other was passed as operand 1, which no segment reads or stores: take it out of SGL_OPERANDS, or "
        "pass rows of an operand that is used"
    )
    for refused in (wrong, x.clone(), x[1:]):
        with pytest.raises(TypeError, match=said):
            programs.unused(x, refused, out)
    with pytest.raises(TypeError, match=said):  # its dtype would be taken for float32
        programs.unused_but_for_its_dtype(x, x, out)
    assert out.isnan().all()
    for one in (x, x[:1], out):
        programs.unused(x, one, out.fill_(NAN))
        assert torch.equal(out, x)


def test_rows_in_place_are_each_the_same_row(programs):
    """The rows of a square and of its transpose lie at the same places, in another order."""
    x, shift = torch.randn(4, 4, 8), torch.zeros(8)
    before = x.clone()
    with pytest.raises(ValueError, match="rows of out share memory with each other or with other rows of x"):
        programs.affine_heads(x, shift, x.transpose(0, 1), 2.0)
    assert torch.equal(x, before)
    for one in (x, x.transpose(0, 1), x[:1], x[:, :1], x[:1].transpose(0, 1)):
        wanted = one * 2
        programs.affine_heads(one, shift, one, 2.0)
        assert torch.equal(one, wanted)


@each_device
def test_rows_that_are_read_cannot_be_skipped(programs, device):
    """A row that is not there has no elements, angles or value to compute with."""
    x, index = torch.ones(2, 8, device=device), torch.tensor([1, -1], device=device)
    out = poisoned(x)
    for name, call in (
        ("table", lambda: programs.gather_some(x, index, out)),
        ("scale", lambda: programs.scale_some(x, x[:, :1].contiguous(), index, out)),
        ("cos_sin", lambda: programs.rope_some(x[:, None], x, index)),
    ):
        said = f"segment 0 reads {name} by index, which skips negative elements. Only rows that "
        with pytest.raises(TypeError, match=f"^row program: {said}"):
            call()
    assert out.isnan().all()
    assert (x == 1).all()


def test_an_index_out_of_range_is_refused_on_the_cpu(programs):
    table, out = torch.ones(4, 8), torch.empty(2, 8)
    for wrong in (4, -1):
        hint = "; this op skips no negative ones" if wrong < 0 else "$"
        said = f"(?s)for index, .*Index out of range: element 1 is {wrong}, and table has 4 rows{hint}"
        with pytest.raises(TensorMatchError, match=said):
            programs.gather(table, torch.tensor([0, wrong]), out)
    cache = torch.zeros(4, 1, 8)
    with pytest.raises(TensorMatchError, match=r"(?s)for slots, .*element 0 is 9, and k_cache has 4 rows"):
        programs.store(out[:, None], out[:, None].clone(), cache, cache.clone(), torch.tensor([9, -1]))
    assert not cache.any()


@each_device
def test_a_call_that_writes_to_an_index_is_refused(programs, device):
    """A stored row would change the index, and a later row would go anywhere. It may be the index of another set."""
    memory = torch.zeros(40, dtype=torch.int64, device=device)
    memory[32:35] = torch.arange(3, device=device)
    floats, index = memory.view(torch.float32), memory[32:35]
    table = random(4, 1, 8, dtype=torch.float32, device=device)
    with pytest.raises(ValueError, match=r"^out shares memory with index, at .*out is .*index is .*that it reads$"):
        programs.gather(table[:, 0], index, floats[56:80].view(3, 8))
    cache, rows = floats[48:80].view(4, 1, 8), table[:3]
    for caches, name in (((cache, table), "k_cache"), ((table, cache), "v_cache")):
        with pytest.raises(ValueError, match=f"^{name} shares memory with slots, at .*: "):
            programs.store(rows.clone(), rows.clone(), *(x.clone() if x is table else x for x in caches), index)
    assert memory[32:35].tolist() == [0, 1, 2]
    programs.gather(table[:, 0], index, floats[:24].view(3, 8))  # beside it
    assert torch.equal(floats[:24].view(3, 8), table[:3, 0])


@each_device
@each_dtype
def test_only_the_first_rows_that_are_counted_are_computed(programs, device, dtype):
    """Rows of a part of a warp, of a warp, of a block, and ones that are read again in each pass."""
    shapes = ((0, 3, 8), (3, 0, 8), (1, 1, 256), (5, 4, 8), (3, 33, 256), (4, 3, 5120), (2, 2, 40_001))
    for outer, inner, columns in shapes:
        x = random(outer, inner, columns, dtype=dtype, device=device)
        counts = torch.arange(outer, dtype=torch.int32, device=device) * inner // max(outer - 1, 1)
        out, expected = poisoned(x), poisoned(x)
        for i, count in enumerate(counts.tolist()):
            expected[i, :count] = x[i, :count].double().softmax(-1)
        programs.counted_softmax(x, out, counts)
        torch.testing.assert_close(
            out.double(), expected.double(), rtol=2 * CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True
        )


@each_device
def test_counts_are_of_one_set_of_rows(programs, device):
    k, v = (random(4, 3, 16, dtype=torch.float32, device=device) for _ in "kv")
    counts, outs = torch.tensor([3, 0, 1, 2], dtype=torch.int32, device=device), (poisoned(k), poisoned(v))
    programs.counted_copies(k, outs[0], counts, v, outs[1])
    for i, count in enumerate(counts.tolist()):
        assert torch.equal(outs[0][i, :count], k[i, :count])
        assert outs[0][i, count:].isnan().all()
    assert torch.equal(outs[1], v)


@each_device
def test_wrong_counts_are_refused(programs, device):
    x = torch.ones(2, 3, 8, device=device)
    out, counts = poisoned(x), torch.tensor([3, 0], dtype=torch.int32, device=device)
    wrong = {
        "DType mismatch: expected int32 but got int64": counts.long(),
        "Size mismatch: expected 2 elements but got 1": counts[:1],
        "Dimension mismatch: expected 1 but got 2": counts[:, None],
        "Stride mismatch: expected the elements side by side, but got a stride of 0": counts[:1].expand(2),
    }
    if device == "cpu":
        wrong["Count out of range: element 0 is 4, and x has 3 rows for each"] = counts + 1
        wrong["Count out of range: element 1 is -1, and x has 3 rows for each"] = counts - 1
    else:
        wrong["Device mismatch: expected cuda:0 but got cpu"] = counts.cpu()
    for text, bad in wrong.items():
        with pytest.raises(TensorMatchError, match=f"(?s)for counts, .*{text}"):
            programs.counted_softmax(x, out, bad)
    over = torch.zeros(48, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"^out shares memory with counts, at "):
        programs.counted_softmax(x, over.view(torch.float32).view(2, 3, 8), over[:2])
    with pytest.raises(TypeError, match=r"^row program: the rows of segment 0 are counted twice$"):
        programs.counted_twice(x, out, counts, counts.clone())
    assert out.isnan().all()


@pytest.mark.gpu
def test_counts_that_nobody_checks_are_bounded(programs):
    x = torch.ones(2, 3, 8, device="cuda")
    out = poisoned(x)
    programs.counted_softmax(x, out, torch.tensor([4, -1], dtype=torch.int32, device="cuda"))
    assert (out[0] == 1 / 8).all()
    assert out[1].isnan().all()


def test_segments_that_share_memory_are_refused(programs):
    x, weight = torch.ones(3, 4, 64), torch.ones(64)
    with pytest.raises(ValueError, match="rows of q share memory with each other or with other rows of k"):
        programs.qknorm(x[:, :3], x[:, 2:], weight, weight, EPS)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a loop has one version on this machine")
def test_each_version_of_a_loop_is_compiled(tmp_path):
    """Which tests of ops do not: see the root's conftest.py. A function that is not inlined would not be in them."""
    source = """#include "row_programs.h"
    #include <sgl_kernel/cpu/row_program.h>
    void* norm() { return (void*)&host::cpu::row_program<programs::RMSNorm, 3, 1, 546u, 64u, 0u>; }
    void* layer() { return (void*)&host::cpu::row_program<programs::Attention, 4, 3, 8226u, 8768u, 26u>; }"""
    (tmp_path / "unit.cpp").write_text(source)
    flags = ["-std=c++20", "-O3", "-USGL_ONLY_VERSION", f"-I{toolbox.CSRC}", *toolbox.include_flags()]
    command = [toolbox.host_compiler("g++"), *flags, "-S", "unit.cpp", "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    functions = re.findall(r"^_ZN4host3cpu7details\d+(run_avx\w+?)I.*:$", done.stdout, re.MULTILINE)
    assert Counter(functions).keys() == {"run_avx512", "run_avx2"}
    assert min(Counter(functions).values()) >= 2
    assert "__cpu_model" in done.stdout  # the choice, beside the version for every processor


WRONG = {
    "RowProgram: pass each operand that SGL_OPERANDS names once": "program({}, F::x = rows);",
    "RowProgram: pass each operand that SGL_OPERANDS names once, F::x": "program({}, F::x = rows, F::x = rows);",
    "pass the rows of each segment": """static host::RowProgram<programs::Copy, 2> of_two{"copy.h"};
      of_two({}, F::x = rows, F::out = rows);""",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_work_is_an_error_of_the_compiler(tmp_path, text):
    source = f"""#include "row_programs.h"
    void call(host::RowProgram<programs::Copy>& program, const host::Rows& rows) {{
      using F = programs::Copy;
      {WRONG[text]}
    }}"""
    built = toolbox.compile_host(source, tmp_path, "g++", f"-I{toolbox.CSRC}")
    assert built.returncode != 0
    assert text in built.stderr


def shape(columns: int, paired: int, elements: int, threads: int, doublings: int = 0) -> int:
    """The number of a ``sgl::RowShape``, which 2**doublings blocks share."""
    return columns | paired << 20 | elements << 40 | threads << 48 | doublings << 60


@pytest.mark.slow
def test_a_cluster_shares_a_long_row_where_the_chip_has_clusters():
    """As the host part of an op asks for kernels, for 1 to 16384 rows of 151,936 and of 50,257 columns."""
    found = {}
    for target in ("8.0", "9.0a"):
        recording = record(["sampling"], cuda_arch=target, on_cpu=False, keep=False)
        labels = "\n".join(one.spec.label for one in recording.wanted)
        for functor, number in re.findall(r"row_program\w*<sampling::(\w+), .*?(\d+)>", labels):
            columns, blocks = int(number) & (1 << 20) - 1, 1 << (int(number) >> 60)
            found.setdefault((target, functor, columns), set()).add(blocks)
    assert found == {
        ("8.0", "Softmax", 0): {1},
        ("8.0", "ArgMax", 0): {1},
        ("9.0a", "Softmax", 151936): {8},  # in registers: it is needed again
        ("9.0a", "Softmax", 0): {1, 2, 4, 8},  # fewer blocks, the more rows there are
        ("9.0a", "ArgMax", 0): {1, 2, 4, 8},
    }


@pytest.mark.slow
def test_a_warp_shares_each_of_few_rows_with_pairs_unless_a_sum_depends_on_it():
    """As rope's host part asks for kernels, for heads of 128: the elements of a vector, and the threads."""
    ops = frozenset({"apply_rope_inplace", "fused_qk_norm_rope"})
    found = {}
    for one in record(["rope"], cuda_arch="9.0a", on_cpu=False, ops=ops, keep=False).wanted:
        for norm, number in re.findall(r"row_program<rope::Layer<.*Norm::(\w+), .*, (\d+)>", one.spec.label):
            if int(number) & (1 << 20) - 1 == 128:
                found.setdefault(norm, set()).add((int(number) >> 40 & 63, int(number) >> 48 & 4095))
    assert found == {"kNone": {(2, 32), (8, 8)}, "kPlain": {(8, 8)}}


@pytest.mark.slow
def test_a_map_of_few_elements_has_narrower_vectors_down_to_32_bits():
    """As the host part of activations asks for kernels, for 1 to 16384 tokens: the elements of a vector."""
    ops = frozenset({"silu_and_mul", "silu_and_mul_quant"})
    found = {}
    for one in record(["activation"], cuda_arch="9.0a", on_cpu=False, ops=ops, keep=False).wanted:
        for name, number in re.findall(r"row_program\w*<([\w:]+)<.* (\d+)u?>", one.spec.label):
            if int(number) & IS_MAP:
                found.setdefault(name, set()).add(int(number) >> 40 & 63)
    of_float32 = {1}
    assert found == {"activation::Activated": {2, 4, 8} | of_float32, "sgl::Quantized": {4, 8}}


FLAT, COUNTED, IN_BLOCKS, IS_MAP, HAS_TAIL, IS_DOUBLE = 1 << 63, 1 << 62, 1 << 61, 1 << 46, 1 << 47, 1 << 62
KERNELS = [  # functor, operands, threads of a block, blocks, whether rows for all are held, types, places, shapes
    ("Softmax", 2, 512, 0, True, 0x22, FLAT, shape(4096, 0, 8, 512)),
    ("Softmax", 2, 1024, 0, True, 0x22, FLAT, shape(0, 0, 1, 1024)),
    ("Softmax", 2, 1024, 0, True, 0x22, FLAT, shape(0, 0, 1, 1024, 3)),
    ("Softmax", 2, 256, 2, True, 0x00, FLAT, shape(151936, 0, 4, 256, 3)),
    ("LayerNorm", 4, 256, 3, False, 0x2222, FLAT | 0x440, shape(65536, 0, 8, 256, 2)),
    ("Ranked", 3, 1024, 0, True, 0x500, FLAT | 0x880, shape(65536, 0, 4, 1024, 2)),
    ("RMSNorm", 3, 128, 0, True, 0x202, FLAT | 0x40, shape(4096, 0, 8, 128)),
    ("RMSNorm", 3, 256, 3, False, 0x222, FLAT | 0x40, shape(8192, 0, 8, 256)),
    ("RMSNorm", 3, 256, 0, True, 0x222, 0x40, shape(6144, 0, 8, 256), shape(128, 0, 8, 16)),
    ("RMSNorm", 3, 128, 0, True, 0x222, 0, shape(128, 0, 8, 16)),
    ("FusedAddRMSNorm", 3, 256, 2, False, 0x222, FLAT | 0x400, shape(8192, 0, 8, 256)),
    ("LayerNorm", 4, 128, 0, True, 0x2222, FLAT | 0x440, shape(1024, 0, 8, 128)),
    ("PerGroup<128>", 3, 128, 0, True, CppEnum("sgl::TypesWithFp8", 0x032), FLAT, shape(7168, 0, 8, 128)),
    ("Copy", 2, 128, 0, True, 0x22, 0x20, shape(128, 0, 8, 16), shape(128, 0, 8, 16)),
    ("Rope<sgl::Neox>", 3, 128, 0, True, 0x202, 0x020, shape(128, 128, 8, 8), shape(128, 128, 8, 8)),
    ("Rope<sgl::Interleaved>", 3, 128, 0, True, 0x202, 0x020, shape(128, 64, 8, 16), shape(128, 64, 8, 16)),
    ("ArgMax", 3, 512, 0, True, 0x602, FLAT | 0x880, shape(4096, 0, 8, 512)),
    ("ArgMax", 3, 128, 0, True, 0x502, FLAT | 0x880, shape(128, 0, 8, 16)),
    ("Ranked", 3, 512, 0, True, 0x502, FLAT | 0x880, shape(4096, 0, 8, 512)),
    ("Ranked", 3, 256, 0, True, 0x602, FLAT | 0x880, shape(32, 0, 8, 4)),
    ("Ranked", 3, 1024, 0, True, 0x500, FLAT | 0x880, shape(0, 0, 1, 1024)),
    ("Chained", 3, 512, 0, True, CppEnum("sgl::TypesWithFp8", 0x032), FLAT | 0x800, shape(4096, 0, 8, 512)),
    ("Copy", 2, 128, 0, True, 0x22, 0x20, IS_MAP | shape(0, 0, 8, 0), IS_MAP | shape(0, 0, 8, 0)),
    ("Softmax", 2, 128, 0, True, 0x22, COUNTED, shape(256, 0, 8, 32)),
    ("Softmax", 2, 128, 0, True, 0x22, COUNTED | FLAT, shape(64, 0, 8, 8)),
    ("Copy", 2, 128, 0, True, 0x22, COUNTED, IS_MAP | shape(0, 0, 8, 0), IS_MAP | shape(0, 0, 8, 0)),
    ("Copy", 2, 128, 0, True, 0x22, IN_BLOCKS | 0x20, IS_MAP | shape(0, 0, 8, 0), IS_MAP | shape(0, 0, 8, 0)),
    ("Affine", 3, 128, 0, True, 0x222, FLAT | 0x040, IS_MAP | HAS_TAIL | shape(0, 0, 8, 0)),
    ("Rope<sgl::Interleaved>", 3, 128, 0, True, 0x202, 0x020, shape(6, 2, 1, 8), shape(6, 2, 1, 8)),
    ("Attention", 4, 128, 0, True, 0x2022, 0x2240, *[shape(128, 128, 8, 8)] * 2, shape(128, 0, 8, 16)),
    ("AlikeAttention", 4, 128, 0, True, 0x2022, 0x2240, *[shape(128, 128, 8, 8)] * 2, shape(128, 0, 8, 16)),
    ("AlikeAttention", 4, 128, 0, True, 0x2022, 0x2240, *[shape(128, 128, n, 8) for n in (8, 4)], shape(128, 0, 8, 16)),
    ("Prologue", 4, 128, 0, True, 0x2022, 0x2240, shape(128, 128, 8, 8)),
    ("Rope<sgl::Neox>", 3, 128, 7, True, 0x202, 0x020, *[IS_DOUBLE | shape(128, 128, 8, 8)] * 2),
    ("Rope<sgl::Interleaved>", 3, 128, 7, True, 0x202, 0x020, *[IS_DOUBLE | shape(128, 64, 8, 16)] * 2),
    ("Rope<sgl::Interleaved>", 3, 128, 0, True, 0x202, 0x020, *[IS_DOUBLE | shape(6, 2, 1, 8)] * 2),
    ("Prologue", 4, 128, 5, True, 0x2022, 0x2240, IS_DOUBLE | shape(128, 128, 8, 8)),
    (
        *("Attention", 4, 128, 6, True, 0x2022, 0x2240),
        *(IS_DOUBLE | shape(128, 128, 8, 8), shape(128, 128, 8, 8), shape(128, 0, 8, 16)),
    ),
    ("OnlineSoftmax", 2, 512, 0, True, 0x22, FLAT, shape(4096, 0, 8, 512)),
    ("OnlineSoftmax", 2, 256, 2, True, 0x00, FLAT, shape(151936, 0, 4, 256, 3)),
    ("Moments", 3, 512, 0, True, 0x002, FLAT | 0x880, shape(4096, 0, 8, 512)),
    ("Moments", 3, 1024, 0, True, 0x000, FLAT | 0x880, shape(0, 0, 1, 1024, 3)),
]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
def test_every_form_compiles_for_every_architecture(family, arch):
    def build(functor, *numbers):
        has_fields = functor in (
            "RMSNorm",
            "FusedAddRMSNorm",
            "LayerNorm",
            "Chained",
            "Ranked",
            "Affine",
            "Attention",
            "AlikeAttention",
            "Prologue",
        )
        kernel = "device::row_program" if has_fields else "device::row_program_without_fields"
        if numbers[-1] >> 60 & 3 and arch < (9, 0):
            return  # no clusters
        arguments = ("row_programs.h", kernel, CppType(f"programs::{functor}"), *numbers)
        try:
            build_variant(family, *arguments)
        except CompileError as error:
            if arch >= (8, 9) or functor not in ("PerGroup<128>", "Chained"):
                raise
            pytest.skip(f"float8: {error.first_error}")

    with override_cuda_arch(*arch):
        parallel_compile([lambda kernel=kernel: build(*kernel) for kernel in KERNELS])
