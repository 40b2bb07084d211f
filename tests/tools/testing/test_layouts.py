"""The calls of other sizes that the kit derives from samples."""

from __future__ import annotations

import math

import pytest
import torch

from sgljit_tools.testing import layouts


def shapes(sample: dict[str, tuple[int, ...]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of each call, by what was resized."""
    tensors = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in sample.items()}
    return {
        text: {name: tuple(tensor.shape) for name, tensor in call.items()} for text, call in layouts.sizes([tensors])
    }


def test_a_multiple_in_another_tensor_follows_and_a_multiple_by_chance_stays():
    found = shapes({"x": (3, 510), "weight": (255,), "out": (3, 255)})
    assert found["3 made 257"] == {"x": (257, 510), "weight": (255,), "out": (257, 255)}
    assert found["255 made 257"] == {"x": (3, 514), "weight": (257,), "out": (3, 257)}
    assert found["3 made 0"] == {"x": (0, 510), "weight": (255,), "out": (0, 255)}


def test_equal_sizes_stay_equal():
    assert shapes({"x": (3, 3)})["3 made 17"] == {"x": (17, 17)}


def test_a_call_that_would_be_too_large_is_left_out_before_it_is_made(monkeypatch):
    made = []
    resized = layouts._resized

    def counting(*arguments):
        made.append(result := resized(*arguments))
        return result

    monkeypatch.setattr(layouts, "_resized", counting)
    found = shapes({"x": (3, 255), "all": (85, 85 * 3)})
    assert "3 made 4097" not in found  # x would be [4097, 255]
    assert max(math.prod(shape) for call in found.values() for shape in call.values()) <= layouts.LARGEST
    assert max(tensor.numel() for tensor in made) <= layouts.LARGEST


@pytest.mark.parametrize("shape", [(), (0,), (1, 1)])
def test_nothing_to_resize_is_no_call(shape):
    assert shapes({"x": shape}) == {}
