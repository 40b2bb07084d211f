"""Where nobody measured an op as faster, the chain stays the compiler's, and the record and the report say so."""

from __future__ import annotations

import pytest
import torch

import sgljit_compile
import sgljit_engines
from sgljit_compile import measured
from sgljit_compile.measured import Shape, why_not

from .test_norms import block

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("fused_add_rmsnorm", Shape(1, 576, BF16)),
        ("fused_add_rmsnorm", Shape(16384, 16384, torch.float16)),
        ("fused_add_rmsnorm", Shape(16384, 12288, torch.float32)),
        ("apply_rope_inplace_with_kvcache", Shape(64, 64, BF16)),
        ("apply_rope_inplace_with_kvcache", Shape(16384, 256, BF16)),
        ("sort_by_expert", Shape(1, 256, torch.int64)),
    ],
)
def test_a_shape_of_the_table(op, shape):
    assert why_not(op, shape) == ""


@pytest.mark.parametrize(
    ("op", "shape", "text"),
    [
        ("fused_add_rmsnorm", Shape(8, 512, BF16), "fused_add_rmsnorm is faster for 8 x 512 in bfloat16"),
        ("fused_add_rmsnorm", Shape(8, 16385, BF16), "8 x 16385"),
        ("fused_add_rmsnorm", Shape(0, 4096, BF16), "0 x 4096"),
        ("fused_add_rmsnorm", Shape(16385, 4096, BF16), "16385 x 4096"),
        ("fused_add_rmsnorm", Shape(8, 16384, torch.float32), "in float32"),
        ("fused_qk_norm_rope", Shape(8, 64, BF16), "8 x 64"),
        ("apply_rope_inplace_with_kvcache", Shape(65, 64, BF16), "65 x 64"),
        ("apply_rope_inplace", Shape(8, 128, torch.float32), "in float32"),
        ("topk_softmax", Shape(8, 512, BF16), "8 x 512"),
        ("rmsnorm", Shape(8, 4096, BF16), "rmsnorm"),
    ],
)
def test_another_shape(op, shape, text):
    reason = why_not(op, shape)
    assert reason.startswith(f"nobody measured that {op} is faster for ")
    assert text in reason


def test_a_number_of_rows_that_is_not_known_is_in_every_range(monkeypatch):
    monkeypatch.setattr(measured, "is_known", lambda rows: rows != 7)
    assert why_not("fused_add_rmsnorm", Shape(7, 4096, BF16)) == ""
    assert why_not("fused_add_rmsnorm", Shape(7, 64, BF16)).endswith("for rows of 64 in bfloat16")


@pytest.fixture
def compiled(monkeypatch):
    """What the backend did with an addition and a norm of a size, on a device that is taken for a measured one."""
    monkeypatch.setattr(measured, "is_measured", lambda device: True)

    def run(size, **options):
        torch.compiler.reset()
        function = block(torch.nn.RMSNorm(size, eps=1e-6))
        given = torch.randn(4, 6, size), torch.randn(4, 6, size), *(torch.randn(2, size, size) / size**0.5)
        with torch.no_grad():
            call = torch.compile(function, backend="sgljit", options={"force_disable_caches": True, **options})
            torch.testing.assert_close(call(*given), function(*given), rtol=1e-4, atol=1e-5)
        return sgljit_compile.explain()[-1]

    return run


def test_a_chain_of_another_shape_is_the_compilers(compiled):
    record = compiled(96)
    ((part, reason),) = record.left
    assert not record.chains
    assert part == "add + norm"
    assert reason == "nobody measured that fused_add_rmsnorm is faster for 24 x 96 in float32"
    assert f"cpu: nothing on ops of ours; 1 x add + norm left: {reason}" in str(record)
    text = " ".join(str(sgljit_engines.report()).split())
    assert f"the engine's own code, not fused_add_rmsnorm: {reason}" in text


def test_a_chain_of_the_table_is_put_in(compiled):
    assert compiled(1024).chains == {"add + norm": 1}


def test_an_op_that_is_named_is_put_in_for_any_shape(compiled):
    assert compiled(96, chains="norm").chains == {"add + norm": 1}


def test_where_nothing_was_measured_nothing_is_looked_at():
    torch.compiler.reset()
    call = torch.compile(lambda x: x + 1, backend="sgljit", options={"force_disable_caches": True})
    assert torch.equal(call(torch.zeros(2)), torch.ones(2))
    assert "measured as faster on compute capability 9.0 alone" in sgljit_compile.explain()[-1].note


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize(("size", "dtype"), [(1024, torch.bfloat16), (1024, torch.float32), (96, torch.bfloat16)])
def test_by_default_a_gpu_has_the_ops_of_the_table(size, dtype):
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    torch.compiler.reset()
    function = block(torch.nn.RMSNorm(size, eps=1e-6, device="cuda", dtype=dtype))
    rows = [torch.randn(4, 6, size, device="cuda", dtype=dtype) for _ in range(2)]
    matrices = [torch.eye(size, device="cuda", dtype=dtype) for _ in range(2)]
    with torch.no_grad():
        call = torch.compile(function, backend="sgljit", options={"force_disable_caches": True})
        torch.testing.assert_close(call(*rows, *matrices), function(*rows, *matrices), rtol=2e-2, atol=2e-2)
    record = sgljit_compile.explain()[-1]
    if torch.cuda.get_device_capability() != measured.CHIP:
        assert "measured as faster" in record.note
    else:
        assert record.chains == ({"add + norm": 1} if size == 1024 else {})
