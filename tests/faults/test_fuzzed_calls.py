"""No call, however wrong, may crash, hang, or give another result than the reference."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import fuzz
import pytest
import torch

FAMILIES = ("activation", "norm", "quant", "rope", "kvcache", "moe", "sampling", "hicache", "wait_value")
CALLS = 2_000  # of a family; more of them are "python tests/fuzz.py norm 0 2000 100000"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_fuzzed_calls_are_refused_or_right(family, tmp_path):
    """In a process of its own, whose end a crash or a call without end is."""
    command = [sys.executable, fuzz.__file__, family, "0"]
    with (tmp_path / "output").open("w") as output:
        done = subprocess.run([*command, "0", str(CALLS)], stdout=output, stderr=subprocess.STDOUT)
    text = (tmp_path / "output").read_text()
    last = int(text.split(maxsplit=1)[0])
    assert done.returncode == 0, f"To repeat: {' '.join(command)} {last} {last + 1}\n{text[-8000:]}"
    assert CALLS // 4 < int(text.split()[-2]) < CALLS  # some run, some are refused


def double(x: torch.Tensor) -> None:
    x.copy_(2 * x)


def triple(x: torch.Tensor) -> None:
    x.copy_(3 * x)


def refuse(x: torch.Tensor) -> None:
    raise ValueError("x is wrong")


def refuse_in_silence(x: torch.Tensor) -> None:
    raise ValueError


def leak(x: torch.Tensor) -> None:
    raise OSError("raw")


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (double, True),
        (triple, "x differs from the reference"),
        (refuse, False),
        (refuse_in_silence, "an error without a word"),
        (leak, "raw"),
    ],
)
def test_a_call_is_judged_by_the_reference(function, outcome):
    op = SimpleNamespace(function=function, reference=double)
    arguments = {"x": torch.tensor([1.0, float("nan")])}
    if isinstance(outcome, bool):
        assert fuzz.judge(op, arguments) is outcome
        return
    with pytest.raises((AssertionError, OSError), match=outcome):
        fuzz.judge(op, arguments)


def test_what_addresses_lead_to_is_judged_too():
    pool = torch.ones(4)
    table = torch.tensor([pool.data_ptr()])
    table.memory = pool

    def fill(value):
        def function(table):
            pool.fill_(value)

        return function

    assert fuzz.judge(SimpleNamespace(function=fill(5), reference=fill(5)), {"table": table})
    with pytest.raises(AssertionError, match="table differs from the reference"):
        fuzz.judge(SimpleNamespace(function=fill(5), reference=fill(6)), {"table": table})
