"""The program that measures the faults of a store sees what each case says that it sees."""

from __future__ import annotations

import importlib.util
import sys

import isolated
import pytest

TIMEOUT = 20.0  # none of these waits for it
QUICK = {
    "A web server": ["no fault", "status 403", "broken off, then resumed", "object of a stranger", "two writers"],
    "A directory": ["no fault", "not mounted"],
}


@pytest.fixture(scope="module")
def faults():
    spec = importlib.util.spec_from_file_location("remote_faults", isolated.ROOT / "bench/remote_faults.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("store", "name"), [(store, name) for store, names in QUICK.items() for name in names])
def test_a_case_is_taken_or_not_as_it_says(faults, tmp_path, store, name):
    case = faults.STORES[store][name]
    found = faults.tried(case, TIMEOUT, tmp_path)
    assert found["taken"] == case.is_taken
    assert found["right"]
    assert (len(found["said"]) == 0) == case.is_taken
    assert max(found["seconds"]) < TIMEOUT
    assert found["requests"] > 0
