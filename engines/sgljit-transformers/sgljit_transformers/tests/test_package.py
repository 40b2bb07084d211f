"""The package without its engine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import sgljit_transformers


def test_importing_is_free():
    code = (
        "import sys, sgljit_transformers; print([m for m in ('torch', 'transformers', 'kernels') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("call", [sgljit_transformers.enable, sgljit_transformers.disable])
def test_what_is_no_module_is_a_type_error(call):
    with pytest.raises(TypeError, match=r"which is a torch\.nn\.Module; got a str"):
        call("Qwen/Qwen3-8B")


@pytest.mark.slow
def test_without_the_engine_a_model_stays_as_it_is():
    code = """
        import importlib_metadata, torch, sgljit_transformers
        found = importlib_metadata.version
        def version(name):
            if name == "transformers":
                raise importlib_metadata.PackageNotFoundError(name)
            return found(name)
        importlib_metadata.version = version
        norm = torch.nn.RMSNorm(8, eps=1e-6)
        print(sgljit_transformers.enable(norm), "forward" in vars(norm))
        sgljit_transformers.disable(norm)
    """
    environment = {name: value for name, value in os.environ.items() if name != "SGLJIT_ENGINES"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "{} False\n", done.stderr
    assert "transformers is not installed. Install a version >=5.20,<5.25" in done.stderr


def test_the_versions_of_the_metadata_are_those_of_the_adapter():
    from importlib_metadata import requires
    from packaging.requirements import Requirement

    from sgljit_transformers.adapter import ADAPTER

    stated = {r.name: r.specifier for r in map(Requirement, requires("sgljit-transformers") or ()) if r.marker}
    if not stated:
        pytest.skip("the metadata of a plain checkout has no extras")
    for name, tested in ADAPTER.engine.items():
        assert stated[name] == Requirement(f"{name}{tested}").specifier


def test_a_layer_of_torch_itself_is_one_too():
    pytest.importorskip("transformers", reason="the adapter does nothing without transformers")
    norm = torch.nn.RMSNorm(8, eps=1e-6)
    assert sgljit_transformers.enable(norm) == {"": "rmsnorm"}
    sgljit_transformers.disable(norm)
    assert "forward" not in vars(norm)
