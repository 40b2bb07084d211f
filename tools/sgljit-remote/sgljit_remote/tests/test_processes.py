"""Whole processes: what is compiled on one machine runs on another that has no compiler."""

from __future__ import annotations

import json
import sys

import pytest

from sgljit_remote import index, objects, signing
from sgljit_remote.objects import Artifact

from . import served
from .conftest import files

LOAD = """
import json, logging, sys, time
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import torch, tvm_ffi
import sgljit_core
from sgljit_core import load_jit
values = []
before = set(sys.modules)
for number in map(int, sys.argv[1].split(",")):
    source = f"int number() {{ return {number}; }}"
    start = time.perf_counter()
    values.append(load_jit("number", str(number), cpp_sources=source, cpp_wrappers=[("number", "number")]).number())
stats = sgljit_core.stats()
found = {"values": values, "hits": stats.hits, "builds": stats.builds}
found["modules"] = [name for name in sys.modules if name.startswith(("sgljit_remote", "cryptography", "fsspec"))]
found["new"] = sorted(set(sys.modules) - before)
print(json.dumps(found))
"""
AFTER_A_FAMILY = """
import threading
dir(sgljit_core.ops["norm"])
for thread in threading.enumerate():
    if thread.name == "sgljit-remote-ready":
        thread.join()
"""
FROZEN = LOAD.replace("values = []", "values = []\nsgljit_core.freeze('error')")
FORKED = """
import os, sys
import torch
from sgljit_core import load_jit
def load(number):
    source = f"int number() {{ return {number}; }}"
    return load_jit("number", str(number), cpp_sources=source, cpp_wrappers=[("number", "number")]).number()
load(1)
if (child := os.fork()) == 0:
    os._exit(load(2))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FILL = """
import os, sys
import torch, tvm_ffi
from sgljit_core import load_jit
start, starting = os.pipe()
children = []
for number in range(8):
    if child := os.fork():
        children.append(child)
        continue
    os.close(starting)
    os.environ["SGLJIT_CACHE_DIR"] += str(number)
    os.read(start, 1)
    for value in map(int, sys.argv[1].split(",")):
        source = f"int number() {{ return {value}; }}"
        load_jit("number", str(value), cpp_sources=source, cpp_wrappers=[("number", "number")])
    break
else:
    os.close(starting)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
KILLED = f"{LOAD}\nimport os\nsys.stdout.flush()\nos._exit(0)"
FLEET = """
import json, os, sys
import torch, tvm_ffi
import sgljit_core
from sgljit_core import load_jit
start, starting = os.pipe()
answers, answering = os.pipe()
children = []
for number in range(8):
    if child := os.fork():
        children.append(child)
        continue
    os.close(starting)
    os.environ["SGLJIT_CACHE_DIR"] += str(number)
    os.read(start, 1)
    values = []
    for value in range(1, 6):
        source = f"int number() {{ return {value}; }}"
        values.append(load_jit("number", str(value), cpp_sources=source, cpp_wrappers=[("number", "number")]).number())
    stats = sgljit_core.stats()
    os.write(answering, f"{json.dumps([values, stats.hits, stats.builds])}\\n".encode())
    os._exit(0)
os.close(starting)
os.close(answering)
print(open(answers).read())
"""
EARLY = """
import json, os, signal, sys, threading, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "cryptography.exceptions":
            importing.set()
            time.sleep(0.5)
importing = threading.Event()
sys.meta_path.insert(0, Slow())
from sgljit_core import ops
ops["norm"]
found = [importing.wait(20) or [thread.name for thread in threading.enumerate()]]
if (child := os.fork()) == 0:
    signal.alarm(20)
    import cryptography.exceptions
    os._exit(0)
found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps([*found, "sgljit_remote.remote" in sys.modules]))
"""
NO_COMPILER = {"PATH": "", "SGLJIT_CXX": "none"}


@pytest.fixture
def published(run, server, key):
    """A process has compiled two artifacts and published them, signed; the settings of whoever reads them."""
    keys = {"SGLJIT_TRUSTED_KEYS": str(key.parent / "trusted"), "SGLJIT_SIGNING_KEY": str(key)}
    output, errors = run(LOAD, "1,2", cache="first", SGLJIT_REMOTE_MODE="readwrite", **keys)
    assert json.loads(output)["builds"] == {"compiled": 2}
    assert errors == ""
    objects = [name for name in server.objects if name.endswith(".zip") and "/archives/" not in name]
    assert len(objects) == 4  # each for its toolchain, and for machines without one
    for name in server.objects.keys() - objects:  # leases, and the archive, as if the process had been killed
        del server.objects[name]
    server.requests.clear()
    return {"SGLJIT_TRUSTED_KEYS": keys["SGLJIT_TRUSTED_KEYS"]}


