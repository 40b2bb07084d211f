"""Each prologue against PyTorch in float64, and what wrong arguments get."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from sgljit_core import ops
from sgljit_core.errors import TensorMatchError

from sgljit_prologues import reference
from sgljit_prologues.plugin import FAMILY

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # skipped where there is no GPU
NAMES = ("qwen3", "qwen3_next", "gpt_oss", "deepseek_v3", "gemma3", "minimax_m2")
WITH_CACHE = tuple(name for name in NAMES if name != "gemma3")
WRITTEN = {"q", "q_and_gate", "q_latent", "x", "residual", "k_cache", "v_cache", "kv_cache"}
CLOSE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(1)


def samples(name, device):
    return getattr(reference, f"samples_of_{name}")(device)


def expect_agreement(name, sample):
    ours, theirs = copy.deepcopy(sample), copy.deepcopy(sample)
    getattr(ops["prologues"], name)(**ours)
    getattr(reference, name)(**theirs)
    for key, wanted in theirs.items():
        close = CLOSE.get(wanted.dtype, 0)
        torch.testing.assert_close(ours[key].double(), wanted.double(), rtol=2 * close, atol=2 * close)


def expect_untouched(sample, before):
    for key, value in sample.items():
        assert torch.equal(value.view(torch.uint8), before[key].view(torch.uint8)), key


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_torch(name, device):
    for sample in samples(name, device):
        expect_agreement(name, sample)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_next"])
def test_rounded_first_it_has_the_bits_of_a_norm_and_a_rotation(name, device):
    pytest.importorskip("sgljit_norm")
    norm = ops["norm"].gemma_fused_inplace_qknorm if name == "qwen3_next" else ops["norm"].fused_inplace_qknorm
    for sample in samples(name, device):
        once, twice, apart = (copy.deepcopy(sample) for _ in range(3))
        getattr(ops["prologues"], name)(**once)
        getattr(ops["prologues"], name)(**twice, round_first=True)
        both = apart.pop("q_and_gate", None)
        q = apart.pop("q") if both is None else both.chunk(2, -1)[0]
        norm(q, apart["k"], apart.pop("q_weight"), apart.pop("k_weight"))
        ops["prologues"].gpt_oss(q, **apart)
        found = [
            (x["q"] if both is None else x["q_and_gate"].chunk(2, -1)[0], x["k_cache"], x["v_cache"])
            for x in (once, twice)
        ]
        for one, wanted in zip(found[1], (q, apart["k_cache"], apart["v_cache"]), strict=True):
            if device.type == "cuda" and wanted.dtype == torch.float32:  # nothing is rounded, and sums have their order
                torch.testing.assert_close(one, wanted, rtol=2**-20, atol=2**-20)
            else:
                assert torch.equal(one, wanted)
        if q.dtype != torch.float32 and len(q):
            assert not torch.equal(found[0][0], found[1][0])


def test_angles_of_yarn_are_longer_than_1(device):
    table = pytest.importorskip("sgljit_rope").yarn_table
    for sample in samples("gpt_oss", device):
        sample["cos_sin"] = table(16, 64, theta=150000.0, factor=32.0, original_positions=4096, device=device)
        assert sample["cos_sin"].abs().max() > 1.3
        expect_agreement("gpt_oss", sample)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_of_the_projection_is_written(name, device):
    *_, sample = samples(name, device)
    before = copy.deepcopy(sample)
    getattr(ops["prologues"], name)(**sample)
    written = WRITTEN | ({"k"} if name == "minimax_m2" else set())
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
    expect_untouched(sample, before)


@pytest.mark.parametrize("name", WITH_CACHE)
def test_a_cache_of_another_dtype_is_refused(name, device):
    """In FP8 it would need a scale, without which large values saturate."""
    for cache in ("kv_cache",) if name == "deepseek_v3" else ("k_cache", "v_cache"):
        *_, sample = samples(name, device)
        sample[cache] = sample[cache].to(torch.float8_e4m3fn)
        before = copy.deepcopy(sample)
        text = rf"(?s)match failed for {cache}, .*expected float32, the dtype of \w+, but got float8_e4m3fn"
        with pytest.raises(TensorMatchError, match=text):
            getattr(ops["prologues"], name)(**sample)
        expect_untouched(sample, before)


@pytest.mark.parametrize("name", WITH_CACHE)
def test_a_position_or_slot_out_of_range_is_refused_on_the_cpu(name):
    for index, wrong, rows in (("slots", 8, r"\w+_cache has 8"), ("positions", 16, "cos_sin has 16")):
        *_, sample = samples(name, torch.device("cpu"))
        sample[index][0] = wrong
        before = copy.deepcopy(sample)
        with pytest.raises(TensorMatchError, match=f"for {index}, (?s:.*)element 0 is {wrong}, and {rows} rows"):
            getattr(ops["prologues"], name)(**sample)
        expect_untouched(sample, before)  # also where a launch comes before


@pytest.mark.parametrize("name", WITH_CACHE)
@pytest.mark.parametrize("index", ["positions", "slots"])
def test_an_index_inside_memory_that_is_written_is_refused(name, index, device):
    """Also in what the first of two launches writes, and the second reads."""
    *_, sample = samples(name, device)
    written = WRITTEN & sample.keys() | ({"k"} if name == "minimax_m2" else set())
    assert len(written) >= 2
    for key in written:
        memory = sample[key].clone()
        inside = memory.view(torch.int64).flatten()[: len(sample[index])]
        inside.copy_(sample[index])
        before = memory.clone()
        with pytest.raises(ValueError, match=rf"^{key} (shares|must not share) memory with {index}"):
            getattr(ops["prologues"], name)(**{**sample, key: memory, index: inside})
        expect_untouched({key: memory}, {key: before})


def test_weights_inside_a_cache_are_refused_where_a_launch_comes_before(device):
    for cache in ("k_cache", "v_cache"):
        *_, sample = samples("minimax_m2", device)
        sample["q_weight"] = sample[cache].view(-1)[: len(sample["q_weight"])]
        before = copy.deepcopy(sample)
        with pytest.raises(ValueError, match=f"^{cache} must not share memory with q_weight"):
            ops["prologues"].minimax_m2(**sample)
        expect_untouched(sample, before)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_in_fp8_is_refused(name, device):
    """Results would saturate."""
    *_, sample = samples(name, device)
    floats = {key: x.to(torch.float8_e4m3fn) for key, x in sample.items() if x.is_floating_point()}
    for changed in (floats, *({key: x} for key, x in floats.items() if "cache" not in key)):
        text = r"(?s)match failed for .*expected one of \[float32, float16, bfloat16\] but got float8_e4m3fn"
        with pytest.raises(TensorMatchError, match=text):
            getattr(ops["prologues"], name)(**{**sample, **changed})


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt_oss"])
def test_an_eps_below_0_is_refused_before_anything_is_written(name, device):
    *_, sample = samples(name, device)
    before = copy.deepcopy(sample)
    for eps in (-1e-6, float("nan")):
        with pytest.raises(ValueError, match=r"^eps must be at least 0, got "):
            getattr(ops["prologues"], name)(**sample, eps=eps)
    expect_untouched(sample, before)


def test_latents_of_another_size_than_their_weights_are_refused(device):
    for key in ("kv_latent", "kv_cache"):
        *_, sample = samples("deepseek_v3", device)
        sample[key] = sample[key].new_zeros(len(sample[key]), 577)
        said = rf"for {key}, (?s:.*)for a row: expected 576, those of kv_weight and cos_sin, but got 577"
        with pytest.raises(TensorMatchError, match=said):
            ops["prologues"].deepseek_v3(**sample)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_next", "gpt_oss", "minimax_m2"])
def test_heads_of_odd_sizes_at_odd_addresses(name, device):
    """Of seven elements four turn; k and v begin in the midst of a word, and so does each token."""
    across, gated = name == "minimax_m2", name == "qwen3_next"
    for sample in reference.samples(device, 3, 1, 7, 4, across=across, gated=gated):
        if name == "gpt_oss":
            del sample["q_weight"], sample["k_weight"]
        expect_agreement(name, sample)


def test_latents_of_odd_sizes_at_odd_addresses(device):
    """The latent of k and v, and each token, begin inside of a word."""
    for sample in reference.latents(device, 7, 5, 6):
        expect_agreement("deepseek_v3", sample)


def test_hidden_states_of_odd_sizes_at_odd_addresses(device):
    for dtype in reference.DTYPES:
        x, residual, after, before = (torch.randn(n, 9, device=device).to(dtype)[:, 1:8] for n in (3, 3, 1, 1))
        expect_agreement("gemma3", {"x": x, "residual": residual, "after": after[0], "before": before[0]})


@pytest.mark.parametrize("name", NAMES)
def test_what_is_built_ahead_is_what_a_call_of_these_sizes_asks_for(name):
    """Calls fit the op, and have the sizes of its samples."""
    op = FAMILY.declared()[name]
    found = [{key: spec.shape[1:] for key, spec in call.items()} for call in op.calls(None)]
    *_, sample = samples(name, torch.device("cpu"))
    wanted = {key: tuple(x.shape[1:]) for key, x in sample.items()}
    assert wanted in found
    for call in op.calls(None):
        assert {key: len(spec.shape) for key, spec in call.items()} == {key: x.dim() for key, x in sample.items()}


def test_a_model_gets_the_calls_of_its_own_prologue():
    model = {"dtype": "float16", "query_heads": 4, "kv_heads": 2, "head_dim": 64, "rope_dim": 32, "hidden_size": 512}
    for kind, name in (
        ("qwen3_moe", "qwen3"),
        ("gpt_oss", "gpt_oss"),
        ("gemma3_text", "gemma3"),
        ("kimi", "deepseek_v3"),
    ):
        latent_sizes = (96, 64) if kind == "kimi" else ()
        described = SimpleNamespace(model_type=kind, latent_sizes=latent_sizes, **model)
        found = {name: list(op.calls(described)) for name, op in FAMILY.declared().items()}
        assert [name for name, calls in found.items() if calls] == [name]
        (call,) = found[name]
        widths = {"x": 512, "residual": 512, "kv_cache": 96, "q_latent": 96, "q": 64, "k_cache": 64, "cos_sin": 32}
        assert {key: call[key].shape[-1] for key in widths if key in call}.items() <= widths.items()
        assert {spec.dtype for key, spec in call.items() if key not in ("cos_sin", "positions", "slots")} == {"float16"}
