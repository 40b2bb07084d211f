"""rmsnorm on the CPU: values."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from sgljit_core import ops
from sgljit_norm import reference, samples

from .helpers import Guarded, assert_accurate, check, relative_error

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
rmsnorm = ops["norm"].rmsnorm


def inputs(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(num_tokens * 100_003 + hidden_size)
    return torch.randn(num_tokens, hidden_size).to(dtype), torch.randn(hidden_size).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden_size", [1, 2, 31, 32, 33, 65, 1000, 4096, 8191, 8192, 8193, 16384, 100_003])
@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_any_hidden_size(num_tokens: int, hidden_size: int, dtype: torch.dtype):
    check(*inputs(num_tokens, hidden_size, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "hidden_size"), [(4097, 256), (1031, 1024), (300_000, 2)])
def test_enough_rows_for_every_thread(num_tokens: int, hidden_size: int, dtype: torch.dtype):
    check(*inputs(num_tokens, hidden_size, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_against_the_reference(dtype: torch.dtype):
    for x, weight, out, eps in samples.rmsnorm(torch.device("cpu")):
        if x.dtype != dtype:
            continue
        before = x.clone()
        if out is not None:
            out.fill_(float("nan"))
        rmsnorm(x, weight, out, eps)
        assert_accurate(x if out is None else out, before, weight, eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_may_be_apart(dtype: torch.dtype):
    buffer, weight = inputs(129, 3 * 80, dtype)[0], inputs(1, 80, dtype)[1]
    check(buffer[:, 80:160], weight)
    check(buffer[::2, 1:81], weight)
    check(buffer[:1].expand(5, -1)[:, :80], weight)


def test_out_beside_input_in_one_buffer():
    buffer, weight = inputs(9, 200, torch.float32)[0], inputs(1, 100, torch.float32)[1]
    rmsnorm(buffer[:, :100], weight, buffer[:, 100:])
    assert_accurate(buffer[:, 100:], buffer[:, :100], weight)


def test_one_row_in_place_through_another_stride():
    buffer, weight = inputs(4, 64, torch.float32)
    x, out = buffer[:1], buffer.as_strided((1, 64), (128, 1))
    expected = x.double()
    reference.rmsnorm(expected, weight)
    rmsnorm(x, weight, out)
    assert relative_error(out, expected) < 1e-6


@pytest.mark.parametrize("scale", [1e4, 1e-4, 1e-12])
def test_magnitudes(scale: float):
    x, weight = inputs(3, 4096, torch.float32)
    check(x * scale, weight)


def test_one_outlier():
    x, weight = inputs(3, 4096, torch.float32)
    x[:, 17] = 1e6
    check(x, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_stay_zero(dtype: torch.dtype):
    out = Guarded(2, 100, dtype, "cpu")
    rmsnorm(torch.zeros(2, 100, dtype=dtype), torch.ones(100, dtype=dtype), out.tensor)
    assert torch.equal(out.tensor, torch.zeros(2, 100, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_go_as_in_pytorch(special: float, dtype: torch.dtype):
    x, weight = inputs(2, 100, dtype)
    x[1, 5] = special
    expected = torch.nn.functional.rms_norm(x, (100,), weight, 1e-6)
    rmsnorm(x, weight)
    assert torch.equal(x[1].isnan(), expected[1].isnan())
    assert torch.equal(x[1].nan_to_num(0), expected[1].nan_to_num(0))


def test_eps_counts_and_may_be_an_integer():
    x, weight = inputs(3, 64, torch.float32)
    check(x * 1e-3, weight, 1e-2)
    check(x, weight, 1)


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
    x, weight = inputs(2000, 1000, torch.float32)
    expected = x.clone()
    rmsnorm(expected, weight)  # threads have run in the parent
    x.share_memory_()
    child = os.fork()
    if child == 0:  # nothing else of torch here: its own thread pool does not survive the fork
        rmsnorm(x, weight)
        os._exit(0)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert torch.equal(x, expected)


def test_torch_compile():
    def double_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        rmsnorm(x, weight, out)
        rmsnorm(out, weight)
        return out + 1

    x, weight = inputs(3, 64, torch.float32)
    compiled = torch.compile(double_norm, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight), double_norm(x, weight))