def test_a_machine_without_a_compiler_runs_what_another_published(run, server, published, tmp_path):
    output, errors = run(LOAD, "1,2", cache="second", SGLJIT_JIT="error", **NO_COMPILER, **published)
    found = json.loads(output)
    assert found["values"] == [1, 2]
    assert found["hits"] == {"remote": 2}
    assert found["builds"] == {}
    assert errors == ""
    assert len(server.requests) == 3
    assert "fsspec" not in found["modules"]  # which takes 10 ms, and web servers do not need
    assert files(tmp_path / "second") == files(tmp_path / "first")
    server.requests.clear()
    output, _ = run(LOAD, "1,2", cache="second", **NO_COMPILER, **published)
    assert json.loads(output)["hits"] == {"cache": 2}
    assert server.requests == []


def test_the_first_artifact_imports_little(run, published):
    output, _ = run(LOAD, "1", cache="second", **published)
    new = json.loads(output)["new"]
    assert "cryptography.hazmat.primitives.serialization" not in new  # 4 ms, which reading a public key can do without
    assert "packaging.requirements" not in new  # 8 ms
    assert sys.version_info < (3, 11) or "encodings.cp437" not in new  # 0.4 ms, for names of files that are ASCII
    assert len(new) <= 70, new  # 69 in an environment of wheels


def test_behind_a_family_the_first_artifact_imports_nothing(run, published):
    """The thread that begins with a family has imported all: that takes longer than to bring an artifact."""
    code = LOAD.replace("before = ", f"{AFTER_A_FAMILY}before = ")
    output, _ = run(code, "1", cache="second", **published)
    found = json.loads(output)
    assert found["hits"] == {"remote": 1}
    # The core looks for a compiler, and Python 3.10 imports a codec for names in zip files.
    assert [name for name in found["new"] if not name.startswith(("sgljit_core.", "encodings."))] == []


def test_code_of_a_stranger_is_not_run_but_compiled_here(run, server, published, tmp_path):
    signing.new_key(tmp_path / "stranger")
    stranger = signing.private_key(tmp_path / "stranger")
    for name, content in server.objects.items():
        (found,) = objects.unpack(content, ()).artifacts
        server.objects[name] = objects.pack([Artifact(found.manifest, found.payload)], stranger)
    server.requests.clear()
    output, errors = run(LOAD, "1", cache="second", **published)
    assert json.loads(output)["values"] == [1]
    assert json.loads(output)["builds"] == {"compiled": 1}
    assert {request.partition(" ")[0] for request in server.requests} == {"GET"}  # a remote is read alone by default
    assert "is refused and not used: " in errors
    assert "it is signed by none of the keys of SGLJIT_TRUSTED_KEYS" in errors


def test_without_a_remote_nothing_of_it_is_imported(run, server):
    output, _ = run(LOAD, "1", cache="second", SGLJIT_REMOTE="")
    loaded = json.loads(output)["modules"]
    assert {name.rpartition(".")[2] for name in loaded} <= {"sgljit_remote", "_version", "config", "handed", "plugin"}
    assert server.requests == []


def test_a_hit_of_the_cache_imports_no_plugin(run, server, tmp_path):
    run(LOAD, "1", cache="second", SGLJIT_REMOTE="")
    output, _ = run(LOAD, "1", cache="second")
    assert json.loads(output)["modules"] == []
    assert server.requests == []


def test_the_first_family_lets_a_remote_get_ready_which_asks_nothing(run, server, published):
    output, errors = run(EARLY, cache="second", **published)
    assert json.loads(output) == [True, 0, True]  # the child finds no module that a thread of its parent imports
    assert errors == ""
    assert server.requests == []


def test_the_first_family_tells_that_a_remote_cannot_be_used(run, server, tmp_path):
    code = 'from sgljit_core import ops\nops["norm"]'
    _, errors = run(code, cache="second", SGLJIT_TRUSTED_KEYS=str(tmp_path / "missing"))
    assert errors.startswith(f"the key {tmp_path}/missing cannot be read (")
    assert errors.count("\n") == 1
    assert server.requests == []


def test_after_the_warm_up_nothing_is_asked(run, server, published):
    _, errors = run(FROZEN, "1", cache="second", status=1, **published)
    assert "CompileForbiddenError" in errors
    assert server.requests == []


