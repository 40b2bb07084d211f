"""The ops that an adapter asks about before it calls them: what is built when, and counted."""

from __future__ import annotations

import itertools

import pytest
import torch

from sgljit_core import errors
from sgljit_engines import Adapter, Kernels, Use, report
from sgljit_engines.kernels import try_rows


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr("sgljit_engines.adapter.USES", uses := {})
    monkeypatch.setattr("sgljit_engines.uses.USES", uses)
    return Kernels(Adapter("sgljit-some", {"pytest": ">=8"}, {"activation": {"silu_and_mul": "SiluAndMul"}}))


def fits(kernel):
    kernel(torch.zeros(1, 32))


def refuse(_kernel):
    raise errors.TensorMatchError("rank 5")


def test_a_kind_is_tried_once_and_its_calls_are_counted(kernels):
    trials = []
    kinds = (("float32", "cpu"), ("float32", "cpu"), ("float64", "cpu"))
    answers = [
        kernels.works(
            "silu_and_mul",
            kind,
            lambda op, kind=kind: trials.append(kind) or (refuse if kind[0] == "float64" else fits)(op),
        )
        for kind in kinds
    ]
    assert answers == [True, True, False]
    assert len(trials) == 2
    for number in (3, 2):
        assert kernels.works("silu_and_mul", ("float32", "cpu"), fits)
        assert all(kernels.ran("silu_and_mul", torch.zeros(2, 32)) for _ in range(number))
    first, second = report()
    assert (first.kind, first.calls, first.why) == ("float32 cpu", 5, "")
    why = "the op does not take it"
    assert second == Use("sgljit-some", "SiluAndMul", "float64 cpu", "silu_and_mul", why=why, own_calls=1)
    assert str(first).startswith("sgljit-some: SiluAndMul (float32 cpu) runs on silu_and_mul (5 calls)")
    assert kernels.worked("silu_and_mul", ("float32", "cpu"))
    assert not kernels.worked("silu_and_mul", ("float64", "cpu"))
    assert not kernels.worked("silu_and_mul", ("never asked",))
    assert kernels.working(["silu_and_mul"]) == [("silu_and_mul", "float32", "cpu")]


FIRST = """
import torch
from sgljit_engines import Adapter, Kernels, report
kernels = Kernels(Adapter("sgljit-some", {"pytest": ">=8"}, {"activation": {"silu_and_mul": "SiluAndMul"}}))
assert kernels.works("silu_and_mul", ("float32", "cpu"), lambda op: op(torch.zeros(1, 32)))
print(report())
"""


def test_a_report_names_the_variant_that_a_kind_has_loaded(children, private_cache):
    """In a process that had loaded none: which of several that are there runs is not known."""
    *_, line = children.script(FIRST, SGLJIT_CACHE_DIR=str(private_cache)).stdout.splitlines()
    name, _, source = line.strip().rpartition(", ")
    assert name.startswith("activation.host.cpu.row_program<activation::Activated<activation::SiluAndMul>, ")
    assert source in ("compiled here", "from disk")


def test_an_op_that_is_lost_works_no_more(kernels):
    assert kernels.works("silu_and_mul", (), fits)

    def fail():
        raise OSError("no space")

    kernels.adapter.attempt("silu_and_mul", fail)
    assert not kernels.ran("silu_and_mul", torch.zeros(2, 32))
    assert not kernels.works("silu_and_mul", (), fits)
    assert not kernels.worked("silu_and_mul", ())
    assert kernels.working(["silu_and_mul"]) == []
    assert report()[0].calls == 0


