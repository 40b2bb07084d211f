"""docs/headers.md: its examples are those that are compiled here, they compute what it says, no header is left out."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch
from headers import toolbox

DOCS = Path(__file__).resolve().parents[2] / "docs" / "headers.md"


def examples() -> dict[str, str]:
    """The examples in the sources, by name, without their indentation."""
    found = {}
    for source in sorted(path for path in toolbox.CSRC.rglob("*") if path.is_file()):
        text = source.read_text()
        for name, body in re.findall(r"^ *// example: (\w+)\n(.*?)^ *// end$", text, re.MULTILINE | re.DOTALL):
            found[name] = textwrap.dedent(body)
    return found


@pytest.mark.skipif(not DOCS.is_file(), reason="not a checkout")
def test_examples_are_the_compiled_ones() -> None:
    shown = re.findall(r"^```cpp\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    compiled = examples()
    assert sorted(shown) == sorted(compiled.values())


@pytest.mark.skipif(not DOCS.is_file(), reason="not a checkout")
def test_every_header_has_its_place() -> None:
    text = DOCS.read_text()
    names = [header.removeprefix("sgl_kernel/") for header in toolbox.HEADERS]
    missing = [name for name in names if f"`{name}`" not in text]
    assert missing == []


@pytest.fixture(scope="module")
def host_examples(build):
    return build("examples.cpp")


def test_host_examples(host_examples) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert host_examples.utils() == 942
    assert host_examples.last_row(x) == 8
    assert host_examples.match(x, torch.zeros(4, dtype=torch.int32)) == 4
    assert torch.from_dlpack(host_examples.iota(3, x)).tolist() == [0, 1, 2]
    assert host_examples.total(x, None) == 66
    assert host_examples.total(x, 2 * torch.ones(12)) == 132
    assert host_examples.shift(4) == 7
    assert host_examples.twice(1.5) == 3
    assert host_examples.width(x[0], x, 0.5, True) == 4.5
    x = torch.full((1 << 16,), 2.0)
    host_examples.reciprocals(x)
    assert (x == 0.5).all()


def test_host_examples_that_fail(host_examples) -> None:
    with pytest.raises(ValueError, match=r"^k must be positive, got 0$"):
        host_examples.set_top_k(0)
    with pytest.raises(ValueError, match=r"^element 40000 is zero$"):
        host_examples.reciprocals((torch.arange(1 << 16) - 40000).float())
    host_examples.check_scale(1.0)
    with pytest.raises(RuntimeError, match=r"examples.cpp:\d+: scale 3 is not in \[0.5, 2\]$"):
        host_examples.check_scale(3.0)
    for arguments, text in (
        ((torch.zeros(1),), "expected 2 arguments, got 1"),
        ((1, None), "expected tensor, got int"),
    ):
        with pytest.raises(TypeError, match=text):
            host_examples.total(*arguments)


@pytest.fixture(scope="module")
def device_examples(build):
    return build("examples.cu")


@pytest.mark.gpu
def test_device_examples(device_examples) -> None:
    out = torch.zeros(128, device="cuda")
    device_examples.run_examples(out, torch.arange(256, device="cuda").half())
    assert out[:5].tolist() == [3.0, 1.0, 448.0, 0.5, 5.0]
    lane = torch.arange(32)
    assert torch.equal(out[32:64].cpu(), (8.0 * lane + 7))
    tiles = 2.0 * lane + torch.where(lane < 8, 2.0 * (lane + 32), 0.0)
    assert torch.equal(out[64:96].cpu(), tiles)
    reductions = 496.0 + (lane // 8 * 8 + 7) + torch.where(lane < 3, 3.0, 0.0)
    assert torch.equal(out[96:].cpu(), reductions)


@pytest.mark.gpu
def test_other_device_examples(device_examples) -> None:
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    if torch.cuda.get_device_capability() >= (9, 0):
        device_examples.launch_twice(out, x)
        assert torch.equal(out, 2 * x)
    device_examples.run_cta(out)
    assert out[0].item() == 256 + 255
    out.fill_(-1e9)
    device_examples.run_atomic(out, x)
    assert out[0] == x.max()
    copied = torch.zeros(32, 4, dtype=torch.int32, device="cuda")
    source = torch.arange(128, dtype=torch.int32, device="cuda").view(32, 4)
    device_examples.run_ptx(copied, source)
    assert torch.equal(copied, source.flip(0))
    rows, weight = torch.randn(7, 4096, device="cuda").bfloat16(), torch.randn(4096, device="cuda").bfloat16()
    normed = torch.empty_like(rows)
    device_examples.launch_rmsnorm_4096(normed, rows, weight, 1e-6)
    wanted = torch.nn.functional.rms_norm(rows.double(), (4096,), weight.double(), 1e-6)
    assert (normed.double() - wanted).norm() / wanted.norm() < 2.4e-3
