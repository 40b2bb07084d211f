"""Positions on several axes."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_rope import mrope_table, multimodal


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def table(pairs: int, device: torch.device) -> torch.Tensor:
    """Of 50 positions."""
    angles = torch.arange(50.0, device=device)[:, None] * 0.3 ** torch.arange(pairs, device=device)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def axis_of(pair: int, sections: tuple[int, ...], is_interleaved: bool) -> int:
    """Step by step, unlike the function."""
    if is_interleaved:
        return 1 if pair % 3 == 1 and pair < 3 * sections[1] else 2 if pair % 3 == 2 and pair < 3 * sections[2] else 0
    return 0 if pair < sections[0] else 1 if pair < sections[0] + sections[1] else 2


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("sections", [(2, 3, 3), (24, 20, 20), (1, 0, 0)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_each_pair_turns_by_the_position_on_its_axis(device, sections, is_interleaved, dtype, tokens):
    torch.manual_seed(0)
    cache, pairs = table(sum(sections), device), sum(sections)
    positions = torch.randint(0, 50, (3, tokens), dtype=dtype, device=device)
    found = mrope_table(cache, positions, sections, is_interleaved=is_interleaved)
    assert found.shape == (tokens, 2 * pairs)
    assert found.is_contiguous()
    for token in range(tokens):
        for pair in range(pairs):
            row = cache[int(positions[axis_of(pair, sections, is_interleaved), token])]
            assert found[token, pair] == row[pair]
            assert found[token, pairs + pair] == row[pairs + pair]


def test_ops_take_the_table(device):
    """Alike positions on all axes are those of text."""
    torch.manual_seed(0)
    cache, positions = table(8, device), torch.tensor([3, 0, 49, 7], device=device)
    q, k = (torch.randn(4, heads, 16, device=device) for heads in (4, 2))
    wanted = [x.clone() for x in (q, k)]
    ops["rope"].apply_rope_inplace(*wanted, cache, positions)
    made = mrope_table(cache, positions.expand(3, -1), (2, 3, 3))
    ops["rope"].apply_rope_inplace(q, k, made, torch.arange(4, device=device))
    assert torch.equal(q, wanted[0])
    assert torch.equal(k, wanted[1])


def test_other_positions_turn_other_pairs(device):
    positions = torch.zeros(3, 1, dtype=torch.int64, device=device)
    positions[1] = 5
    cache = table(8, device)
    sines = mrope_table(cache, positions, (2, 3, 3))[0, 8:]  # at position 0 all are 0
    assert sines.nonzero().flatten().tolist() == [2, 3, 4]


def test_sections_that_do_not_fit_are_refused():
    cache, positions = table(8, torch.device("cpu")), torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(
        ValueError, match=r"the sections have 7 pairs, so expected cos_sin_cache with 14 columns, got \[50, 16\]"
    ):
        mrope_table(cache, positions, (2, 3, 2))
    with pytest.raises(
        ValueError, match=r"expected positions of 3 axes, one for each section, \[3, tokens\], got \[2, 2\]"
    ):
        mrope_table(cache, positions[:2], (2, 3, 3))
    with pytest.raises(ValueError, match=r"got \[3\]"):
        mrope_table(cache, positions[:, 0], (2, 3, 3))


def test_what_is_no_section_is_refused(device):
    cache, positions = table(8, device), torch.zeros(3, 2, dtype=torch.int64, device=device)
    for sections in ((-1, 6, 3), (2.0, 3.0, 3.0)):
        with pytest.raises(ValueError, match=r"expected sections of 0 pairs or more, whole numbers, got \(-?\d"):
            mrope_table(cache, positions, sections)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int16])
def test_positions_of_another_dtype_are_refused(dtype, device):
    positions = torch.ones(3, 2, dtype=dtype, device=device)
    text = rf"expected positions of one of \[int32, int64\], got {str(dtype)[6:]}$"
    with pytest.raises(TensorMatchError, match=text):
        mrope_table(table(8, device), positions, (2, 3, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.int64])
def test_tables_of_another_dtype_are_refused(dtype, device):
    positions = torch.ones(3, 2, dtype=torch.int64, device=device)
    text = rf"expected cos_sin_cache of one of \[float32, float16, bfloat16\], got {str(dtype)[6:]}$"
    with pytest.raises(TensorMatchError, match=text):
        mrope_table(table(8, device).to(dtype), positions, (2, 3, 3))


def test_positions_on_another_device_are_refused():
    positions = torch.ones(3, 2, dtype=torch.int64, device="meta")
    with pytest.raises(TensorMatchError, match="expected positions on cpu, the device of cos_sin_cache, got meta"):
        mrope_table(table(8, torch.device("cpu")), positions, (2, 3, 3))


@pytest.fixture
def says(monkeypatch):
    """Sets the variables, which are read once, for a test."""

    def says(**variables: str) -> None:
        for name in ("SGLJIT_CHECK_INDICES", "SGLJIT_CHECK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        multimodal._checks_indices.cache_clear()

    yield says
    multimodal._checks_indices.cache_clear()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("value", [-1, 50])
def test_a_position_out_of_range_is_refused_on_the_cpu(dtype, value, says):
    says()
    positions = torch.full((3, 4), 49, dtype=dtype)
    positions[1, 3] = value
    text = rf"index out of range: positions\[1, 3\] is {value}, and cos_sin_cache has 50 rows"
    with pytest.raises(TensorMatchError, match=text):
        mrope_table(table(8, torch.device("cpu")), positions, (2, 3, 3))


def one_beyond(device: torch.device) -> torch.Tensor:
    positions = torch.full((3, 4), 49, device=device)
    positions[1, 3] = -1
    return positions


@pytest.mark.parametrize("variable", ["SGLJIT_CHECK_INDICES", "SGLJIT_CHECK"])
def test_a_position_out_of_range_is_refused_where_a_variable_asks_for_it(variable, says, device):
    says(**{variable: "1"})
    with pytest.raises(TensorMatchError, match=r"positions\[1, 3\] is -1, and cos_sin_cache has 50 rows"):
        mrope_table(table(8, device), one_beyond(device), (2, 3, 3))
    mrope_table(table(8, device), one_beyond(device).abs(), (2, 3, 3))


def test_nobody_looks_for_it_where_a_variable_says_so(says, device):
    says(SGLJIT_CHECK_INDICES="0", SGLJIT_CHECK="1")
    assert mrope_table(table(8, device), one_beyond(device), (2, 3, 3)).shape == (4, 16)


@pytest.mark.gpu
def test_nobody_looks_for_it_on_a_gpu(says):
    says()
    device = torch.device("cuda", 0)
    assert mrope_table(table(8, device), one_beyond(device), (2, 3, 3)).shape == (4, 16)
