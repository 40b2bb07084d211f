"""Every op on CUDA: it compiles with no GPU present; with one, values, streams and graphs."""

from __future__ import annotations

import random

import pytest
import torch

from sgljit_core import CppType, ops, override_cuda_arch
from sgljit_core.errors import CompileError
from sgljit_norm import samples
from sgljit_norm.bench import tune
from sgljit_norm.plugin import FAMILY
from sgljit_tools.testing import build_variant

from .helpers import (
    DTYPES,
    MUTATES,
    OPS,
    SPECIALS,
    Arguments,
    assert_accurate,
    check,
    check_both,
    check_non_finite,
    clones,
    data_of,
    expected,
    make,
    poisoned,
    pytorch,
    written,
)

norm = ops["norm"]
each_op = pytest.mark.parametrize("op", OPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

MAX_VECTORS = 4096  # of a row that a block holds in registers


def test_a_row_that_is_no_whole_number_of_vectors_is_refused_by_the_device_code():
    shape = 1001 | 8 << 40 | 128 << 48
    kernel = ("device::row_program", CppType("norms::RMSNorm<false>"), 3, 128, 0, True, 0x222, 0x40, shape)
    with override_cuda_arch(9, 0), pytest.raises(CompileError, match="whole number of vectors"):
        build_variant(FAMILY, "norm.h", *kernel)


H200 = (132, 2048, 9, 0)
H100_PCIE = (114, 2048, 9, 0)
T4, L4, A100, B200, THOR = (40, 1024, 7, 5), (58, 1536, 8, 9), (108, 2048, 8, 0), (148, 2048, 10, 0), (20, 1536, 11, 0)


@pytest.mark.parametrize("chip", [H200, H100_PCIE, T4, L4, A100, B200, THOR], ids=str)
def test_every_layout_holds_its_row_in_registers_and_fits_a_block(chip):
    sms = chip[0]
    for work in (0, 1, 2):
        for vectors in (*range(1, 200), *range(200, MAX_VECTORS + 1, 31), MAX_VECTORS):
            rows = (1, *(sms * eighths // 8 + 1 for eighths in (1, 8, 16, 24, 32, 48, 64)), 2**40)
            for threads, block, _ in {tune.chosen_layout(vectors, work, count, chip) for count in rows}:
                assert threads * 16 >= vectors, "more vectors for a thread than registers hold"
                assert block % threads == 0
                assert block <= 1024


def test_a_chip_that_nobody_tuned_keeps_all_rows_in_flight():
    """The rule: no more vectors for a thread than that takes, and no more than registers hold."""

    def held(vectors: int, rows: int, chip: tune.Chip = B200) -> int:
        threads, _, _ = tune.chosen_layout(vectors, 0, rows, chip)
        return -(-vectors // threads)

    assert [held(512, rows) for rows in (1, 148, 4 * 148, 8 * 148, 12 * 148, 100 * 148)] == [2, 2, 2, 2, 3, 4]
    assert [held(512, rows * 40, T4) for rows in (1, 4, 6, 8)] == [2, 2, 3, 4]
    assert [held(vectors, 1) for vectors in (20, 128, 129, 1024, 2049, 4096)] == [1, 1, 2, 2, 3, 4]


@pytest.mark.gpu
@each_op
@each_dtype
def test_model_sizes(op: str, dtype: torch.dtype):
    for size in (64, 128, 256, 512, 1024, 4096, 8192, 12288, 16384):
        for rows in (0, 1, 3, 128, 1025):
            check_both(op, make(op, rows, size, dtype, "cuda"))


@pytest.mark.gpu
@each_op
@each_dtype
def test_any_size(op: str, dtype: torch.dtype):
    for size in (1, 7, 8, 24, 65, 96, 1000, 1032, 1544, 2880, 4100, 5120, 7168, 12288, 32768, 65536, 100_003):
        for rows in (1, 3, 129):
            check_both(op, make(op, rows, size, dtype, "cuda"))


@pytest.mark.gpu
@each_op
@each_dtype
def test_random_shapes(op: str, dtype: torch.dtype):
    """45 for each op and dtype, of any size and of whole loads, aligned and not: 1080 in all."""
    shapes = random.Random(f"{op} {dtype}")
    whole = [shapes.randrange(8, 9000, 8) for _ in range(8)]
    for i in range(45):
        size = shapes.choice(whole) if i % 2 else shapes.randint(1, 9000)
        offset = shapes.choice((8, 8, 8, 0, 1, 2, 4))
        check(op, make(op, shapes.randint(1, 300), size, dtype, "cuda", (shapes.randint(1, 9), 2)), offset)


@pytest.mark.gpu
@each_op
@each_dtype
def test_rows_apart_and_out_of_line(op: str, dtype: torch.dtype):
    """Views of larger buffers, some at no address that is a multiple of 16 bytes; and a weight at none."""

    def check_view(arguments: Arguments) -> None:
        wanted, from_pytorch = expected(op, arguments), pytorch(op, arguments)
        getattr(norm, op)(**arguments)
        assert_accurate({name: arguments[name] for name in wanted}, wanted, from_pytorch)

    for size in (64, 128, 1024, 4096, 16384):
        for first in (0, 8, 4, 2, 1):
            arguments = make(op, 130, size, dtype, "cuda")
            for name in MUTATES[op]:
                if name in arguments:
                    value = arguments[name]
                    wide = value.new_empty(2 * len(value), *value.shape[1:-1], value.shape[-1] + 8)
                    arguments[name] = wide[::2, ..., first : first + value.shape[-1]].copy_(value)
            check_view(arguments)
        arguments = make(op, 130, size, dtype, "cuda")
        for name in arguments:
            if name not in MUTATES[op]:
                value = arguments[name]
                arguments[name] = value.new_empty(len(value) + 1)[1:].copy_(value)
        check_view(arguments)


@pytest.mark.gpu
@each_op
@each_dtype
def test_samples_against_the_reference(op: str, dtype: torch.dtype):
    for arguments in getattr(samples, op)(torch.device("cuda")):
        if data_of(op, arguments)[0].dtype == dtype and not arguments.get("round_first"):  # see test_norm_rounded.py
            check(op, arguments)


@pytest.mark.gpu
@each_op
@each_dtype
@pytest.mark.parametrize("special", SPECIALS)
def test_magnitudes(op: str, special: str, dtype: torch.dtype):
    for size in (128, 1000, 4096, 4100):
        arguments = make(op, 3, size, dtype, "cuda")
        for tensor in data_of(op, arguments):
            SPECIALS[special](tensor)
        check(op, arguments)


@pytest.mark.gpu
@each_op
@each_dtype
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_go_as_in_pytorch(op: str, value: float, dtype: torch.dtype):
    for size in (128, 4096, 4099):
        check_non_finite(op, make(op, 3, size, dtype, "cuda"), value)


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("far", [1e-3, 30, 1e4])
def test_layernorm_of_rows_that_begin_far_from_the_rest(far: float, dtype: torch.dtype):
    """The estimate of the mean is from the first 32 vectors, of 16 bytes or of 8."""
    for size in (512, 1280, 4096, 14336, 32768):
        for begin in (64, 128, 256):
            arguments = make("layernorm", 5, size, dtype, "cuda")
            arguments["input"][:, :begin] += far
            check("layernorm", arguments)
            check("layernorm", arguments, offset=4)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["fused_inplace_qknorm", "gemma_fused_inplace_qknorm"])
@each_dtype
def test_q_and_k_of_one_buffer(op: str, dtype: torch.dtype):
    """q, k and v of a projection side by side: v must not change."""
    for tokens, head_dim in ((1, 128), (7, 64), (300, 128), (300, 100), (33, 512)):
        qkv = torch.randn(tokens, 8 + 2 + 2, head_dim, device="cuda").to(dtype)
        before = qkv.clone()
        arguments = make(op, tokens, head_dim, dtype, "cuda") | {"q": qkv[:, :8], "k": qkv[:, 8:10]}
        wanted, from_pytorch = expected(op, arguments), pytorch(op, arguments)
        getattr(norm, op)(**arguments)
        assert_accurate({name: arguments[name] for name in wanted}, wanted, from_pytorch)
        assert torch.equal(qkv[:, 10:], before[:, 10:])


# rows, size: more than 2^31 elements each, in registers and by the kernel for any size
HUGE = [(2**19 + 3, 4096), (2**19 + 3, 4095), (3, 2**30 - 1)]


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "size"), HUGE)
@each_op
def test_more_than_2_31_elements(op: str, rows: int, size: int):
    def full(value: float, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").fill_(value)

    added = float(op.startswith("gemma"))
    if "qknorm" in op:
        if "across" in op or size > 2**20:
            call = {"q": full(2, rows, size), "k": full(4, rows, 8)}
        else:
            call = {"q": full(2, rows, 40, 104), "k": full(4, rows, 2, 104)}
        if "across" not in op and size > 2**20:
            call = {"q": full(2, rows, 1, size), "k": full(4, rows, 1, size)}
        weights = {f"{name}_weight": full(3, x.shape[-1]) for name, x in call.items()}
        getattr(norm, op)(**call, **weights)
        assert (call["q"] == 3 + added).all()
        assert (call["k"] == 3 + added).all()
        return
    call = {"input": full(2, rows, size), "weight": full(3, size)}
    if "_add_" in op:
        call["residual"] = full(1, rows, size)
    if "norm_add_" in op:
        call["next_weight"] = full(3, size)
    if op == "layernorm":
        call["bias"] = full(5, size)
    getattr(norm, op)(**call)
    assert (call["input"] == (5 if op == "layernorm" else 3 + added)).all()
    total = 4 + added if "norm_add_" in op else 3
    assert "residual" not in call or (call["residual"] == total).all()


@pytest.mark.gpu
@each_op
@pytest.mark.parametrize("size", [64, 4096, 4100])
def test_another_stream(op: str, size: int):
    """The kernel runs on the current stream: after what is queued there, without waiting for it here."""
    arguments = make(op, 128, size, torch.bfloat16, "cuda")
    call = clones(arguments)
    getattr(norm, op)(**clones(arguments))  # compiled and loaded
    for tensor in data_of(op, call):
        tensor.fill_(float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # cycles, so that a kernel on any other stream comes too early
        for tensor, fresh in zip(data_of(op, call), data_of(op, arguments), strict=True):
            tensor.copy_(fresh)
        getattr(norm, op)(**call)
    assert not stream.query()
    stream.synchronize()
    wanted, from_pytorch = expected(op, arguments), pytorch(op, arguments)
    assert_accurate({name: call[name] for name in wanted}, wanted, from_pytorch)


@pytest.mark.gpu
@each_op
@pytest.mark.parametrize("size", [64, 65, 4096, 16384])
def test_graph_capture_and_replay_with_other_data(op: str, size: int):
    """Twice in a row, so that on sm_90 the second launch is a dependent one inside the graph."""
    call = make(op, 128, size, torch.bfloat16, "cuda")
    getattr(norm, op)(**clones(call))  # a capture must not meet a compile
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        getattr(norm, op)(**call)
        getattr(norm, op)(**call)
    for seed in range(3):
        torch.manual_seed(seed)
        for tensor in call.values():
            tensor.normal_()
        eager = clones(call)
        graph.replay()
        getattr(norm, op)(**eager)
        torch.cuda.synchronize()
        getattr(norm, op)(**eager)
        for name in written(op, call):
            assert torch.equal(call[name], eager[name])


@pytest.mark.gpu
@each_op
def test_a_chain_of_dependent_launches(op: str):
    """Each launch reads what the one before it wrote; nothing else stands between them."""
    for rows, size in ((4097, 256), (300, 4096)):
        call = make(op, rows, size, torch.bfloat16, "cuda")
        waited = clones(call)
        for _ in range(50):
            getattr(norm, op)(**waited)
            torch.cuda.synchronize()
        for _ in range(50):
            getattr(norm, op)(**call)
        for name in written(op, call):
            assert torch.equal(call[name].nan_to_num(0), waited[name].nan_to_num(0))


@pytest.mark.gpu
@each_op
def test_torch_compile(op: str):
    arguments = make(op, 3, 64, torch.bfloat16, "cuda")
    if "out" in MUTATES[op]:
        arguments["out"] = poisoned(arguments["input"])
    function, names = getattr(norm, op), written(op, arguments)

    def then_add(call: Arguments) -> list[torch.Tensor]:
        function(**call)
        return [call[name] + 1 for name in names]

    torch.compiler.reset()
    compiled = torch.compile(then_add, fullgraph=True, backend="aot_eager")(clones(arguments))
    for got, wanted in zip(compiled, then_add(clones(arguments)), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.gpu
@each_op
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device(op: str):
    check(op, make(op, 128, 4096, torch.bfloat16, "cuda:1"))  # while device 0 is current
    assert torch.cuda.current_device() == 0
