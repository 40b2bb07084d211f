"""vLLM's JIT monitor hears of compiles after it was activated: a stand-in, and vLLM's own where that is there."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import logging
import sys
import types
from collections.abc import Iterator
from types import ModuleType

import pytest

from sgljit_core import load_jit
from sgljit_core.builds import policy
from sgljit_core.errors import CompileForbiddenError
from sgljit_core.plugins import hooks

MODULE = "vllm.utils.jit_monitor"
CODE = """
#include <sgl_kernel/export.h>
int number() { return %d; }
"""
numbers = itertools.count(1000)


class StandIn(ModuleType):
    """The interface of vLLM's module: keywords alone, an event in the mode "error" raises."""

    def __init__(self) -> None:
        super().__init__(MODULE)
        self.mode = ""

    def is_active(self) -> bool:
        return bool(self.mode)

    def activate(self, *, mode: str = "warn", verbose: bool = False) -> None:
        if mode not in ("warn", "error"):
            raise ValueError(mode)
        self.mode = self.mode or mode

    def _handle_jit_event(self, *, backend: str, event: str, fn_name: str, detail: str | None = None) -> None:
        text = f"{backend} {event} during inference: {fn_name} ({detail})"
        if self.mode == "error":
            raise RuntimeError(text)
        logging.getLogger(MODULE).warning(text)


@pytest.fixture(params=["stand-in", "vllm"])
def vllms(request, monkeypatch, tmp_path) -> Iterator[ModuleType]:
    """The monitor, not yet active, and a cold cache."""
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(tmp_path))
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        found = importlib.import_module(MODULE)
        monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    else:
        found = StandIn()
        for name in ("vllm", "vllm.utils"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, MODULE, found)
        sys.modules["vllm.utils"].jit_monitor = found  # type: ignore[attr-defined]
    policy._frozen.clear()
    yield found
    policy._frozen.clear()
    ours = sys.modules.pop("sgljit_vllm.monitor", None)
    if hooks.manager().is_registered(ours):
        hooks.manager().unregister(ours)


def watch() -> None:
    """As ``register`` does."""
    importlib.import_module("sgljit_vllm.monitor").watch()


def compiled(number: int) -> int:
    """The result of a function that is compiled for it, or was before."""
    return load_jit("watched", str(number), cpp_sources=CODE % number, cpp_wrappers=[("number", "number")]).number()


def heard(caplog) -> list[str]:
    return [text for text in caplog.messages if "during inference" in text]


def test_a_compile_after_the_warm_up_is_a_warning_of_vllm(vllms, caplog):
    number = next(numbers)
    watch()
    watch()
    assert compiled(number) == number
    assert heard(caplog) == [], "nobody listens before"
    vllms.activate(mode="warn", verbose=True)
    vllms.activate(mode="warn")
    assert vllms.is_active()
    assert compiled(number) == number
    assert heard(caplog) == [], "it is there"
    number = next(numbers)
    assert compiled(number) == number
    (text,) = heard(caplog)
    assert text.startswith(f"sgljit kernel JIT compilation during inference: watched<{number}> for cpu-")
    assert " s)" in text


def test_in_the_mode_error_nothing_is_compiled(vllms, caplog):
    number = next(numbers)
    watch()
    assert compiled(number) == number
    with pytest.raises(ValueError, match="often"):
        vllms.activate(mode="often")
    assert policy.forbidden_by()[0] == "on"
    vllms.activate(mode="error", verbose=False)
    assert compiled(number) == number, "it is there"
    with pytest.raises(CompileForbiddenError, match=r'watched<.* is not in the cache, and freeze\("error"\) forbids'):
        compiled(next(numbers))
    assert heard(caplog) == []


def test_a_monitor_of_another_interface_is_a_warning_of_the_adapter(vllms, monkeypatch, caplog):
    watch()
    vllms.activate()
    monkeypatch.setattr(vllms, "_handle_jit_event", lambda event: None)
    caplog.set_level(logging.WARNING, logger="vllm.sgljit")
    number = next(numbers)
    assert compiled(number) == number
    (text,) = heard(caplog)
    assert f"compiled watched<{number}> for cpu-" in text
    assert "unknown to vLLM's JIT monitor" in text


def test_a_triton_kernel_is_told_by_tritons_hook_alone_and_a_failure_is_no_kernel(vllms, caplog):
    watch()
    vllms.activate()
    ours = sys.modules["sgljit_vllm.monitor"]
    ours.sgljit_build_finished(types.SimpleNamespace(label="a", arguments=()), 1.0, "compiled")
    ours.sgljit_build_finished(types.SimpleNamespace(label="b"), 1.0, "failed")
    assert heard(caplog) == []
    ours.sgljit_build_finished(types.SimpleNamespace(label="c"), 1.0, "private")
    assert len(heard(caplog)) == 1
