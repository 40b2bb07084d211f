"""What adapters share: the choice of ops, the versions beside which they work, the fallback."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from sgljit_core import errors
from sgljit_core.builds.record import Stats
from sgljit_core.specs.build import BuildSpec, Target
from sgljit_engines import Adapter, Use, report
from sgljit_engines.errors import InexactError, UnsupportedEngineError

TELL = Adapter._tell_when_quiet  # which a fixture takes away


@pytest.fixture
def say(caplog):
    """The messages of a logger, each with its level."""
    caplog.set_level(logging.INFO)
    return lambda logger="sgljit": [(r.levelname, r.getMessage()) for r in caplog.records if r.name == logger]


NORMS = {"rmsnorm": "RMSNorm", "fused_add_rmsnorm": "RMSNorm with a residual"}
ACTIVATIONS = {"silu_and_mul": "SiluAndMul"}


def adapter(**changes) -> Adapter:
    """One of pytest, which is installed."""
    ops = {"norm": NORMS, "activation": ACTIVATIONS}
    return Adapter(**{"distribution": "sgljit-core", "engine": {"pytest": ">=8"}, "ops": ops, **changes})


ALL = {*NORMS, *ACTIVATIONS}


@pytest.fixture(autouse=True)
def another_adapter(monkeypatch):
    """The only one that is installed."""
    other = adapter(ops={"activation": {"gelu_and_mul": "GeluAndMul"}})
    monkeypatch.setattr("sgljit_engines.adapter._installed_adapters", lambda: {"other": other})


def test_all_ops_are_used_and_a_line_says_of_each_that_runs_where(say):
    one = adapter()
    assert one.start() == ALL
    assert not say(), "nothing runs yet"
    for _ in range(2):
        assert one.attempt("rmsnorm", lambda: None)
    ((level, text),) = say()
    assert level == "INFO"
    assert text.endswith(f"with pytest {pytest.__version__}: RMSNorm runs on rmsnorm")


@pytest.mark.parametrize(
    ("value", "used"),
    [
        ("rmsnorm", {"rmsnorm"}),
        (" rmsnorm ", {"rmsnorm"}),
        ("rmsnorm,strict", {"rmsnorm"}),
        ("STRICT, RMSNorm", {"rmsnorm"}),
        ("norm", set(NORMS)),
        ("norm.rmsnorm", {"rmsnorm"}),
        ("norm,-norm.rmsnorm", {"fused_add_rmsnorm"}),
        ("norm,-activation.silu_and_mul", set(NORMS)),
        ("-rmsnorm", ALL - {"rmsnorm"}),
        ("-norm, strict", set(ACTIVATIONS)),
        ("strict,on", ALL),
        ("-rmsnorm,silu_and_mul,rmsnorm", {"silu_and_mul"}),
        ("gelu_and_mul,norm", set(NORMS)),  # an op of other adapters alone
        *((unset, ALL) for unset in ("", "  ", "on", "On")),
    ],
)
def test_a_list_chooses(value, used, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    assert adapter().start() == used
    if "strict" not in value.lower() and value.strip():
        monkeypatch.delenv("SGLJIT_ENGINES")
        assert adapter().start(value) == used


def test_both_choices_must_allow_an_op(monkeypatch, say):
    monkeypatch.setenv("SGLJIT_ENGINES", "-rmsnorm")
    assert adapter().start("norm") == {"fused_add_rmsnorm"}
    assert not say()
    assert adapter().start("rmsnorm") == frozenset()
    assert say()[0][1].endswith("does nothing: SGLJIT_ENGINES=-rmsnorm and ops='rmsnorm'")


@pytest.mark.parametrize(
    ("value", "used"),
    [("exact", {"silu_and_mul"}), ("Exact,strict", {"silu_and_mul"}), ("exact,activation", {"silu_and_mul"})],
)
def test_exact_leaves_ops_without_the_bits_of_the_engine(value, used, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    one = adapter(exact_ops=frozenset({"silu_and_mul"}))
    assert one.exact
    assert one.start() == used
    assert one.start("norm") == frozenset()
    whys = [one.why_not(op) for op in ("rmsnorm", "silu_and_mul")]
    assert whys == ["SGLJIT_ENGINES=exact: none of its modes gives the bits of the engine's own code", "switched off"]
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    assert not one.exact


def test_where_exact_leaves_nothing_a_line_says_so(monkeypatch, say):
    monkeypatch.setenv("SGLJIT_ENGINES", "exact,norm")
    assert adapter(exact_ops=frozenset({"silu_and_mul"})).start() == frozenset()
    assert say()[0][1].endswith("does nothing: SGLJIT_ENGINES=norm,exact")


@pytest.mark.parametrize("value", ["on", "strict"])
def test_bits_that_are_not_proven_are_no_failure(value, monkeypatch, no_uses, say):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    one, answers = adapter(), {}
    assert not one.attempt_once("rmsnorm", lambda: fail(InexactError("3 gates differ")), answers, 64)
    assert one.attempt("rmsnorm", lambda: None)
    assert [use.why for use in report()] == ["3 gates differ"]
    assert all(level == "INFO" for level, _ in say())


def test_another_name_of_the_variable_is_one_warning_that_names_the_right_one(monkeypatch, say):
    monkeypatch.setenv("SGLJIT_OPS", "norm,-activation.silu_and_mul")
    one = adapter()
    for _ in range(2):
        assert one.start() == ALL
    ((level, text),) = say()
    assert level == "WARNING"
    assert text.endswith("reads no SGLJIT_OPS: set SGLJIT_ENGINES=norm,-activation.silu_and_mul instead")


BY_NAME = {
    None: NORMS,
    "on": NORMS,
    "strict": NORMS,
    "-rmsnorm": {"fused_add_rmsnorm"},
    "activation": ACTIVATIONS,
    "norm,activation.silu_and_mul": {*NORMS, "silu_and_mul"},
    "norm,activation,-silu_and_mul": {*NORMS},
    "exact": {"silu_and_mul"},
}


@pytest.mark.parametrize(("value", "expected"), BY_NAME.items())
def test_an_op_that_nobody_measured_as_faster_is_used_where_it_is_named(value, expected, monkeypatch):
    if value:
        monkeypatch.setenv("SGLJIT_ENGINES", value)
    one = adapter(by_name=frozenset(ACTIVATIONS), exact_ops=frozenset({"silu_and_mul"}))
    assert one.start() == frozenset(expected)
    if value == "on":
        assert one.why_not("silu_and_mul").startswith("it is used only where SGLJIT_ENGINES names it, as nobody")


@pytest.mark.parametrize("value", ["off", "gelu_and_mul", "-norm,-activation"])
def test_nothing_is_a_line_once(value, monkeypatch, say):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    one = adapter(engine={"no-such-engine": ">=1"})
    for _ in range(2):
        assert one.start() == frozenset()
    ((level, text),) = say()
    assert (level, text.endswith(f"does nothing: SGLJIT_ENGINES={value}")) == ("INFO", True)


@pytest.mark.parametrize(
    "value",
    ["rmsnrom", "off,rmsnorm", "-on", "rmsnorm,,layernorm", "rms norm", "0.5", ",", "norm.silu_and_mul", "--norm"],
)
def test_a_name_that_no_adapter_has_is_an_error_that_names_those_there_are(value, monkeypatch):
    there = r"there are norm\.rmsnorm, norm\.fused_add_rmsnorm, activation\.silu_and_mul, activation\.gelu_and_mul$"
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    with pytest.raises(errors.ConfigError, match=rf"^SGLJIT_ENGINES must be on, off, or names of ops .*; {there}"):
        adapter(engine={"no-such-engine": ">=1"}).start()
    monkeypatch.delenv("SGLJIT_ENGINES")
    with pytest.raises(errors.ConfigError, match=rf"^ops must be on, off, or names of ops .*; {there}"):
        adapter().start(value)


@pytest.mark.parametrize("value", [True, ["norm"]])
def test_a_choice_that_is_no_string_is_an_error(value):
    with pytest.raises(errors.ConfigError, match=r"^ops must be on, off, or names .*; got (True|\['norm'\])\."):
        adapter().start(value)


def test_what_a_log_did_not_take_yet_is_said_when_it_does(caplog, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    one = adapter()
    one.start()
    caplog.set_level(logging.INFO)
    for _ in range(2):
        one.start()
    assert len(caplog.messages) == 1


def test_an_adapter_that_is_loaded_before_the_log_is_set_up_says_it_later(caplog, monkeypatch):
    later = []
    monkeypatch.setattr("sgljit_engines.adapter._later", lambda *call: later.append(call))
    one = adapter(is_early=True)
    for text in ("first", "second", "first"):
        one.say_once(logging.INFO, "engine_off", text)
    assert (caplog.messages, len(later)) == ([], 2)
    caplog.set_level(logging.INFO)
    one.say_once(logging.INFO, "engine_off", "first")
    for say, *args in later:
        say(*args)
    assert [text.rpartition(" ")[2] for text in caplog.messages] == ["first", "second"]


UNSUPPORTED = {
    "missing": ({"engine": {"no-such-engine": ">=1,<2"}}, "no-such-engine is not installed. Install a version >=1,<2"),
    "older": ({"engine": {"pytest": ">=1000"}}, "and it was tested with pytest>=1000. Install such a "),
}


@pytest.mark.parametrize(("changes", "text"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_an_engine_that_was_not_tested_is_left_alone(changes, text, say):
    assert adapter(**changes).start() == frozenset()
    ((level, said),) = say()
    assert level == "WARNING"
    assert "does nothing: " in said
    assert text in said


@pytest.mark.parametrize(("changes", "text"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_report_says_why_nothing_is_used(changes, text, no_uses, monkeypatch):
    adapter(**changes).start()
    assert [(use.op, use.kind) for use in report()] == [(op, "any") for op in (*NORMS, *ACTIVATIONS)]
    assert all(text in use.why for use in report())
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    adapter().start()
    assert {use.why for use in report()} == {"switched off"}
    monkeypatch.setenv("SGLJIT_ENGINES", "exact")
    adapter().start()
    assert {use.why for use in report()} == {
        "SGLJIT_ENGINES=exact: none of its modes gives the bits of the engine's own code"
    }


def test_a_model_that_uses_nothing_says_nothing_of_others(no_uses):
    assert adapter().start("off") == frozenset()
    assert report() == []


@pytest.mark.parametrize(("changes", "text"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_strict_makes_an_error_of_that(changes, text, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(UnsupportedEngineError, match=r"^sgljit-core ") as caught:
        adapter(**changes).start()
    assert text in str(caught.value)


def test_the_installed_one_of_two_engines_counts():
    engine = {"no-such-engine": ">=1", "pytest": ">=8"}
    assert adapter(engine=engine).start()
    assert not adapter(engine={**engine, "pytest": ">=1000"}).start()


def test_pre_releases_and_local_versions_are_versions(monkeypatch):
    for version, fits in {"8.1.0+cpu": True, "8.2.0rc1": True, "7.9": False}.items():
        monkeypatch.setattr("sgljit_engines.adapter._installed", lambda _, version=version: version)
        assert bool(adapter().start()) == fits, version


def test_messages_go_to_the_engines_logger(say):
    adapter(logger="engine.sgljit").attempt("rmsnorm", lambda: None)
    assert len(say("engine.sgljit")) == 1
    assert not say()


def fail(error: Exception):
    raise error


@pytest.mark.parametrize(
    "error",
    [errors.InvalidBuildError("broken build"), OSError("no descriptor"), errors.NoTargetError("no kernel fits sm_50")],
)
def test_a_failure_is_one_warning_and_the_op_is_not_tried_again(error, say):
    one = adapter()
    calls = []
    assert one.attempt("rmsnorm", lambda: calls.append(1))
    assert not one.attempt("rmsnorm", lambda: fail(error))
    assert not one.attempt("rmsnorm", lambda: calls.append(2))
    assert one.attempt("fused_add_rmsnorm", lambda: calls.append(3))
    assert calls == [1, 3]
    ((_, _), (level, text), (_, _)) = say()
    assert level == "WARNING"
    assert "rmsnorm failed, and RMSNorm runs on the engine's own code until the process ends" in text
    assert text.endswith(f"{type(error).__name__}: {error}")


def no_compiler(needed_for: str) -> Exception:
    return errors.ToolchainNotFoundError("g++", needed_for=needed_for, searched=["/usr/bin"], remedy="Install it.")


def test_a_cause_that_several_ops_share_is_one_warning(say):
    one = adapter()
    assert not one.attempt("rmsnorm", lambda: fail(no_compiler("norm.norm")))
    assert not one.attempt("silu_and_mul", lambda: fail(no_compiler("activation.activation")))
    assert not one.attempt("fused_add_rmsnorm", lambda: fail(OSError("no space")))
    assert [level for level, _ in say()] == ["WARNING", "INFO", "WARNING"]
    assert all("failed, and" in text for _, text in say())


@pytest.fixture
def no_uses(monkeypatch):
    monkeypatch.setattr("sgljit_engines.adapter.USES", uses := {})
    monkeypatch.setattr("sgljit_engines.uses.USES", uses)


def test_a_report_says_what_kinds_of_calls_run_on(no_uses):
    one, answers = adapter(distribution="sgljit-some"), {}
    one.attempt_once("rmsnorm", lambda: None, answers, ("rmsnorm", 64, "cpu"))
    one.attempt_once("rmsnorm", lambda: fail(errors.TensorMatchError("rank 5")), answers, ("rmsnorm", 7, "cpu"))
    one.attempt_once("silu_and_mul", lambda: fail(OSError("no space")), answers, "silu_and_mul")
    use = one.use("rmsnorm", ("rmsnorm", 64, "cpu"))
    use.calls += 3
    found = report()
    assert found == [
        Use("sgljit-some", "RMSNorm", "64 cpu", "rmsnorm", calls=3),
        Use("sgljit-some", "RMSNorm", "7 cpu", "rmsnorm", why="the op does not take it"),
        Use("sgljit-some", "SiluAndMul", "any", "silu_and_mul", why="OSError: no space"),
    ]
    use.calls += 1
    assert found[0].calls == 3, "a report does not change"
    assert not one.attempt("rmsnorm", lambda: fail(OSError("no disk")))
    assert [use.why for use in report()] == ["OSError: no disk", "OSError: no disk", "OSError: no space"]


def build(name: str, **changes) -> BuildSpec:
    """Something of the family ``norm`` that can be loaded."""
    given = {"family": "norm", "cuda_files": ("norm.cuh",), "kernel": name, **changes}
    return BuildSpec((name,), Path("/csrc"), Target("sm_90a", (9, 0)), **given)


@pytest.fixture
def loads(monkeypatch):
    """Sets what the core has loaded, in how many seconds of building."""
    now = {"loads": {}, "seconds": 0.0}
    for module in ("adapter", "uses"):
        monkeypatch.setattr(
            f"sgljit_engines.{module}.stats", lambda: Stats({}, 0, {}, now["seconds"], 0, dict(now["loads"]))
        )

    def load(seconds: float = 0.0, **tiers: str) -> None:
        now["seconds"] += seconds
        for name, tier in tiers.items():
            of = build(name, host_part=name == "host", family="rope" if name == "rope" else "norm")
            now["loads"][of.label] = (of, tier)

    return load


def test_a_report_names_variants_and_says_where_they_came_from(no_uses, loads):
    one, answers = adapter(), {}
    assert one.attempt_once("rmsnorm", lambda: loads(1.5, host="made", wide="made"), answers, 64)
    assert one.attempt_once("rmsnorm", lambda: None, answers, 65)
    assert one.attempt_once("rmsnorm", lambda: loads(narrow="cache", wide="cache", rope="carried"), answers, 128)
    assert one.attempt_once("rmsnorm", lambda: None, answers, 129)
    loads(later="remote", of_nobody="prebuilt")
    wide = {"norm.wide for sm_90a": "compiled here"}
    assert [(use.kind, use.variants, use.seconds) for use in report()] == [
        ("64", wide, 1.5),
        ("65", wide, 0.0),  # the only one that there was
        ("128", {"norm.narrow for sm_90a": "from disk"}, 0.0),
        ("129", {}, 0.0),  # one of two
    ]
    assert report().others == {
        "rope.rope for sm_90a": "carried by a wheel",
        "norm.later for sm_90a": "from a remote",
        "norm.of_nobody for sm_90a": "prebuilt",
    }
    assert str(report()).splitlines()[-2:] == [
        "loaded by a later call: norm.later for sm_90a, from a remote",
        "loaded by a later call: norm.of_nobody for sm_90a, prebuilt",
    ]


def test_a_kind_that_the_op_does_not_take_runs_on_no_variant(no_uses, loads):
    one, answers = adapter(), {}
    loads(wide="cache")
    assert not one.attempt_once("rmsnorm", lambda: fail(errors.TensorMatchError("rank 5")), answers, 64)
    assert report()[0].variants == {}


def test_the_text_of_a_report_has_80_columns(no_uses, loads):
    one = adapter()
    use = one.use("rmsnorm", ("Qwen3RMSNorm", 2048, "bfloat16", "cuda:0"))
    use.calls, use.layers, use.seconds, use.variants = 12, 4, 0.21, {"norm.rmsnorm<64> for sm_90a": "compiled here"}
    one.use("silu_and_mul", "Qwen3MLP").why = "switched off"
    assert str(report()) == (
        "sgljit-core: RMSNorm (Qwen3RMSNorm 2048 bfloat16 cuda:0) runs on rmsnorm (4\n"
        "    layers, 12 calls); built in 0.21 s\n"
        "    norm.rmsnorm<64> for sm_90a, compiled here\n"
        "sgljit-core: SiluAndMul (Qwen3MLP) runs on the engine's own code, not\n"
        "    silu_and_mul: switched off"
    )


@pytest.fixture
def tells(monkeypatch):
    """An adapter logs what runs, after a moment."""
    monkeypatch.setattr(Adapter, "_tell_when_quiet", TELL)
    monkeypatch.setattr("sgljit_engines.adapter.QUIET_SECONDS", 0.1)


def lines(say) -> list[str]:
    return [text.partition("after warm-up: ")[2] for _, text in say() if "after warm-up: " in text]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def quiet(tells, monkeypatch):
    """Let the moment pass for all timers that were started and not cancelled; how many those were."""
    started = []

    def start(timer) -> None:
        started.append(timer)

    monkeypatch.setattr(threading.Timer, "start", start)

    def quiet() -> int:
        due = [timer for timer in started if not timer.finished.is_set()]
        started.clear()
        for timer in due:
            timer.function()
        return len(due)

    return quiet


def test_one_line_says_what_runs_when_nothing_new_has_come_for_a_while(no_uses, loads, quiet, say):
    one, answers = adapter(), {}
    for size in (64, 128):
        one.attempt_once("rmsnorm", lambda size=size: loads(0.75, **{f"of_{size}": "made"}), answers, size)
        use = one.use("rmsnorm", size)
        use.layers, use.calls = size, 2 * size
    one.attempt_once("silu_and_mul", lambda: loads(rope="carried"), answers, 96)
    one.attempt_once("fused_add_rmsnorm", lambda: fail(OSError("no\nspace")), answers, "fused 64")
    assert not lines(say)
    assert quiet() == 1
    text = (
        "RMSNorm runs on rmsnorm (192 layers, 384 calls); SiluAndMul runs on silu_and_mul; variants: 2 compiled here; "
        "built in 1.5 s; the engine's own code runs in place of fused_add_rmsnorm: OSError: no space"
    )
    assert lines(say) == [text]
    one.attempt_once("rmsnorm", lambda: None, answers, 64)
    assert quiet() == 0, "nothing is new"
    one.lose("rmsnorm", OSError("no disk"))
    assert quiet() == 1
    assert len(lines(say)) == 2
    assert lines(say)[1].startswith("SiluAndMul runs on silu_and_mul; ")
    assert "; the engine's own code runs in place of rmsnorm: OSError: no disk" in lines(say)[1]


def test_no_thread_waits_where_nobody_reads_the_line(no_uses, tells, caplog):
    caplog.set_level(logging.WARNING)
    before = set(threading.enumerate())  # one of another test may end meanwhile
    assert adapter().attempt_once("rmsnorm", lambda: None, {}, 64)
    assert set(threading.enumerate()) <= before


def test_a_forked_child_waits_for_itself(no_uses, tells, say):
    one = adapter()
    one._waiting.append(threading.Timer(60, fail))  # of the parent, whose thread a child does not have
    one.attempt_once("rmsnorm", lambda: None, {}, 64)
    until(lambda: lines(say))


def test_a_full_process_goes_on_without_the_line(no_uses, tells, say, monkeypatch):
    monkeypatch.setattr("threading.Thread.start", lambda self: fail(RuntimeError("can't start new thread")))
    assert adapter().attempt_once("rmsnorm", lambda: None, {}, 64)


@pytest.mark.parametrize(
    "error", [errors.TensorMatchError("rank 5"), errors.InferenceOnlyError("grad"), errors.CaptureError("op", "why")]
)
def test_a_call_that_the_op_does_not_take_is_the_engines_alone(error, say):
    one = adapter()
    assert not one.attempt("rmsnorm", lambda: fail(error))
    assert not say()
    calls = []
    assert one.attempt("rmsnorm", lambda: calls.append(1))
    assert calls == [1]


@pytest.mark.parametrize("error", [errors.TensorMatchError("rank 5"), errors.InvalidBuildError("broken build")])
def test_a_kind_of_call_is_attempted_once(error):
    one, answers, calls = adapter(), {}, []
    for _ in range(2):
        assert one.attempt_once("rmsnorm", lambda: calls.append(1), answers, 64)
        assert not one.attempt_once("rmsnorm", lambda: calls.append(2) or fail(error), answers, 128)
    assert calls == [1, 2]
    assert answers == {64: True, 128: False}


def test_a_build_that_a_capture_forbids_is_attempted_again_after_it(monkeypatch):
    one, answers, calls = adapter(), {}, []
    forbidden = lambda: fail(errors.CaptureError("op", "why"))  # noqa: E731
    assert not one.attempt_once("rmsnorm", forbidden, answers, 64)
    assert one.attempt_once("rmsnorm", lambda: calls.append(1), answers, 64)
    assert calls == [1]
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(errors.CaptureError):
        one.attempt_once("rmsnorm", forbidden, answers, 128)


@pytest.mark.parametrize(
    "error",
    [errors.InvalidBuildError("broken build"), errors.TensorMatchError("rank 5"), errors.CaptureError("op", "why")],
)
def test_strict_raises_what_kept_an_op_from_running(error, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(type(error)) as caught:
        adapter().attempt("rmsnorm", lambda: fail(error))
    assert caught.value is error


@pytest.mark.parametrize("error", [IndexError("index 7"), KeyboardInterrupt(), RuntimeError("CUDA error")])
def test_an_error_that_no_build_made_passes(error):
    with pytest.raises(type(error)):
        adapter().attempt("rmsnorm", lambda: fail(error))
