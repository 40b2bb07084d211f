"""What a process says and counts of its loads and builds."""

from __future__ import annotations

import logging
import re
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import LOAD, artifacts

import sgljit_core
from sgljit_core import errors
from sgljit_core.builds import record
from sgljit_core.plugins import hooks

OBSERVER = """
from sgljit_core import hookimpl
from sgljit_core.plugins import hooks
import sys

@hookimpl
def sgljit_build_finished(build, key, directory, outcome, error):
    print("finished", outcome, len(key), Path(directory).exists(), type(error).__name__)

@hookimpl
def sgljit_loaded(build, key, directory, tier):
    print("loaded", build.label, len(key), Path(directory).exists(), tier)

@hookimpl
def sgljit_event(event, place, reason, size, build):
    print(event, place, reason, size, build and build.label)

hooks.load_plugins()
hooks.manager().register(sys.modules.setdefault("observer", type(sys)("observer")))
"""
OBSERVED = f"""
import sys, types
module = sys.modules['observer'] = types.ModuleType('observer')
module.Path = Path
exec({OBSERVER!r}, module.__dict__)
"""


def events(caplog, name):
    return [record.sgljit for record in caplog.records if record.sgljit["event"] == name]


def test_one_debug_record_for_each_load_with_where_it_came_from(load, cache, caplog, children):
    children.run()
    caplog.set_level(logging.DEBUG, logger="sgljit")
    before = sgljit_core.stats()
    load()
    load("other", flags=("-DVALUE=2",))
    hit, made = events(caplog, "loaded")
    assert (hit["tier"], made["tier"]) == ("cache", "made")
    assert hit["build"] == "number for cpu-x86_64"
    assert made["markers"] == ("number", "other")[-1:] or made["markers"]
    assert {hit["directory"], made["directory"]} == {str(path) for path in artifacts(cache)}
    assert hit["key"] in hit["directory"]
    (finished,) = events(caplog, "build_finished")
    assert finished["outcome"] == "compiled"
    assert finished["directory"] == made["directory"]
    assert finished["key"] == made["key"]
    after = sgljit_core.stats()
    assert after.hits["cache"] - before.hits.get("cache", 0) == 1
    assert after.misses - before.misses == 1
    assert after.builds["compiled"] - before.builds.get("compiled", 0) == 1
    assert after.seconds > before.seconds


def test_a_failed_and_a_private_build_say_so(load, caplog, cache, csrc, monkeypatch, tmp_path):
    caplog.set_level(logging.INFO, logger="sgljit")
    with pytest.raises(errors.CompileError):
        load("broken", flags=("-DVALUE=nothing",))
    (tmp_path / "file").touch()
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(tmp_path / "file"))
    faults = sgljit_core.stats().faults
    load("private")
    assert [event["outcome"] for event in events(caplog, "build_finished")] == ["failed", "private"]
    assert sgljit_core.stats().faults > faults


def test_hooks_hear_of_misses_builds_and_loads(children, cache):
    miss, *rest = children.run(OBSERVED + LOAD).splitlines()
    assert rest == ["loaded number for cpu-x86_64 32 True made", "finished compiled 32 True NoneType", "1"]
    assert re.fullmatch(
        rf"miss {re.escape(str(cache))}/cpu-x86_64/_/number/[0-9a-f]{{32}}  0 number for cpu-x86_64", miss
    )


def test_a_hook_hears_of_a_miss_that_may_not_be_compiled_and_of_no_question(children):
    """It hears of a failure, too, which was met before extensions were loaded."""
    program = f"""
import sgljit_core
from sgljit_core.builds import record
record.survived("artifact_damaged", "/a/place", "it is damaged", directory="/a/place")
{OBSERVED}
sgljit_core.freeze()
def load():
{textwrap.indent(LOAD, "    ")}
print(sgljit_core.why(load).artifact, sgljit_core.stats().misses)
try:
    load()
except sgljit_core.errors.CompileForbiddenError:
    print(sgljit_core.stats().misses)
"""
    _warning, asked, failure, miss, misses = children.run(program).splitlines()
    assert asked == "None 0"
    assert failure == "failure /a/place it is damaged 0 None"
    assert miss.startswith("miss ")
    assert misses == "1"


def test_without_an_extension_that_listens_an_event_is_no_call(monkeypatch):
    called = []
    monkeypatch.setattr(hooks, "_is_wrapper", called.append)
    record.event("refusal", "here", "why")
    assert called == []


def test_plugins_hear_of_each_load_and_event_once_whichever_thread_tells_them(monkeypatch):
    """No event is kept after that: a process may meet one at each call."""
    told = []
    monkeypatch.setattr(record, "_news", [])
    monkeypatch.setattr(record, "_loads", [])
    monkeypatch.setattr(hooks, "tell", lambda hook, key=None, place=None, **_: told.append((hook, key or place)))
    hooks.load_plugins()
    build = SimpleNamespace(label="one", family="", module="one", markers=())

    def loads(thread):
        for i in range(300):
            request = SimpleNamespace(build=build, location=SimpleNamespace(source_key=(thread, i)))
            record.loaded(request, Path("one"), "cache")
            record.event("miss", (thread, i))

    threads = [threading.Thread(target=loads, args=(number,)) for number in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    finally:
        sys.setswitchinterval(interval)
    expected = [(thread, i) for thread in range(8) for i in range(300)]
    assert sorted(told) == [(hook, one) for hook in ("sgljit_event", "sgljit_loaded") for one in expected]
    assert record._news == []
    assert sorted(load["key"] for load in record._loads) == expected
