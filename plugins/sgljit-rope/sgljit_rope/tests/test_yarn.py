"""YaRN's table of angles."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from sgljit_core import ops
from sgljit_rope import yarn_table

GPT_OSS = {"theta": 150_000.0, "factor": 32.0, "original_positions": 4096, "truncate": False}
QWEN3 = {"theta": 1_000_000.0, "factor": 4.0, "original_positions": 32768}


def frequencies(table: torch.Tensor, amplitude: float) -> torch.Tensor:
    """From the row of position 1."""
    cos, sin = (table[1].double() / amplitude).chunk(2)
    return torch.atan2(sin, cos)


def test_fast_pairs_are_kept_and_slow_ones_slowed():
    table = yarn_table(4, 64, **GPT_OSS)
    amplitude = 0.1 * math.log(32) + 1
    assert table.shape == (4, 64)
    assert table.dtype == torch.float32
    assert table[0].tolist() == pytest.approx([amplitude] * 32 + [0.0] * 32)
    found = frequencies(table, amplitude)
    plain = 150_000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    kept, slowed = plain * 4096 / (2 * math.pi) > 32, plain * 4096 / (2 * math.pi) < 1
    assert 0 < kept.sum() < 32
    assert 0 < slowed.sum() < 32
    torch.testing.assert_close(found[kept], plain[kept], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[slowed], plain[slowed] / 32, rtol=1e-3, atol=1e-8)
    assert (found[:-1] > found[1:]).all()


def test_without_a_factor_it_is_the_plain_table():
    table = yarn_table(50, 8, theta=10000.0, factor=1.0, original_positions=4096)
    angles = torch.arange(50.0)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("attention_factor", [None, 1.25])
@pytest.mark.parametrize(("rope_dim", "model"), [(64, GPT_OSS), (128, QWEN3), (64, QWEN3), (2, QWEN3)])
def test_it_is_that_of_transformers(rope_dim, model, truncate, attention_factor):
    """Which computes in float32."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    rope = {"rope_type": "yarn", "rope_theta": model["theta"], "factor": model["factor"], "truncate": truncate}
    rope |= {"original_max_position_embeddings": model["original_positions"], "attention_factor": attention_factor}
    config = SimpleNamespace(
        head_dim=rope_dim,
        hidden_size=rope_dim,
        num_attention_heads=1,
        rope_parameters=rope,
        max_position_embeddings=int(model["original_positions"] * model["factor"]),
        standardize_rope_params=lambda: None,
    )
    wanted, amplitude = utils.ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    table = yarn_table(3, rope_dim, **model | {"truncate": truncate}, attention_factor=attention_factor)
    torch.testing.assert_close(frequencies(table, amplitude).float(), wanted, rtol=1e-4, atol=1e-9)
    assert table[0, : rope_dim // 2].tolist() == pytest.approx([amplitude] * (rope_dim // 2))


@pytest.mark.parametrize(("mscale", "mscale_all_dim"), [(1.0, 1.0), (0.707, 1.0), (1.0, 0.5)])
def test_it_is_that_of_transformers_with_the_scales_of_deepseek(mscale, mscale_all_dim):
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    model = {"theta": 10_000.0, "factor": 40.0, "original_positions": 4096}
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 40.0, "original_max_position_embeddings": 4096}
    config = SimpleNamespace(
        head_dim=64,
        hidden_size=64,
        num_attention_heads=1,
        rope_parameters=rope | {"mscale": mscale, "mscale_all_dim": mscale_all_dim},
        max_position_embeddings=163840,
        standardize_rope_params=lambda: None,
    )
    wanted, amplitude = utils.ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    table = yarn_table(3, 64, **model, mscale=mscale, mscale_all_dim=mscale_all_dim)
    torch.testing.assert_close(frequencies(table, amplitude).float(), wanted, rtol=1e-4, atol=1e-9)
    assert table[0, :32].tolist() == pytest.approx([amplitude] * 32)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_ops_take_it(device):
    table = yarn_table(50, 16, **QWEN3, device=device)
    q, k = (torch.ones(1, heads, 16, device=device) for heads in (2, 1))
    ops["rope"].apply_rope_inplace(q, k, table, torch.tensor([0], device=device))
    assert q.flatten().tolist() == pytest.approx([0.1 * math.log(4) + 1] * 32)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rope_dim": 7}, r"expected an even rope_dim of at least 2, got 7"),
        ({"rope_dim": 0}, r"expected an even rope_dim of at least 2, got 0"),
        ({"factor": 0.5}, r"expected a factor of at least 1, got 0\.5"),
        ({"theta": 1.0}, r"expected a theta above 1, got 1\.0"),
        ({"original_positions": 0}, r"expected original_positions above 0, got 0"),
        ({"beta_fast": 0}, r"expected beta_fast above 0, got 0"),
        ({"beta_slow": -1}, r"expected beta_slow above 0, got -1"),
        ({"mscale": 1.0}, r"expected both of mscale and mscale_all_dim, or none"),
    ],
)
def test_what_makes_no_table_is_refused(changed, text):
    with pytest.raises(ValueError, match=rf"^yarn_table\(\): {text}$"):
        yarn_table(**{"num_positions": 4, "rope_dim": 16} | QWEN3 | changed)
