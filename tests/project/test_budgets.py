"""What a warm start may cost, in counts: a time on a busy machine is none.

Each child does one step with a full cache. Counted are the distributions' modules that it imports, the calls of our own
Python functions, those of them that lead from one of our files to another, and the calls of the operating system.
What Python itself does at an import is left out, as it differs between releases.

docs/architecture.md quotes these numbers ("Budgets"). A number that falls is written down there and here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from kit import Children

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"

COUNTING = """
import json, os, sys

def counted(step):
    counts = {"modules": 0, "calls": 0, "moves": 0, "system": 0}

    def count(frame, event, argument):
        code = frame.f_code
        if event == "call" and is_ours(code):
            counts["calls"] += 1
            caller = frame.f_back and frame.f_back.f_code
            counts["moves"] += is_ours(caller) and caller.co_filename != code.co_filename
        elif event == "c_call" and getattr(argument, "__module__", "") in ("posix", "_io", "io", "fcntl"):
            counts["system"] += is_of_system(argument) and not code.co_filename.startswith("<frozen importlib")

    def is_ours(code):  # without bodies of modules, what Python 3.12 has inlined, and annotations that 3.14 evaluates
        if code is None or code.co_name == "__annotate__":
            return False
        return "sgljit_" in code.co_filename and code.co_name[0] != "<"

    def is_of_system(function):  # and not a function of Python's that turns one name into another
        return not function.__name__.startswith(("fspath", "_path_", "text_encoding"))

    before = set(sys.modules)
    sys.setprofile(count)
    result = step()
    sys.setprofile(None)
    new = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
    counts["modules"] = sum(name.partition(".")[0] in new for name in set(sys.modules) - before)
    found[step.__name__] = counts
    return result

found = {}
"""
IMPORT = """
def importing():
    import sgljit_core
counted(importing)
"""
LOAD = """
import torch, tvm_ffi
from sgljit_core import load_jit

def load():
    return load_jit("add", cpp_files=[sys.argv[1]], cpp_wrappers=[("add", "add")])
counted(load)
"""
CALL = """
import torch, tvm_ffi
from sgljit_core import ops
len(ops)  # reads the metadata of all distributions, whose number is this environment's
x, weight = torch.randn(1, 64), torch.ones(64)

def look_up():
    return ops["norm"].rmsnorm
op = counted(look_up)

def first_call():
    op(x, weight)
counted(first_call)

def later_call():
    op(x, weight)
counted(later_call)
"""
# By step: modules, calls, moves, calls of the operating system.
BUDGETS = {
    "importing": (2, 1, 0, 0),
    "load": (0, 254, 34, 217),
    "look_up": (11, 464, 56, 9),
    "first_call": (22, 577, 69, 649),
    "later_call": (0, 1, 0, 0),
}
KINDS = ("modules", "calls", "moves", "system")


@pytest.fixture(scope="module")
def counts(_server, private_cache):
    with tempfile.TemporaryDirectory() as directory:  # each directory on the way to a cache is checked: it is short
        yield measured(Path(directory), private_cache)


def measured(directory, built):
    source = directory / "csrc" / "add.cpp"
    source.parent.mkdir()
    source.write_text("#include <cstdint>\nstatic int64_t add(int64_t a, int64_t b) { return a + b; }\n")
    (directory / "cache").mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SGLJIT_", "PYTHON", "COVERAGE"))},
        "SGLJIT_CACHE_DIR": str(directory / "cache"),
    }
    # The cache is filled first, with the norm that other tests of this run use, too.
    children = Children(source.parent, directory)
    children.run(f"import sys\n{COUNTING}{CALL}", {**environment, "SGLJIT_CACHE_DIR": str(built)})
    (target,) = (path.parent for path in built.glob("cpu-*/norm"))
    shutil.copytree(target / "norm", directory / "cache" / target.name / "norm")
    shutil.copy(built / "CACHEDIR.TAG", directory / "cache")
    # The scan of a file that is younger than two seconds is not remembered.
    time.sleep(max(0, source.stat().st_ctime + 2.5 - time.time()))
    fill = f"import sys\nsys.argv = ['-c', {str(source)!r}]\n{COUNTING}{CALL}{LOAD}"
    children.run(fill, environment)
    found = {}
    for code in (IMPORT, CALL, LOAD):
        command = [sys.executable, "-c", f"{COUNTING}{code}\nprint(json.dumps(found))", str(source)]
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=True)
        found |= json.loads(done.stdout)
    return found


@pytest.mark.parametrize("step", BUDGETS)
def test_a_step_keeps_its_budget(counts, step):
    budget = dict(zip(KINDS, BUDGETS[step], strict=True))
    over = {kind: f"{counts[step][kind]} > {most}" for kind, most in budget.items() if counts[step][kind] > most}
    assert not over, f"{step}: {over}; docs/architecture.md quotes these budgets"


@pytest.mark.parametrize("step", BUDGETS)
def test_the_page_quotes_the_budget(step):
    line = rf"^\| {step.replace('_', ' ')} \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$"
    quoted = re.search(line, PAGE.read_text(), re.MULTILINE)
    assert quoted, f"docs/architecture.md has no line for {step}"
    assert tuple(map(int, quoted.groups())) == BUDGETS[step]


def test_the_counter_counts(tmp_path):
    """A step of a known cost."""
    module = tmp_path / "sgljit_known.py"
    module.write_text("import os\ndef outer():\n    os.stat('/'); inner()\ndef inner(): open('/dev/null').close()\n")
    step = "def step():\n    import sgljit_known\n    sgljit_known.outer()"
    code = f"{COUNTING}\nsys.path.insert(0, {str(tmp_path)!r})\n{step}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\ncounted(step)\nprint(json.dumps(found))"],
        capture_output=True,
        text=True,
        check=True,
    )
    known = Counter(json.loads(done.stdout)["step"])
    assert (known["modules"], known["calls"], known["moves"]) == (1, 2, 0)
    assert known["system"] >= 2