def test_a_question_why_asks_nothing(run, server, published):
    code = """
from sgljit_core import load_jit, why
print(why(lambda: load_jit("n", cpp_sources="int n() { return 1; }", cpp_wrappers=[("n", "n")])).artifact)
"""
    output, _ = run(code, cache="second", **published)
    assert output == "None\n"
    assert server.requests == []


def test_a_remote_that_is_down_is_one_warning_and_the_local_compiler(run, server):
    server.fault = served.status(503)
    at_once = "from sgljit_remote import asking\nasking._FIRST_PAUSE = 60\n"  # a pause beyond the limit: one attempt
    output, errors = run(at_once + LOAD, "1,2", cache="second", SGLJIT_REMOTE_UNSIGNED="1")
    assert json.loads(output)["values"] == [1, 2]
    assert json.loads(output)["builds"] == {"compiled": 2}
    assert errors.count("cannot be used now: it answers 503") == 1
    assert len(errors.splitlines()) == 1


def test_a_setting_that_cannot_be_read_is_a_warning(run, server):
    output, errors = run(LOAD, "1", cache="second", SGLJIT_REMOTE_MODE="maybe")
    assert json.loads(output)["values"] == [1]
    assert errors == "the remote is not used: SGLJIT_REMOTE_MODE must be one of read, readwrite; got 'maybe'\n"


def test_a_forked_child_asks_for_itself(run, published):
    output, errors = run(FORKED, cache="second", **NO_COMPILER, **published)
    assert (output, errors) == ("2\n", "")


@pytest.mark.slow
def test_of_a_family_one_archive_is_asked_for(run, server, tmp_path):
    run(LOAD, "1,2,3", cache="first", SGLJIT_REMOTE="")
    variables = {"SGLJIT_REMOTE_UNSIGNED": "1"}
    command = "from sgljit_remote.cli import main; main(['push'])"
    run(command, cache="first", **variables)
    server.requests.clear()
    output, _ = run(LOAD, "1,2,3", cache="second", **NO_COMPILER, **variables)
    assert json.loads(output)["hits"] == {"remote": 1, "cache": 2}
    assert server.requests[0] == f"GET /{index.NAME}"
    assert len(server.requests) == 2


@pytest.mark.slow
def test_eight_machines_with_empty_disks_ask_for_an_index_and_an_archive_each(run, server, key):
    keys = {"SGLJIT_TRUSTED_KEYS": str(key.parent / "trusted"), "SGLJIT_SIGNING_KEY": str(key)}
    run(LOAD, "1,2,3,4,5", cache="first", SGLJIT_REMOTE="")
    run("from sgljit_remote.cli import main; main(['push'])", cache="first", **keys)
    server.requests.clear()
    output, errors = run(FLEET, cache="fleet", **NO_COMPILER, **keys)
    assert errors == ""
    assert [json.loads(line) for line in output.split("\n") if line] == [
        [[1, 2, 3, 4, 5], {"remote": 1, "cache": 4}, {}] for _ in range(8)
    ]
    archive = next(name for name in server.objects if "/archives/" in name)
    assert sorted(server.requests) == [f"GET {archive}"] * 8 + [f"GET /{index.NAME}"] * 8


@pytest.mark.slow
def test_eight_machines_fill_a_store_whose_archive_the_ninth_takes(run, server, key):
    keys = {"SGLJIT_TRUSTED_KEYS": str(key.parent / "trusted"), "SGLJIT_SIGNING_KEY": str(key)}
    ended, errors = run(FILL, "1,2,3,4,5", cache="fleet", SGLJIT_REMOTE_MODE="readwrite", **keys)
    assert (json.loads(ended), errors) == ([0] * 8, "")
    server.requests.clear()
    output, errors = run(LOAD, "1,2,3,4,5", cache="ninth", **NO_COMPILER, **keys)
    assert json.loads(output)["hits"] == {"remote": 1, "cache": 4}
    assert errors == ""
    assert server.requests == [f"GET /{index.NAME}", "GET /sgljit-1/archives/cpu-x86_64._.zip"]


def test_a_process_that_is_killed_loses_the_archive_alone(run, server):
    variables = {"SGLJIT_REMOTE_UNSIGNED": "1", "SGLJIT_REMOTE_MODE": "readwrite"}
    run(KILLED, "1", cache="first", **variables)
    assert [name for name in server.objects if "/archives/" in name or name.endswith("index.json")] == []
    output, _ = run(LOAD, "1", cache="second", **variables, **NO_COMPILER)
    assert json.loads(output)["hits"] == {"remote": 1}
