"""A case by hand, and what wrong arguments get. `sgljit test` compares with the reference besides."""

from __future__ import annotations

import pytest
import torch
from sgljit_core import ops, override_cuda_arch
from sgljit_core.errors import TensorMatchError, ToolchainNotFoundError
from sgljit_core.testing import check_op

from ..ops import variants

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # skipped where there is no GPU


@pytest.mark.parametrize("device", DEVICES)
def test_by_hand(device: str) -> None:
    x = torch.tensor([[1.0, -2.0], [float("inf"), 4.0]], device=device)
    out = torch.empty_like(x)
    ops["$family"].$op(x, out, 0.5)
    assert out.tolist() == [[0.5, -1.0], [float("inf"), 2.0]]


@pytest.mark.parametrize("device", DEVICES)
def test_it_agrees_with_the_reference(device: str) -> None:
    check_op("$family.$op", device, checks=["signatures", "results", "layouts"])


def test_wrong_arguments_are_refused_with_the_cause() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(TensorMatchError, match=r"expected one of .* but got int32"):
        ops["$family"].$op(x.int(), x)
    with pytest.raises(TensorMatchError, match="Size mismatch for a row: expected 8 but got 4"):
        ops["$family"].$op(x, x[:, :4])
    with pytest.raises(ValueError, match="share memory"):
        ops["$family"].$op(x[:, :4], x[:, 2:6])


def test_what_is_built_ahead_builds_without_a_gpu() -> None:
    with override_cuda_arch(9, 0):
        try:
            for build in variants():
                build()
        except ToolchainNotFoundError as error:
            pytest.skip(str(error))
