"""A Triton compile is forbidden, guarded, explained, counted, logged and told to hooks as one of C++ is."""

from __future__ import annotations

import json
import logging
import re

import pytest
import torch

import sgljit_core
from sgljit_core import errors
from sgljit_core.builds import policy, record

triton = pytest.importorskip("triton", reason="Triton compiles the kernels of these tests; pip install triton")

from .test_cache import build  # noqa: E402 - its module needs Triton, too

LABEL = "tri_family.add<*fp32:16, =None, *fp32:16, i32:16, fp32, BLOCK=64> for sm_90a"
OTHER = LABEL.replace("i32:16", "i32")


def events(caplog):
    return {one.sgljit["event"]: one for one in caplog.records if hasattr(one, "sgljit")}


@pytest.fixture
def thawed():
    yield
    policy._frozen.clear()


@pytest.mark.parametrize("frozen", [True, False], ids=["freeze", "variable"])
def test_what_is_frozen_compiles_nothing_and_names_the_kernel_and_the_command(ops, cache, thawed, monkeypatch, frozen):
    build(ops)
    if frozen:
        sgljit_core.freeze()
    else:
        monkeypatch.setenv("SGLJIT_JIT", "error")
    build(ops)  # a hit
    with pytest.raises(errors.CompileForbiddenError) as raised:
        build(ops, n=63)
    text = str(raised.value)
    assert OTHER in text
    assert "`sgljit cache build tri_family --cuda-arch sm_90a`" in text
    assert ('freeze("error") forbids' if frozen else "SGLJIT_JIT=error forbids") in text
    assert len(list(cache.rglob("kernel.cubin"))) == 1


def test_a_frozen_process_that_only_warns_compiles_and_says_so(ops, thawed, caplog):
    sgljit_core.freeze("warn")
    with caplog.at_level(logging.WARNING, logger="sgljit"):
        build(ops)
    assert any(LABEL in one.getMessage() for one in caplog.records)


def test_nothing_is_compiled_while_a_graph_is_captured(ops, monkeypatch):
    """The real thing is a test on a GPU; here the answer of torch is made up."""
    build(ops)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    build(ops)  # a hit
    with pytest.raises(errors.CaptureError) as raised:
        build(ops, n=63)
    assert f"{OTHER} " in str(raised.value)
    assert "while a CUDA stream is capturing a graph" in str(raised.value)


def test_why_says_what_sets_a_kernel_apart_and_compiles_nothing(ops, cache):
    first = sgljit_core.why(lambda: build(ops))
    assert LABEL in str(first)
    assert not cache.exists() or not list(cache.rglob("kernel.cubin"))
    build(ops)
    hit = sgljit_core.why(lambda: build(ops))
    assert str(hit).startswith(LABEL)  # and the plugin, where another test has installed it
    assert f": a hit, {cache}" in str(hit)
    miss = str(sgljit_core.why(lambda: build(ops, n=63)))
    assert OTHER in miss
    assert "i32:16" in miss.replace(OTHER, "")  # the difference to the nearest one
    assert len(list(cache.rglob("kernel.cubin"))) == 1


@pytest.mark.slow
def test_a_launch_may_be_asked_about_and_launches_nothing(run, driver):
    printed = run("""
        import sgljit_core
        from sgljit_triton.tests.launching import LAST, tensor
        from tri_family.ops import FILL
        def launch(wide):
            FILL.bind(WIDE=wide)((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
        launch(64)
        print(sgljit_core.why(lambda: launch(32)))
        assert LAST.count == 1
        launch(32)
        assert LAST.count == 2
    """, LD_PRELOAD=str(driver))  # fmt: skip
    assert printed.startswith("tri_family.fill<*fp32, i32, u1, fp32, WIDE=32> for sm_90a of tri_family 1.0: a miss")
    assert "WIDE=64> -> fill<" in printed.partition("a miss")[2]


def test_stats_count_it(ops):
    before = sgljit_core.stats()
    build(ops)
    made = sgljit_core.stats()
    build(ops)
    hit = sgljit_core.stats()
    assert made.misses - before.misses == 1
    assert made.builds["compiled"] - before.builds.get("compiled", 0) == 1
    assert made.seconds > before.seconds
    assert hit.hits["cache"] - made.hits.get("cache", 0) == 1
    changed = {name for name, load in made.loads.items() if hit.loads[name] != load}
    assert [(made.loads[name][1], hit.loads[name][1]) for name in changed] == [("made", "cache")]
    assert hit._replace(hits={}, loads={}) == made._replace(hits={}, loads={})


def test_a_failure_is_counted_and_logged(ops, package, caplog):
    file = package / "kernels" / "add.py"
    file.write_text(file.read_text().replace("mask=i < n)", "mask=i < m)"))
    before = sgljit_core.stats().builds.get("failed", 0)
    with caplog.at_level(logging.INFO, logger="sgljit"), pytest.raises(errors.CompileError):
        build(ops)
    assert sgljit_core.stats().builds["failed"] - before == 1
    assert events(caplog)["build_finished"].sgljit["outcome"] == "failed"


