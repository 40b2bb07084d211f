"""``SGLJIT_SHADOW``: which calls are compared, on what, and what a difference does."""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
import math
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from sgljit_core import errors, ops
from sgljit_engines import Adapter, report
from sgljit_engines.errors import DisagreementError
from sgljit_engines.uses import USES

OPS = {
    "activation": {"silu_and_mul": "SiluAndMul", "silu_and_mul_quant": "SiluAndMul to FP8"},
    "rope": {"apply_rope_inplace": "the rotation"},
}


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.delenv("SGLJIT_ENGINES", raising=False)
    monkeypatch.setenv("SGLJIT_SHADOW", "0.001")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    USES.clear()  # tests of other adapters, in the same process, leave some
    with torch.inference_mode():
        yield
    USES.clear()


def adapter() -> Adapter:
    return Adapter("sgljit-core", {"pytest": ">=8"}, OPS)


def seam_of(one: Adapter, name: str, ours):
    """As an adapter has it: the op while it is in use, or else the engine's own code."""

    def seam(theirs, *args, **kwargs):
        if not one.attempt(name, lambda: ours(*args, **kwargs)):
            theirs(*args, **kwargs)

    return seam


def double(x: torch.Tensor) -> None:
    x.mul_(2)


def test_off_is_the_function_itself(monkeypatch):
    seam = seam_of(adapter(), "silu_and_mul", double)
    for value in ("", " ", "0", "0.0"):
        monkeypatch.setenv("SGLJIT_SHADOW", value)
        assert adapter().shadowed("silu_and_mul", seam) is seam


@pytest.mark.parametrize("value", ["yes", "-0.1", "1.5", "nan", "0,1", "1e9"])
def test_what_is_no_share_is_an_error(value, monkeypatch):
    monkeypatch.setenv("SGLJIT_SHADOW", value)
    with pytest.raises(errors.ConfigError, match=r"^SGLJIT_SHADOW must be the share of calls .*, from 0 to 1; got "):
        adapter().shadowed("silu_and_mul", double)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 10_000), (0.5, 5000), (0.01, 100), (0.001, 10)])
def test_a_share_is_compared_and_the_first(share, expected, monkeypatch):
    monkeypatch.setenv("SGLJIT_SHADOW", str(share))
    one, calls = adapter(), []
    call = one.shadowed("silu_and_mul", seam_of(one, "silu_and_mul", double))
    x = torch.ones(4)

    def theirs(x):
        calls.append(number)
        x.mul_(2)

    for number in range(10_000):  # noqa: B007 - theirs takes it
        call(theirs, x.fill_(1))
        assert x[0] == 2, "the copies are written, and the arguments once"
    assert calls[0] == 0
    assert abs(len(calls) - expected) <= 1 + expected / 100
    if share == 0.001:  # 200 calls of a token of 40 layers: not always those of one layer
        assert len({number % 200 for number in calls}) > 8
        assert max(b - a for a, b in itertools.pairwise(calls)) <= 1500


def python_calls(call, number: int) -> int:
    """How many functions of Python and C a number of calls enters."""
    entered = 0

    def count(_frame, event, _arg):
        nonlocal entered
        entered += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in range(number):
            call()
    finally:
        sys.setprofile(None)
    return entered


def test_the_cost_of_a_thousandth_is_in_the_budget_of_half_a_percent():
    """In runs, which are what takes time on a device; and what a call that is not compared does beside its own work."""
    runs = Counter[str]()

    def ours(_x):
        runs["ours"] += 1

    def theirs(_x):
        runs["theirs"] += 1

    one, x, calls = adapter(), torch.ones(4), 100_000
    seam = seam_of(one, "silu_and_mul", ours)
    call = one.shadowed("silu_and_mul", seam)
    for _ in range(calls):
        call(theirs, x)
    extra = runs["ours"] - calls + runs["theirs"]  # of the op and of the engine's own code, on copies
    assert 0.0015 * calls < extra <= 0.0025 * calls
    quiet = 200
    call.due += 10 * quiet  # none of these is compared
    with_shadow = python_calls(lambda: call(theirs, x), quiet)
    without = python_calls(lambda: seam(theirs, x), quiet)
    assert with_shadow - without <= 4 * quiet  # the function itself, is_compiling with another one inside, next


def test_threads_call_at_once(monkeypatch):
    monkeypatch.setenv("SGLJIT_SHADOW", "0.1")
    one = adapter()
    call = one.shadowed("silu_and_mul", lambda _theirs, x: x)

    def many(_number):
        with torch.inference_mode():
            for _ in range(2000):
                call(lambda x: x, torch.ones(1))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    assert 800 <= report()[0].compared <= 820
    assert next(call.numbers) == 8001


