"""The ops against float64, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_rope import reference
from sgljit_rope.plugin import FAMILY

family = ops["rope"]
ones = torch.ones
ROUNDED = {torch.float32: 2**-20, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


@pytest.mark.parametrize(
    "op",
    [x if x == "fused_qk_norm_rope" else pytest.param(x, marks=pytest.mark.slow) for x in FAMILY.declared()],
)
@pytest.mark.parametrize(
    "dtype", [x if x is torch.bfloat16 else pytest.param(x, marks=pytest.mark.slow) for x in ROUNDED]
)
def test_it_agrees_with_float64(op, dtype, device):
    torch.manual_seed(0)
    samples = [sample for sample in FAMILY.declared()[op].samples(device) if sample["q"].dtype == dtype]
    assert samples
    for sample in samples:
        wanted = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in sample.items()}
        getattr(reference, op)(**wanted)
        getattr(family, op)(**sample)
        for name, x in sample.items():
            if isinstance(x, torch.Tensor):
                close = ROUNDED.get(x.dtype, 0)
                torch.testing.assert_close(x, wanted[name], rtol=close, atol=4 * close)
        if "k_cache" in sample:
            kept = sample["out_loc"] >= 0
            slots = sample["out_loc"][kept].long()
            assert torch.equal(sample["k_cache"][slots], sample["k"][kept])
            assert torch.equal(sample["v_cache"][slots], sample["v"][kept])


def test_a_quarter_turn_is_known(device):
    for is_neox, wanted in ((True, [-3.0, -4, 1, 2]), (False, [-2.0, 1, -4, 3])):
        q = torch.tensor([[[1.0, 2, 3, 4]]], device=device)
        k = q.clone()
        cos_sin = torch.tensor([[9.0, 9, 9, 9], [0, 0, 1, 1]], device=device)
        family.apply_rope_inplace(q, k, cos_sin, torch.tensor([1], device=device), is_neox=is_neox)
        assert q.flatten().tolist() == k.flatten().tolist() == wanted


def test_what_it_turns_it_turns_back(device):
    for is_neox in (True, False):
        q, k = torch.randn(3, 4, 64, device=device), torch.randn(3, 2, 64, device=device)
        before = q.clone(), k.clone()
        angles = torch.rand(3, 32, device=device) * 7
        cos_sin, positions = torch.cat((angles.cos(), angles.sin()), -1), torch.arange(3, device=device)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        family.apply_rope_inplace(q, k, cos_sin, positions, is_neox=is_neox)
        assert (q - before[0]).norm() > 1
        family.apply_rotary_pos_emb_inplace(q, k, cos, sin, is_neox=is_neox, inverse=True)
        torch.testing.assert_close((q, k), before)
        family.apply_rotary_pos_emb_inplace(q, k, cos[None], sin[None], is_neox=is_neox)
        family.apply_rope_inplace(q, k, cos_sin, positions, is_neox=is_neox, inverse=True)
        torch.testing.assert_close((q, k), before)


def test_angles_that_do_not_fit_are_refused(device):
    for changed, name, text in (
        ({"k": ones(2, 1, 6)}, "k", "for a row: expected 8, that of q, but got 6"),
        ({"cos": ones(3, 8)}, "cos", "number of rows: expected 2 but got 3"),
        ({"sin": ones(2, 6)}, "sin", "expected elements for 4 pairs but got 3"),
        ({"sin": ones(2, 7)}, "sin", "each row must consist of 2 parts of equal size, got 7 elements"),
        ({"cos": ones(2, 10), "sin": ones(2, 10)}, "cos", "at most 4 pairs, but got 5 elements"),
        ({"cos": ones(2, 8).long()}, "cos", "DType mismatch"),
    ):
        arguments = {"q": ones(2, 3, 8), "k": ones(2, 1, 8), "cos": ones(2, 8), "sin": ones(2, 8), **changed}
        with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
            family.apply_rotary_pos_emb_inplace(**{key: x.to(device) for key, x in arguments.items()})


def given(device, **changed):
    arguments = {"q": ones(2, 3, 8), "k": ones(2, 1, 8), "v": ones(2, 1, 8), "q_weight": ones(8), "k_weight": ones(8)}
    arguments |= {"k_cache": ones(4, 1, 8), "v_cache": ones(4, 1, 8), "cos_sin_cache": ones(5, 8)}
    arguments |= {"positions": torch.arange(2), "out_loc": torch.arange(2), **changed}
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}


BAD = {
    "odd head": ({"q": ones(2, 3, 7), "k": ones(2, 1, 7)}, "q_weight|cos_sin_cache", "Size mismatch for a row"),
    "rope_dim odd": ({"cos_sin_cache": ones(5, 7)}, "cos_sin_cache", "expected 2 parts, .* but got 7 elements"),
    "rope_dim above": ({"cos_sin_cache": ones(5, 10)}, "cos_sin_cache", "at most 4 pairs, but got 10 elements"),
    "rope_dim": ({"rope_dim": 6}, "cos_sin_cache", "expected rope_dim, 6, but got 8"),
    "dtype of q": ({"q": ones(2, 3, 8).long()}, "q", "DType mismatch"),
    "dtype of k": ({"k": ones(2, 1, 8).half()}, "k", "same dtype"),
    "size of k": ({"k": ones(2, 1, 6)}, "k", "for a row: expected 8, that of q, but got 6"),
    "size of v": ({"v": ones(2, 1, 6)}, "v", "for a row: expected 8, that of v_cache, but got 6"),
    "tokens of k": ({"k": ones(3, 1, 8)}, "k", "number of rows: expected 2, that of q, but got 3"),
    "tokens of v": ({"v": ones(3, 1, 8)}, "v", "number of rows: expected 2, that of q, but got 3"),
    "heads of v_cache": ({"v_cache": ones(4, 2, 8)}, "v_cache", "the rows of each: expected 1 but got 2"),
    "weight": ({"k_weight": ones(7)}, "k_weight", "for a row: expected 8 but got 7"),
    "dtype of positions": ({"positions": ones(2)}, "positions", "expected one of .int32, int64. but got float32"),
    "shape of positions": ({"positions": ones(1, 2).long()}, "positions", "Dimension mismatch: expected 1 but got 2"),
    "number of positions": ({"positions": torch.arange(3)}, "positions", "expected 2 .*but got 3"),
    "dtype of out_loc": ({"out_loc": ones(2)}, "out_loc", "expected one of .int32, int64. but got float32"),
    "number of out_loc": ({"out_loc": torch.arange(3)}, "out_loc", "expected 2 .*but got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for ({name}), Tensor<.*{text}"):
        family.fused_qk_norm_rope_with_kvcache(**given(device, **changed))


@pytest.mark.gpu
def test_positions_on_another_device_are_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for positions, Tensor<.*Device mismatch: expected cuda"):
        family.fused_qk_norm_rope_with_kvcache(**{**given("cuda"), "positions": torch.arange(2)})


def test_an_index_out_of_range_is_refused_on_the_cpu():
    for name, table, value, count in (
        ("positions", "cos_sin_cache", 5, 5),
        ("positions", "cos_sin_cache", -1, 5),
        ("out_loc", "k_cache", 4, 4),
    ):
        arguments = given("cpu", **{name: torch.tensor([0, value])})
        text = rf"(?s)for {name}, Tensor<2>.*Index out of range: element 1 is {value}, and {table} has {count} rows"
        with pytest.raises(TensorMatchError, match=text):
            family.fused_qk_norm_rope_with_kvcache(**arguments)
        assert torch.equal(arguments["q"], ones(2, 3, 8))


def test_shared_memory_is_refused(device):
    x = ones(2, 4, 8, device=device)
    with pytest.raises(ValueError, match="rows of q share memory with each other or with other rows of k"):
        family.fused_qk_norm_rope_with_kvcache(**given(device) | {"q": x[:, :3], "k": x[:, 2:3]})


def test_a_negative_eps_is_refused():
    with pytest.raises(ValueError, match="eps must be at least 0, got -1"):
        family.fused_qk_norm_rope_with_kvcache(**given("cpu"), eps=-1.0)
