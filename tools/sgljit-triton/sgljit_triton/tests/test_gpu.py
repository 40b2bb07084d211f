"""On a GPU: results, streams, graphs, devices' contexts, and a process without Triton."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

BEGIN = """
    import sys, torch, sgljit_core
    from tri_family.ops import ADD, FILL, add
    def check(n, dtype=torch.float32, offset=0, alpha=2.0):
        x, y, out = (torch.randn(n + offset, device="cuda").to(dtype)[offset:] for _ in range(3))
        add(x, y, out, alpha=alpha)
        close = 1e-6 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(out, (x.double() + alpha * y.double()).to(dtype), rtol=close, atol=close)
        return out
"""


@pytest.fixture
def on_gpu(run, shared_cache):
    return lambda code, **options: run(BEGIN + code, **{"SGLJIT_CACHE_DIR": str(shared_cache), **options})


def test_results_of_every_specialisation(on_gpu):
    pytest.importorskip("triton")
    on_gpu("""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for n in (1, 2, 16, 255, 4096, 1_000_001):
            for offset in (0, 1, 8):
                check(n, dtype, offset)
    out = torch.empty(1000, device="cuda")
    for n in (1, 16, 1000):
        out.fill_(-1)
        FILL.bind(WIDE=64)((16, 1, 1), out, n, True, 3.0)
        assert (out[:n] == 3).all() and (out[n:] == -1).all()
    """)


def test_it_runs_on_the_current_stream_and_in_a_graph(on_gpu):
    pytest.importorskip("triton")
    on_gpu("""
    x, y, out = (torch.randn(4096, device="cuda") for _ in range(3))
    add(x, y, out)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(5)
        add(x, None, out)
    stream.synchronize()
    assert (out == 5).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(x, y, out)
    x.fill_(7)
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, x + y)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            add(x[1:17], None, out[1:17])
    except sgljit_core.errors.CaptureError as error:
        assert "tri_family.add<" in str(error), error
    else:
        raise AssertionError("a kernel was compiled while a graph was captured")
    """)


def test_a_process_without_triton_launches_what_another_compiled(on_gpu, tmp_path):
    pytest.importorskip("triton")
    cache = {"SGLJIT_CACHE_DIR": str(tmp_path / "cache")}  # that of other tests may hold every variant
    on_gpu("    check(4096)", **cache)
    on_gpu(
        """
    sys.modules["triton"] = None
    check(4096)
    assert sgljit_core.stats().builds == {}
    try:
        check(4095, torch.float16)
    except sgljit_core.errors.ToolchainNotFoundError:
        pass
    else:
        raise AssertionError
    """,
        **cache,
    )


def test_the_kit_passes_on_the_gpu(run):
    pytest.importorskip("triton")
    run("""
    from sgljit_tools.testing import check_op
    check_op("tri_family.add", "cuda")
    """)
