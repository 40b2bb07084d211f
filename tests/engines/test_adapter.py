"""What adapters share: the choice of ops, the versions beside which they work, the fallback."""

from __future__ import annotations

import logging

import pytest

from sgljit_core import errors
from sgljit_engines import Adapter
from sgljit_engines.errors import UnsupportedEngineError


@pytest.fixture
def say(caplog):
    """The messages of a logger, each with its level."""
    caplog.set_level(logging.INFO)
    return lambda logger="sgljit": [(r.levelname, r.getMessage()) for r in caplog.records if r.name == logger]


def adapter(**changes) -> Adapter:
    """One of pytest, which is installed."""
    ops = {"rmsnorm": "RMSNorm", "fused_add_rmsnorm": "RMSNorm with a residual"}
    return Adapter(**{"distribution": "sgljit-core", "engine": {"pytest": ">=8"}, "ops": ops, **changes})


def test_all_ops_are_used_and_one_line_says_so(say):
    assert adapter().start("cuda") == {"rmsnorm", "fused_add_rmsnorm"}
    ((level, text),) = say()
    assert level == "INFO"
    assert f"with pytest {pytest.__version__}: RMSNorm runs on rmsnorm; " in text
    assert "RMSNorm with a residual runs on fused_add_rmsnorm on cuda" in text


@pytest.mark.parametrize("value", ["rmsnorm", " rmsnorm ", "rmsnorm,strict", "STRICT, RMSNorm"])
def test_a_list_chooses(value, monkeypatch, say):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    assert adapter().start() == {"rmsnorm"}
    assert "switched off by SGLJIT_ENGINES: fused_add_rmsnorm" in say()[0][1]


def test_a_name_that_is_no_op_is_named(monkeypatch, say):
    monkeypatch.setenv("SGLJIT_ENGINES", "rmsnrom")
    assert adapter().start() == frozenset()
    assert "no op is used" in say()[0][1]
    assert "SGLJIT_ENGINES names rmsnrom, which this adapter does not have" in say()[0][1]


@pytest.mark.parametrize("value", ["", "  ", "on", "On"])
def test_unset_blank_and_on_are_all(value, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    assert len(adapter().start()) == 2


def test_off_is_nothing(monkeypatch, say):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    assert adapter(engine={"no-such-engine": ">=1"}).start() == frozenset()
    ((level, text),) = say()
    assert (level, text.endswith("does nothing: SGLJIT_ENGINES=off")) == ("INFO", True)


@pytest.mark.parametrize("value", ["off,rmsnorm", "on,strict", "rmsnorm,,layernorm", "rms norm", "0.5", ","])
def test_a_value_that_is_none_is_refused(value, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", value)
    with pytest.raises(errors.ConfigError, match="SGLJIT_ENGINES must be on, off, strict, or names of ops"):
        adapter().start()


UNSUPPORTED = {
    "missing": ({"engine": {"no-such-engine": ">=1,<2"}}, "no-such-engine is not installed. Install a version >=1,<2"),
    "older": ({"engine": {"pytest": ">=1000"}}, "and it was tested with pytest>=1000. Install such a "),
    "beside": ({"beside": {"no-such-helper": ">=3"}}, "no-such-helper is not installed"),
    "beside older": ({"beside": {"packaging": "<1"}}, "and it was tested with packaging<1"),
}


@pytest.mark.parametrize(("changes", "text"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_an_engine_that_was_not_tested_is_left_alone(changes, text, say):
    assert adapter(**changes).start() == frozenset()
    ((level, said),) = say()
    assert level == "WARNING"
    assert "does nothing: " in said
    assert text in said


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


def test_the_line_may_come_later(say):
    one = adapter()
    used = one.start(announce=False)
    assert not say()
    one.announce(used, "cpu")
    assert say()[0][1].endswith("fused_add_rmsnorm on cpu")


def test_messages_go_to_the_engines_logger(say):
    adapter(logger="engine.sgljit").start()
    assert len(say("engine.sgljit")) == 1
    assert not say()


def fail(error: Exception):
    raise error


@pytest.mark.parametrize("error", [errors.InvalidBuildError("broken build"), OSError("no descriptor")])
def test_a_failure_is_one_warning_and_the_op_is_not_tried_again(error, say):
    one = adapter()
    calls = []
    assert one.attempt("rmsnorm", lambda: calls.append(1))
    assert not one.attempt("rmsnorm", lambda: fail(error))
    assert not one.attempt("rmsnorm", lambda: calls.append(2))
    assert one.attempt("fused_add_rmsnorm", lambda: calls.append(3))
    assert calls == [1, 3]
    ((level, text),) = say()
    assert level == "WARNING"
    assert "rmsnorm failed, and RMSNorm runs on the engine's own code until the process ends" in text
    assert text.endswith(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    "error", [errors.TensorMatchError("rank 5"), errors.InferenceOnlyError("grad"), errors.CaptureError("op", "why")]
)
def test_a_call_that_the_op_does_not_take_is_the_engines_alone(error, say):
    one = adapter()
    assert not one.attempt("rmsnorm", lambda: fail(error))
    calls = []
    assert one.attempt("rmsnorm", lambda: calls.append(1))
    assert calls == [1]
    assert not say()


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


def test_strict_raises_the_failure(monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(errors.InvalidBuildError, match="broken build"):
        adapter().attempt("rmsnorm", lambda: fail(errors.InvalidBuildError("broken build")))


@pytest.mark.parametrize("error", [IndexError("index 7"), KeyboardInterrupt(), RuntimeError("CUDA error")])
def test_an_error_that_no_build_made_passes(error):
    with pytest.raises(type(error)):
        adapter().attempt("rmsnorm", lambda: fail(error))
