"""Where there is no SGLang, or one that was not tested, nothing happens and one sentence says so."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import metadata

import pytest

import sgljit_sglang


@pytest.fixture
def no_sglang(monkeypatch):
    def version(distribution: str) -> str | None:
        return None if distribution.startswith("sglang") else "0.1.0"

    monkeypatch.setattr("sgljit_engines.adapter._installed", version)
    sgljit_sglang.ADAPTER._said.clear()


def test_sglang_finds_the_function_by_its_entry_point():
    (point,) = metadata.entry_points(group="sglang.srt.plugins", name="sgljit")
    assert point.load() is sgljit_sglang.register


def test_importing_it_imports_neither_sglang_nor_torch():
    code = "import sys, sgljit_sglang; print(sorted({'sglang', 'torch', 'tvm_ffi'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_sglang_it_says_what_to_install(no_sglang, caplog):
    sgljit_sglang.register()
    assert caplog.messages == [
        "sgljit-sglang 0.1.0 does nothing: sglang is not installed. Install a version >=0.5.23,<0.5.24"
    ]


def test_another_version_is_left_alone(monkeypatch, caplog):
    versions = {"sglang": "0.5.24", "sgljit-sglang": "0.1.0"}
    monkeypatch.setattr("sgljit_engines.adapter._installed", versions.get)
    sgljit_sglang.register()
    (text,) = caplog.messages
    assert text == (
        "sgljit-sglang 0.1.0 does nothing: sglang 0.5.24 is installed, and it was tested with "
        "sglang>=0.5.23,<0.5.24. Install such a version of sglang, or a release of sgljit-sglang for sglang 0.5.24"
    )


def test_strict_makes_an_error_of_it(no_sglang, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(SystemExit, match=r"^sgljit-sglang: .*sglang is not installed"):
        sgljit_sglang.register()


def test_a_name_that_no_adapter_has_is_an_error_that_sglang_does_not_swallow(no_sglang, monkeypatch):
    """Its loader of plugins goes on after each ``Exception``."""
    monkeypatch.setenv("SGLJIT_ENGINES", "rmsnrom")
    with pytest.raises(SystemExit, match=r"No adapter has 'rmsnrom'; there are norm\.rmsnorm, "):
        sgljit_sglang.register()


def test_off_is_off_wherever_it_is(no_sglang, monkeypatch, caplog):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    caplog.set_level(logging.INFO, logger="sgljit")
    sgljit_sglang.register()
    assert caplog.messages == ["sgljit-sglang 0.1.0 does nothing: SGLJIT_ENGINES=off"]


def test_off_is_said_when_sglang_has_set_up_its_log(no_sglang, monkeypatch, caplog):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    later = []
    monkeypatch.setattr("sgljit_engines.adapter._later", lambda *call: later.append(call))
    for _ in range(2):  # SGLang's processes may load plugins more than once
        sgljit_sglang.register()
    assert caplog.messages == []
    caplog.set_level(logging.INFO, logger="sgljit")
    for say, *args in later:
        say(*args)
    assert caplog.messages == ["sgljit-sglang 0.1.0 does nothing: SGLJIT_ENGINES=off"]