def test_a_call_that_fails_is_left_to_the_engine_and_a_build_that_fails_ends_the_op(kernels, monkeypatch):
    errors_of_calls = [errors.TensorMatchError("rank 5"), errors.CaptureError("norm", "no"), OSError("no space")]

    def fails(*_args):
        raise errors_of_calls[0]

    assert kernels.works("silu_and_mul", (), fits)
    kernels.found["silu_and_mul"] = fails
    for number in (1, 2):
        assert not kernels.ran("silu_and_mul", torch.zeros(2, 32))
        assert (report()[0].own_calls, kernels.adapter.own_runs["silu_and_mul"]) == (number, number)
        assert kernels.worked("silu_and_mul", ()), "only this call was left"
        errors_of_calls.pop(0)
    assert not kernels.ran("silu_and_mul", torch.zeros(2, 32))
    assert not kernels.worked("silu_and_mul", ())
    assert [(use.calls, use.own_calls, use.why) for use in report()] == [(0, 3, "OSError: no space")]
    kernels.adapter.lost.clear()
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(OSError, match="no space"):
        kernels.ran("silu_and_mul", torch.zeros(2, 32))
    errors_of_calls[0] = IndexError("token 7 of 4")  # of the engine's data: it passes
    monkeypatch.delenv("SGLJIT_ENGINES")
    with pytest.raises(IndexError, match="token 7 of 4"):
        kernels.ran("silu_and_mul", torch.zeros(2, 32))


@pytest.mark.parametrize("asks", [True, False], ids=["asked before each call", "asked before the first"])
def test_a_graph_is_without_an_op_that_was_lost_before_or_after_it_was_compiled(kernels, asks):
    def layer(x):
        out = x.new_empty(2, 16)
        if (not asks or kernels.works("silu_and_mul", (), fits)) and kernels.ran("silu_and_mul", x, out):
            return out
        return x[:, :16] * 100

    assert kernels.works("silu_and_mul", (), fits)
    gate, up = (x := torch.ones(2, 32)).chunk(2, -1)
    before = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(before(x), torch.nn.functional.silu(gate) * up)
    kernels.adapter.lose("silu_and_mul", OSError("its results differ"))
    for graph in (before, torch.compile(layer, backend="eager", fullgraph=True)):
        torch.testing.assert_close(graph(x), gate * 100)


def test_a_graph_counts_no_call_that_is_left(kernels):
    def layer(x):
        kernels.left("silu_and_mul")
        return x + 1

    graphs = []
    compiled = torch.compile(layer, backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(2))
    assert len(graphs) == 1
    assert report() == []
    layer(torch.ones(2))
    assert [use.own_calls for use in report()] == [1]


@pytest.fixture(autouse=True)
def no_capture(monkeypatch):
    """A torch without CUDA cannot be asked."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def tried(size: int, device: str, fail=lambda rows: None) -> list[int]:
    """For how many rows an op is called."""
    numbers = []
    try_rows(lambda rows: numbers.append(rows) or fail(rows), size, device)
    return numbers


def test_an_op_is_tried_with_few_rows_and_many_on_a_gpu_alone():
    assert tried(4096, "cpu") == [1]
    assert tried(1 << 30, "cuda") == [1]
    numbers = tried(4096, "cuda")
    assert numbers[:6] == [1, 2, 3, 4, 5, 7]
    assert all(after <= before * 1.25 + 1 for before, after in itertools.pairwise(numbers))
    assert 0.8 * (1 << 24) < 4096 * numbers[-1] <= 1 << 24


def test_a_cuda_graph_gets_one_call_of_a_trial(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert tried(4096, "cuda") == [1]


def test_kernels_that_cannot_be_tried_are_left_to_their_first_calls():
    def fail_from(most, error):
        def fail(rows):
            if rows > most:
                raise error

        return fail

    forbidden = errors.CompileForbiddenError("op", forbidden_by="a test", why="why", remedy="remedy")
    assert max(tried(64, "cuda", fail_from(1000, torch.OutOfMemoryError()))) < 1300
    assert tried(64, "cuda", fail_from(1 << 14, forbidden)) == tried(64, "cuda")
    with pytest.raises(errors.CompileForbiddenError):  # sgljit prepare builds them
        tried(64, "cuda", fail_from(1 << 13, forbidden))
    with pytest.raises(OSError, match="no space"):
        tried(64, "cuda", fail_from(1 << 14, OSError("no space")))
