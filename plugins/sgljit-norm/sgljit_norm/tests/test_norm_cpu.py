"""Every op on the CPU: values."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from sgljit_core import ops
from sgljit_norm import samples

from .helpers import (
    DTYPES,
    MUTATES,
    OPS,
    SPECIALS,
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
# Each op and dtype is a program of its own to compile. That of Gemma differs from another in its weight alone.
ALIKE = "gemma_fused_rmsnorm_add_rmsnorm"
each_op = pytest.mark.parametrize("op", [pytest.param(op, marks=pytest.mark.slow) if op == ALIKE else op for op in OPS])
each_dtype = pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in DTYPES], ids=str
)
each_op_and_dtype = pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(op, dtype, marks=[pytest.mark.slow] if is_slow else [])
        for op in OPS
        for dtype in DTYPES
        for is_slow in [
            dtype is torch.float16
            or op == ALIKE
            or (dtype is torch.float32 and (op.startswith("gemma") or "norm_add_" in op))
        ]
    ],
    ids=str,
)


@each_op_and_dtype
def test_any_size(op: str, dtype: torch.dtype):
    for size in (1, 2, 31, 32, 33, 65, 1000, 4096, 8191, 8193, 100_003):
        for rows in (0, 1, 3):
            check_both(op, make(op, rows, size, dtype, "cpu"))


@each_op_and_dtype
def test_random_shapes(op: str, dtype: torch.dtype):
    shapes = random.Random(f"{op} {dtype}")
    for _ in range(40):
        heads = shapes.randint(1, 9), shapes.randint(0, 4)
        check(op, make(op, shapes.randint(1, 40), shapes.randint(1, 2000), dtype, "cpu", heads), shapes.randint(0, 8))


@each_op_and_dtype
@pytest.mark.parametrize(("rows", "size"), [(4097, 256), (300_000, 2)])
def test_enough_rows_for_every_thread(op: str, rows: int, size: int, dtype: torch.dtype):
    check(op, make(op, rows, size, dtype, "cpu", heads=(1, 1)))


@each_op_and_dtype
def test_samples_against_the_reference(op: str, dtype: torch.dtype):
    for arguments in getattr(samples, op)(torch.device("cpu")):
        if data_of(op, arguments)[0].dtype == dtype and not arguments.get("round_first"):  # see test_norm_rounded.py
            check(op, arguments)


@each_op_and_dtype
def test_rows_may_be_apart(op: str, dtype: torch.dtype):
    arguments = make(op, 129, 240, dtype, "cpu")
    for view in (lambda x: x[..., 80:160], lambda x: x[::2, ..., 1:81], lambda x: x[:, ..., :80].flip(0)):
        apart = {name: view(value) if name in MUTATES[op] else value[..., :80] for name, value in arguments.items()}
        if "across" in op:
            apart["k"], apart["k_weight"] = apart["q"].clone(), apart["q_weight"]
        wanted, from_pytorch = expected(op, apart), pytorch(op, apart)
        getattr(norm, op)(**apart)
        assert_accurate({name: apart[name] for name in wanted}, wanted, from_pytorch)


@each_op_and_dtype
@pytest.mark.parametrize("special", SPECIALS)
def test_magnitudes(op: str, special: str, dtype: torch.dtype):
    arguments = make(op, 3, 1000, dtype, "cpu")
    for tensor in data_of(op, arguments):
        SPECIALS[special](tensor)
    check(op, arguments)


@each_op_and_dtype
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_go_as_in_pytorch(op: str, value: float, dtype: torch.dtype):
    check_non_finite(op, make(op, 3, 100, dtype, "cpu"), value)


@each_op
def test_eps_counts_and_may_be_an_integer(op: str):
    arguments = make(op, 3, 64, torch.bfloat16, "cpu")
    for tensor in data_of(op, arguments):
        tensor.mul_(1e-3)
    for eps in (1e-2, 1, 0):
        check(op, {**arguments, "eps": eps})


def test_layernorm_without_a_bias():
    arguments = make("layernorm", 5, 1000, torch.float32, "cpu")
    check_both("layernorm", {**arguments, "bias": None})
    del arguments["bias"]
    check_both("layernorm", arguments)


@each_dtype
@pytest.mark.parametrize("far", [1e-3, 30, 1e4])
def test_layernorm_of_long_rows_that_begin_far_from_the_rest(far: float, dtype: torch.dtype):
    """The estimate of the mean is from the first eighth of a row."""
    for size in (1024, 4096, 5000):
        arguments = make("layernorm", 5, size, dtype, "cpu")
        arguments["input"][:, : size // 8] += far
        check("layernorm", arguments)


@each_dtype
@pytest.mark.parametrize("place", [0, 4095])
def test_nan_and_infinity_of_long_rows(place: int, dtype: torch.dtype):
    for value in (float("nan"), float("inf")):
        arguments = make("layernorm", 3, 4096, dtype, "cpu")
        arguments["input"][1, place] = value
        norm.layernorm(**arguments)
        out = arguments[written("layernorm", arguments)[0]]
        assert out[1].isnan().all()
        assert out[::2].isfinite().all()


@pytest.mark.parametrize("op", ["fused_inplace_qknorm", "gemma_fused_inplace_qknorm"])
@each_dtype
def test_q_and_k_of_one_buffer(op: str, dtype: torch.dtype):
    """Both layouts of a projection: all heads of q, of k, of v; or q, k and v of each head."""
    for split in (lambda x: (x[:, :8], x[:, 8:10]), lambda x: (x[:, 0::3], x[:, 1::3])):
        buffer = torch.randn(17, 12, 64).to(dtype)
        weights = {"q_weight": torch.randn(64).to(dtype), "k_weight": torch.randn(64).to(dtype)}
        wanted = buffer.double()
        arguments = dict(zip("qk", split(wanted), strict=True))
        pytorch_result = pytorch(op, {**dict(zip("qk", split(buffer), strict=True)), **weights})
        from_pytorch = buffer.clone()
        for tensor, result in zip(split(from_pytorch), pytorch_result.values(), strict=True):
            tensor.copy_(result)
        before = expected(op, {**dict(zip("qk", split(buffer), strict=True)), **weights})
        for name, tensor in arguments.items():
            tensor.copy_(before[name])
        getattr(norm, op)(*split(buffer), **weights)
        assert_accurate({"all": buffer}, {"all": wanted}, {"all": from_pytorch})


def test_q_and_k_as_rows_of_heads():
    arguments = make("fused_inplace_qknorm", 9, 64, torch.float32, "cpu", heads=(6, 2))
    flat = {**arguments, "q": arguments["q"].flatten(1), "k": arguments["k"].flatten(1), "head_dim": 64}
    check("fused_inplace_qknorm", flat)
    check("fused_inplace_qknorm", {**flat, "k": arguments["k"]})


def test_out_beside_input_in_one_buffer():
    buffer = make("rmsnorm", 9, 200, torch.float32, "cpu")["input"]
    arguments = {"input": buffer[:, :100], "weight": torch.randn(100), "out": buffer[:, 100:]}
    wanted, from_pytorch = expected("rmsnorm", arguments), pytorch("rmsnorm", arguments)
    norm.rmsnorm(**arguments)
    assert_accurate({"out": arguments["out"]}, wanted, from_pytorch)


def test_one_row_in_place_through_another_stride():
    buffer, weight = torch.randn(4, 64), torch.randn(64)
    arguments = {"input": buffer[:1], "weight": weight, "out": buffer.as_strided((1, 64), (128, 1))}
    wanted, from_pytorch = expected("rmsnorm", arguments), pytorch("rmsnorm", arguments)
    norm.rmsnorm(**arguments)
    assert_accurate({"out": arguments["out"]}, wanted, from_pytorch)


@pytest.mark.slow
def test_a_result_does_not_depend_on_the_number_of_threads():
    program = (
        "import torch; from sgljit_core import ops; torch.manual_seed(0)\n"
        "x = torch.randn(2000, 1000); ops['norm'].rmsnorm(x, torch.ones(1000)); print(x.double().sum().item())"
    )
    sums = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2,1", "64", "nonsense")
    }
    assert len(sums) == 1


def test_works_in_a_forked_child():
    x, weight = torch.randn(2000, 1000), torch.randn(1000)
    wanted = x.clone()
    norm.rmsnorm(wanted, weight)  # threads have run in the parent
    x.share_memory_()
    child = os.fork()
    if child == 0:  # nothing else of torch here: its own thread pool does not survive the fork
        norm.rmsnorm(x, weight)
        os._exit(0)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert torch.equal(x, wanted)


@pytest.mark.slow
@each_op
def test_torch_compile(op: str):
    """A graph of the op, between operations that read what it wrote; both ways where the op has ``out``."""
    arguments = make(op, 3, 64, torch.float32, "cpu")
    function = getattr(norm, op)
    torch.compiler.reset()
    ways = [{}, {"out": poisoned(arguments["input"])}] if "out" in MUTATES[op] else [{}]
    for way in ways:

        def twice(call: dict[str, torch.Tensor], names: tuple[str, ...]) -> list[torch.Tensor]:
            function(**call)
            function(**call)
            return [call[name] + 1 for name in names]

        call = {**arguments, **way}
        names = written(op, call)
        compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")(clones(call), names)
        for got, wanted in zip(compiled, twice(clones(call), names), strict=True):
            assert torch.equal(got, wanted)
