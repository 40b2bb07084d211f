"""Each prologue against PyTorch in float64, and what wrong arguments get."""

from __future__ import annotations

import copy

import pytest
import torch
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError

from sgljit_prologues import reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # skipped where there is no GPU
NAMES = ("qwen3", "qwen3_next", "gpt_oss", "deepseek_v3", "gemma3", "minimax_m2")
CLOSE = {torch.bfloat16: 2**-8, torch.float32: 2**-20}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(1)


def samples(name, device):
    return getattr(reference, f"samples_of_{name}")(device)


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_torch(name, device):
    for sample in samples(name, device):
        ours, theirs = copy.deepcopy(sample), copy.deepcopy(sample)
        getattr(ops["prologues"], name)(**ours)
        getattr(reference, name)(**theirs)
        for key, wanted in theirs.items():
            close = CLOSE.get(wanted.dtype, 0)
            torch.testing.assert_close(ours[key].double(), wanted.double(), rtol=2 * close, atol=2 * close)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_of_the_projection_is_written(name, device):
    *_, sample = samples(name, device)
    before = copy.deepcopy(sample)
    getattr(ops["prologues"], name)(**sample)
    written = {"q", "q_and_gate", "q_latent", "x", "residual", "k_cache", "v_cache", "kv_cache"}
    written |= {"k"} if name == "minimax_m2" else set()
    for key, value in sample.items():
        assert torch.equal(value, before[key]) == (key not in written), key
    if name == "qwen3":
        cache, slots = sample["k_cache"], sample["slots"]
        untouched = [slot for slot in range(len(cache)) if slot not in slots.tolist()]
        assert len(untouched) == 4, "one token of five is not stored"
        assert not cache[untouched].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_does_not_fit_is_refused_before_anything_is_written(name, device):
    *_, sample = samples(name, device)
    last = "before" if name == "gemma3" else "positions"
    sample[last] = sample[last][:-1]
    before = copy.deepcopy(sample)
    with pytest.raises(TensorMatchError, match=rf"(?s)match failed for {last}, Tensor.* expected .* but got "):
        getattr(ops["prologues"], name)(**sample)
    for key, value in sample.items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gemma3"])
def test_a_cache_of_another_dtype_is_refused(name, device):
    """In FP8 it would need a scale, without which large values saturate."""
    for cache in ("kv_cache",) if name == "deepseek_v3" else ("k_cache", "v_cache"):
        *_, sample = samples(name, device)
        sample[cache] = sample[cache].to(torch.float8_e4m3fn)
        before = copy.deepcopy(sample)
        text = rf"(?s)match failed for {cache}, .*expected float32, the dtype of \w+, but got float8_e4m3fn"
        with pytest.raises(TensorMatchError, match=text):
            getattr(ops["prologues"], name)(**sample)
        for key, value in sample.items():
            assert torch.equal(value.view(torch.uint8), before[key].view(torch.uint8)), key


def test_a_slot_out_of_range_is_refused_on_the_cpu():
    for name in ("qwen3", "minimax_m2"):
        *_, sample = samples(name, torch.device("cpu"))
        sample["slots"][0] = 8
        before = sample["q"].clone()
        with pytest.raises(TensorMatchError, match="element 0 is 8, and k_cache has 8 rows"):
            getattr(ops["prologues"], name)(**sample)
        assert torch.equal(sample["q"], before), "also where a launch comes before"
