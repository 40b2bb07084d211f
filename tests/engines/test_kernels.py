"""The ops that an adapter asks about before it calls them: what is built when, counted, and proven."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import errors
from sgljit_engines import Adapter, Kernels, Use, prove_activation, report
from sgljit_engines.errors import InexactError
from sgljit_engines.uses import USES


@pytest.fixture
def kernels():
    made = Kernels(Adapter("sgljit-some", {"pytest": ">=8"}, {"activation": {"silu_and_mul": "SiluAndMul"}}))
    yield made
    USES.clear()


def fits(kernel):
    kernel(torch.zeros(1, 32))


def refuse(_kernel):
    raise errors.TensorMatchError("rank 5")


def test_a_kind_is_tried_once_and_its_calls_are_counted(kernels):
    trials = []
    kinds = (("float32", "cpu"), ("float32", "cpu"), ("float64", "cpu"))
    answers = [
        kernels.works(
            "silu_and_mul",
            kind,
            lambda op, kind=kind: trials.append(kind) or (refuse if kind[0] == "float64" else fits)(op),
        )
        for kind in kinds
    ]
    assert answers == [True, True, False]
    assert len(trials) == 2
    for number in (3, 2):
        assert kernels.works("silu_and_mul", ("float32", "cpu"), fits)
        assert all(kernels.ran("silu_and_mul", torch.zeros(2, 32)) for _ in range(number))
    first, second = report()
    assert (first.kind, first.calls, first.why) == ("float32 cpu", 5, "")
    assert second == Use("sgljit-some", "SiluAndMul", "float64 cpu", "silu_and_mul", why="the op does not take it")
    assert "; calls 5" in " ".join(str(first).split())
    assert kernels.worked("silu_and_mul", ("float32", "cpu"))
    assert not kernels.worked("silu_and_mul", ("float64", "cpu"))
    assert not kernels.worked("silu_and_mul", ("never asked",))
    assert kernels.working(["silu_and_mul"]) == [("silu_and_mul", "float32", "cpu")]


def test_an_op_that_is_lost_works_no_more(kernels):
    assert kernels.works("silu_and_mul", (), fits)

    def fail():
        raise OSError("no space")

    kernels.adapter.attempt("silu_and_mul", fail)
    assert not kernels.ran("silu_and_mul", torch.zeros(2, 32))
    assert not kernels.worked("silu_and_mul", ())
    assert kernels.working(["silu_and_mul"]) == []
    assert report()[0].calls == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_activation_is_proven_by_all_values_of_a_gate(dtype):
    def own(gate, up):
        return torch.nn.functional.silu(gate) * up

    def one_other(gate, up):
        return torch.where(gate == 1.5, own(gate, up) * 2, own(gate, up))

    def rounded_once(gate, up):
        return (torch.nn.functional.silu(gate.float()) * up.float()).to(dtype)

    prove_activation(own, own, dtype, "cpu")
    with pytest.raises(InexactError, match=r"^1 of 65536 gates give other bits than the engine's own code$"):
        prove_activation(one_other, own, dtype, "cpu")
    with pytest.raises(InexactError, match=r"^\d{4,} of 65536 gates give other bits"):
        prove_activation(rounded_once, own, dtype, "cpu")


def test_in_float32_nothing_is_proven():
    with pytest.raises(InexactError, match=r"cannot be proven in torch\.float32$"):
        prove_activation(torch.mul, torch.mul, torch.float32, "cpu")