def test_random_numbers_of_the_model_stay_what_they_are():
    one = adapter()
    call = one.shadowed("silu_and_mul", seam_of(one, "silu_and_mul", double))
    before = torch.get_rng_state()
    for _ in range(3000):
        call(double, torch.ones(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_arguments_that_are_one_tensor_stay_one_and_views_keep_their_strides():
    one, seen = adapter(), []

    def theirs(x, out, view, *, flag):
        seen.append((x is out, view.stride(), flag))
        out.copy_(x * 2)

    call = one.shadowed("silu_and_mul", lambda _theirs, *args, **kwargs: theirs(*args, **kwargs))
    x = torch.ones(4, 8)
    call(theirs, x, x, torch.ones(8, 4).T, flag=True)
    assert seen == [(True, (1, 4), True)] * 3


@pytest.mark.parametrize("error", [ValueError("a shape"), IndexError("index 7"), torch.OutOfMemoryError("no memory")])
def test_what_cannot_be_compared_is_a_warning_and_the_call_is_as_ever(error, caplog):
    def theirs(*_):
        raise error

    one = adapter()
    call = one.shadowed("silu_and_mul", seam_of(one, "silu_and_mul", double))
    for _ in range(3000):
        call(theirs, torch.ones(2))
    (text,) = caplog.messages
    assert "cannot compare a call of silu_and_mul with the engine's own code: " in text
    assert text.endswith(f"{type(error).__name__}: {error}")


def test_large_tensors_are_not_copied(monkeypatch, caplog):
    monkeypatch.setattr("sgljit_engines.shadow._MOST", 64)
    one = adapter()
    call = one.shadowed("silu_and_mul", seam_of(one, "silu_and_mul", double))
    call(double, torch.ones(32))
    assert caplog.messages[-1].endswith("MemoryError: it has more than 0 MiB of tensors")


def test_an_error_of_the_call_passes():
    call = adapter().shadowed("silu_and_mul", lambda theirs, x: x[7])
    with pytest.raises(IndexError):
        call(lambda x: x[0], torch.ones(2))


def test_what_ran_on_the_engines_own_code_is_not_compared():
    one = adapter()
    call = one.shadowed("silu_and_mul", lambda theirs, x: theirs(x))
    call(double, torch.ones(2))
    assert not report()


def test_a_seam_that_falls_back_by_itself_is_not_compared():
    """As layers do whose own code is a method of theirs."""
    one = adapter()

    def refused(x):
        raise errors.TensorMatchError("x: another dtype")

    def seam(theirs, x):
        if not one.attempt("silu_and_mul", lambda: refused(x)):
            double(x)

    call = one.shadowed("silu_and_mul", seam)
    for _ in range(3):
        call(double, torch.ones(4))
    assert not any(use.compared for use in report())


def test_a_subclass_of_a_tensor_is_not_compared():
    one, calls = adapter(), []
    call = one.shadowed("silu_and_mul", lambda _theirs, x: x)
    call(lambda x: calls.append(1), torch.ones(2).as_subclass(type("Other", (torch.Tensor,), {})))
    assert not calls


# Faults, planted in call 500, when the first comparison is over.


def rotate(q, k, cache, positions, *, is_neox):
    """An engine's own code."""
    cos, sin = (half[:, None] for half in cache[positions].chunk(2, dim=-1))
    for x in (q, k):
        first, second = x.float().chunk(2, dim=-1) if is_neox else (x.float()[..., 0::2], x.float()[..., 1::2])
        turned = (first * cos - second * sin, second * cos + first * sin)
        x.copy_(torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2))


def rotation():
    angles = torch.randn(32, 32)
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
    q, k = torch.randn(2, 4, 64).bfloat16(), torch.randn(2, 2, 64).bfloat16()
    return (q, k, cache, torch.tensor([3, 7])), {"is_neox": False}


def activate_and_quantize(x, q, s):
    """An engine's own code: two kernels, the first of which rounds to the dtype of the model."""
    gate, up = x.float().chunk(2, dim=-1)
    y = (torch.nn.functional.silu(gate) * up).to(x.dtype).float().unflatten(-1, (-1, 128))
    s.copy_((y.abs().amax(-1) / 448).clamp(2.0**-126))
    q.copy_((y * (1 / s[..., None])).flatten(-2))


def activation():
    x = torch.randn(8, 512).bfloat16() * 4
    return (x, torch.empty(8, 256, dtype=torch.float8_e4m3fn), torch.empty(8, 2)), {}


FAULTS = {
    "the style of a rotation is hard-coded": (
        "apply_rope_inplace",
        rotate,
        rotation,
        lambda *args, is_neox: ops["rope"].apply_rope_inplace(*args, is_neox=is_neox),
        lambda *args, is_neox: ops["rope"].apply_rope_inplace(*args, is_neox=True),
        "on",
        "differs at",
    ),
    "a fused quantisation lacks a rounding of the two kernels that it replaces": (
        "silu_and_mul_quant",
        activate_and_quantize,
        activation,
        lambda *args: ops["activation"].silu_and_mul_quant(*args, round_first=True),
        ops["activation"].silu_and_mul_quant,
        "exact",
        "has other bits",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_within_10000_calls(fault, monkeypatch, caplog):
    name, theirs, arguments, right, wrong, engines, text = FAULTS[fault]
    monkeypatch.setenv("SGLJIT_ENGINES", engines)
    caplog.set_level(logging.INFO, "sgljit")
    torch.manual_seed(0)
    one, number, of_theirs = adapter(), 0, []

    def ours(*args, **kwargs):
        (right if number < 500 else wrong)(*args, **kwargs)

    def own(*args, **kwargs):
        of_theirs.append(number)
        theirs(*args, **kwargs)

    call = one.shadowed(name, seam_of(one, name, ours))
    args, kwargs = arguments()
    for number in range(10_000):  # noqa: B007 - ours and own take it
        call(own, *args, **kwargs)
        if len(of_theirs) > 20:
            break
    assert of_theirs[0] == 0
    found = of_theirs[1]
    assert 500 <= found < 2500
    assert of_theirs[1:] == [found, *range(found, found + 19)], "from then on all calls are the engine's own"
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    (warning,) = [record for record in warnings if record.sgljit["event"] != "build_slow"]  # of a slow compiler
    error = warning.sgljit["error"]
    assert isinstance(error, DisagreementError)
    assert text in error.difference
    assert f"in call {found + 1} a result {text}" in warning.getMessage()
    assert all(use.why.startswith(f"DisagreementError: a result {text}") for use in report())
    kept = torch.load(error.path)
    assert kept["op"].endswith(name)
    args, kwargs = kept["args"], kept["kwargs"]
    wrong(*args, **kwargs)
    written = args[:2] if name == "apply_rope_inplace" else args[1:]
    of_ours = [tensor for tensor in kept["ours"] if tensor.shape in {one.shape for one in written}]
    assert all(any(torch.equal(one, other) for other in of_ours if one.shape == other.shape) for one in written)
    assert Path(error.path).stat().st_mode & 0o077 == 0 or Path(error.path).parent.stat().st_mode & 0o077 == 0


def test_what_is_compared_may_be_less_than_the_arguments():
    """As where a cache is too large to copy."""
    one, seen = adapter(), []
    cache = torch.zeros(1000, 4)

    def store(row, cache, slot):
        seen.append(len(cache))
        cache[slot] = row

    def outcome(run, row, cache, slot):
        (_, small, _), _ = run(row, cache.new_zeros(1, 4), 0)
        return small

    call = one.shadowed("silu_and_mul", lambda _theirs, *args: store(*args), outcome=outcome)
    call(store, torch.ones(4), cache, 7)
    assert seen == [1, 1, 1000]
    assert cache.sum() == 4
    assert report()[0].compared == 1


def test_the_worst_is_counted_and_said(caplog, monkeypatch):
    monkeypatch.setenv("SGLJIT_SHADOW", "1")
    caplog.set_level(logging.INFO, "sgljit")
    one = adapter()
    call = one.shadowed("silu_and_mul", lambda _theirs, x, error: x * (1 + error))
    for error in (1e-5, 3e-5, 2e-5):
        call(lambda x, _: x, torch.ones(8), error)
    (use,) = report()
    assert use.compared == 3
    assert math.isclose(use.worst, 0.15, rel_tol=0.01)
    assert "compared 3, at worst 0.15 of its bound" in " ".join(str(report()).split())
    first, *others = caplog.messages
    assert first.endswith("compares 1 of the calls of its ops with the engine's own code (SGLJIT_SHADOW)")
    assert [text.partition("differs ")[2] for text in others] == [
        "from the engine's own code by 0.05 of its bound in call 1",
        "from the engine's own code by 0.15 of its bound in call 2",
    ], "what is twice as large as before"
