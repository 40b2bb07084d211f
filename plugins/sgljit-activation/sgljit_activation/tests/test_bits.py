"""What counts as a proof that two activations give the same bits."""

from __future__ import annotations

import re

import pytest
import torch

from sgljit_activation import bits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_activation_is_proven_by_all_values_of_a_gate(dtype):
    def own(gate, up):
        return torch.nn.functional.silu(gate) * up

    def one_other(gate, up):
        return torch.where(gate == 1.5, own(gate, up) * 2, own(gate, up))

    def rounded_once(gate, up):
        return (torch.nn.functional.silu(gate.float()) * up.float()).to(dtype)

    assert bits.difference(own, own, dtype, "cpu") is None
    found = bits.difference(one_other, own, dtype, "cpu")
    assert found == "1 of 65536 gates give other bits than the engine's own code"
    assert re.match(r"\d{4,} of 65536 gates give other bits", bits.difference(rounded_once, own, dtype, "cpu"))


def test_in_float32_nothing_is_proven():
    assert bits.difference(torch.mul, torch.mul, torch.float32, "cpu").endswith("cannot be proven in torch.float32")
