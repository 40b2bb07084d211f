"""Where there is no vLLM, or one that was not tested, nothing happens and one sentence says so."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import metadata

import pytest

import sgljit_vllm
from sgljit_core.errors import ConfigError
from sgljit_engines.errors import UnsupportedEngineError


@pytest.fixture
def no_vllm(monkeypatch):
    def version(distribution: str) -> str | None:
        return None if distribution.startswith("vllm") else "0.1.0"

    monkeypatch.setattr("sgljit_engines.adapter._installed", version)
    sgljit_vllm.ADAPTER._said.clear()


def test_vllm_finds_the_function_by_its_entry_point():
    (point,) = metadata.entry_points(group="vllm.general_plugins", name="sgljit")
    assert point.load() is sgljit_vllm.register


def test_importing_it_imports_neither_vllm_nor_torch():
    code = "import sys, sgljit_vllm; print(sorted({'vllm', 'torch', 'tvm_ffi'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_vllm_it_says_what_to_install(no_vllm, caplog):
    sgljit_vllm.register()
    assert caplog.messages == ["sgljit-vllm 0.1.0 does nothing: vllm is not installed. Install a version >=0.32,<0.34"]


def test_another_version_is_left_alone(monkeypatch, caplog):
    versions = {"vllm": "0.34.0", "sgljit-vllm": "0.1.0"}
    monkeypatch.setattr("sgljit_engines.adapter._installed", versions.get)
    sgljit_vllm.register()
    (text,) = caplog.messages
    assert text == (
        "sgljit-vllm 0.1.0 does nothing: vllm 0.34.0 is installed, and it was tested with vllm>=0.32,<0.34. Install "
        "such a version of vllm, or a release of sgljit-vllm for vllm 0.34.0"
    )


def test_a_name_that_no_adapter_has_is_an_error(no_vllm, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "rmsnrom")
    with pytest.raises(ConfigError, match=r"No adapter has 'rmsnrom'; there are norm\.rmsnorm, "):
        sgljit_vllm.register()


def test_strict_makes_an_error_of_it(no_vllm, monkeypatch):
    monkeypatch.setenv("SGLJIT_ENGINES", "strict")
    with pytest.raises(UnsupportedEngineError, match="vllm is not installed"):
        sgljit_vllm.register()


def test_off_is_off_wherever_it_is(no_vllm, monkeypatch, caplog):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    caplog.set_level(logging.INFO, logger="vllm.sgljit")
    sgljit_vllm.register()
    assert caplog.messages == ["sgljit-vllm 0.1.0 does nothing: SGLJIT_ENGINES=off"]


def test_off_is_said_when_vllm_has_set_up_its_log(no_vllm, monkeypatch, caplog):
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    later = []
    monkeypatch.setattr("sgljit_engines.adapter._later", lambda *call: later.append(call))
    sgljit_vllm.register()
    assert caplog.messages == []
    caplog.set_level(logging.INFO, logger="vllm.sgljit")
    for say, *args in later:
        say(*args)
    assert caplog.messages == ["sgljit-vllm 0.1.0 does nothing: SGLJIT_ENGINES=off"]