def test_progress_is_logged_and_a_long_compile_says_so(ops, caplog, monkeypatch):
    monkeypatch.setattr(record, "_LONG_SECONDS", 0.01)
    said: list[str] = []
    monkeypatch.setattr(record, "_say", said.append)
    after = record._after
    monkeypatch.setattr(record, "_after", lambda seconds, function: after(min(seconds, 0.01), function))
    with caplog.at_level(logging.INFO, logger="sgljit"):
        build(ops)
    found = events(caplog)
    label = re.escape(LABEL) + r"( of tri_family 1\.0)?"  # the plugin, where another test has installed it
    assert re.fullmatch(f"compiling {label}", found["build_started"].getMessage())
    assert re.match(f"still compiling {label} after", found["build_slow"].getMessage())
    assert re.match(f"compiled {label} in ", found["build_finished"].getMessage())
    assert found["build_finished"].sgljit["family"] == "tri_family"
    assert said == [found["build_started"].getMessage()]  # on a terminal


OBSERVER = """
from sgljit_core import hookimpl

@hookimpl
def sgljit_build_started(build):
    print("started", build.label)

@hookimpl
def sgljit_build_finished(build, seconds, error, directory, outcome):
    print("finished", build.label, outcome, seconds > 0, error, directory.is_dir())

@hookimpl
def sgljit_loaded(build, directory, tier):
    print("loaded", build.label, tier, directory.is_dir())
"""


def test_hooks_are_told(run, package):
    site = package.parent
    (site / "observer.py").write_text(OBSERVER)
    (site / "observer-1.0.dist-info").mkdir()
    (site / "observer-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: observer\nVersion: 1.0\n")
    (site / "observer-1.0.dist-info" / "entry_points.txt").write_text("[sgljit.extensions]\nobserver = observer\n")
    printed = run("""
        import sgljit_core, torch
        from tri_family.ops import ADD
        x = torch.empty(128, device="meta")
        with sgljit_core.override_cuda_arch(9, 0):
            for again in range(2):
                ADD.bind(BLOCK=64).build(x, None, x, 64, 1.5)
    """)
    assert printed.splitlines() == [
        f"started {LABEL} of tri_family 1.0",
        f"loaded {LABEL} made True",
        f"finished {LABEL} of tri_family 1.0 compiled True None True",
        f"loaded {LABEL} cache True",
    ]


@pytest.fixture
def hook(monkeypatch):
    """Triton's hook, as an engine's monitor sets it; returns the calls."""
    calls = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **options: calls.append(options))
    return calls


def test_tritons_hook_is_called_for_a_compile_and_not_for_a_hit(ops, hook):
    for _ in range(2):
        build(ops)
    (call,) = hook
    assert call["fn"].name == "tri_family.add"
    assert call["key"] == call["compile"]["key"]
    assert LABEL in call["key"]
    assert call["repr"] == "tri_family.add<*fp32:16, =None, *fp32:16, i32:16, fp32, BLOCK=64>"
    assert call["compile"]["constants"] == {(1,): None, (5,): 64}
    assert [one.name for one in call["fn"].jit_function.params] == ["x", "y", "out", "n", "alpha", "BLOCK"]
    assert call["compile"]["signature"] == {
        "x": "*fp32", "y": "constexpr", "out": "*fp32", "n": "i32", "alpha": "fp32", "BLOCK": "constexpr"
    }  # fmt: skip
    assert (call["is_manual_warmup"], call["already_compiled"]) == (True, False)


def test_the_hook_gets_what_triton_passes(ops, hook):
    import inspect

    from triton import knobs

    build(ops, num_warps=8)
    (call,) = hook
    wanted = inspect.signature(knobs.JITHook.__call__).parameters.keys() - {"self"}
    assert call.keys() == wanted
    assert call["compile"].keys() >= knobs.JITHookCompileInfo.__annotations__.keys()
    assert call["compile"]["num_warps"] == 8


@pytest.mark.slow
def test_a_monitor_that_raises_stops_the_launch_and_the_next_one_has_the_kernel(run, driver):
    """As vLLM's JIT monitor does in the mode "error"."""
    printed = run("""
        import sgljit_core, triton
        from sgljit_triton.tests.launching import LAST, tensor
        from tri_family.ops import FILL
        def launch():
            FILL.bind()((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
        def monitor(**options):
            raise RuntimeError(f"compiled while a model is served: {options['fn'].name}, {options['is_manual_warmup']}")
        triton.knobs.runtime.jit_post_compile_hook = monitor
        try:
            launch()
        except RuntimeError as error:
            print(error, LAST.count)
        launch()
        print(LAST.count, sgljit_core.stats().builds)
    """, LD_PRELOAD=str(driver))  # fmt: skip
    refused, launched = printed.splitlines()
    assert refused == "compiled while a model is served: tri_family.fill, False 0"
    assert json.loads(launched.partition(" ")[2].replace("'", '"')) == {"compiled": 2}  # with the launcher
    assert launched[0] == "1"


def test_where_compiling_is_forbidden_no_monitor_hears_of_it(ops, hook, thawed):
    sgljit_core.freeze()
    with pytest.raises(errors.CompileForbiddenError):
        build(ops)
    assert hook == []


def test_triton_is_not_imported_for_its_hook(run):
    run("""
        import sys, sgljit_core, torch
        from tri_family.ops import ADD
        x = torch.empty(128, device="meta")
        with sgljit_core.override_cuda_arch(9, 0):
            ADD.bind(BLOCK=64).build(x, None, x, 64, 1.5)
        assert sgljit_core.stats().builds == {"compiled": 1}
        assert "triton" not in sys.modules
    """)
