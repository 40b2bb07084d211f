"""A plugin that is upgraded: what was compiled or exported with the earlier release."""

from __future__ import annotations

import shutil

import pytest
from kit import python
from plugin_on_disk import install

OPS = """\
import torch
from .plugin import FAMILY

@FAMILY.op({declaration})
def increase(x: torch.Tensor, y: torch.Tensor) -> {returns}:
    {body}
"""
# Both releases write y. The first says that it writes x: a graph then reads y before it was written.
WRONG_MUTATES = {"declaration": 'mutates=("x",)', "returns": "None", "body": "y.copy_(x + 1)"}
RIGHT_MUTATES = {**WRONG_MUTATES, "declaration": 'mutates=("y",)'}
# The fake of the first release says that the result is contiguous: a graph then takes its strides for granted.
WRONG_FAKE = {
    "declaration": "fake=lambda x, y: torch.empty_like(x).contiguous()",
    "returns": "torch.Tensor",
    "body": "return (x + y).t().contiguous().t()",
}
RIGHT_FAKE = {**WRONG_FAKE, "declaration": "fake=lambda x, y: torch.empty_like(x).t().contiguous().t()"}

COMPILED = """
from threading import Thread
import sys; sys.path.insert(0, sys.argv[1])
import torch
from sgljit_core import ops
increase = ops["upgraded"].increase

def model(x):
    y = torch.zeros_like(x)
    made = increase(x, y)
    return (y if made is None else made.t().reshape(-1)) * 2

x = torch.arange(12.0).reshape(3, 4)

@torch.no_grad()
def compare():
    try:
        print("equal" if torch.equal(torch.compile(model)(x), model(x)) else "different")
    except AssertionError:  # the graph checks strides
        print("different")

# As a server compiles: torch.compile's settings are the compiling thread's own.
compiling = Thread(target=compare)
compiling.start()
compiling.join()
counters = torch._dynamo.utils.counters
print(counters["inductor"]["fxgraph_cache_hit"], "and", counters["aot_autograd"]["autograd_cache_hit"], "hits")
"""


@pytest.fixture
def release(tmp_path):
    def write(version, texts):
        shutil.rmtree(tmp_path / "site", ignore_errors=True)
        package = install(tmp_path / "site", "acme-upgraded", "upgraded", version=version)
        (package / "ops.py").write_text(OPS.format(**texts))
        return tmp_path / "site"

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "right", "autograd_cache"), [(WRONG_MUTATES, RIGHT_MUTATES, 0), (WRONG_FAKE, RIGHT_FAKE, 1)]
)
def test_a_graph_that_was_compiled_with_a_wrong_declaration_is_not_used_after_the_upgrade(
    release, tmp_path, wrong, right, autograd_cache
):
    """Neither by the cache of Inductor alone, nor with AOTAutograd's before it."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs"), "TORCHINDUCTOR_AUTOGRAD_CACHE": str(autograd_cache)}
    before = python(COMPILED, str(release("1.0.0", wrong)), **cache)
    assert before.stdout == "different\n0 and 0 hits\n", before.stderr
    again = python(COMPILED, str(tmp_path / "site"), **cache)
    assert again.stdout == f"different\n1 and {autograd_cache} hits\n", again.stderr
    after = python(COMPILED, str(release("1.0.1", right)), **cache)
    assert after.stdout == "equal\n0 and 0 hits\n", after.stderr


@pytest.mark.slow
def test_a_graph_that_names_the_op_in_torch_ops_fails_after_an_upgrade_and_gives_no_wrong_result(release, tmp_path):
    """AOTAutograd finds such a graph by the op's name alone, and the graph calls an overload that is gone."""
    by_name = "ops['upgraded'].increase; increase = torch.ops.sgljit_upgraded.increase"
    code = COMPILED.replace('ops["upgraded"].increase', by_name)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs")}
    before = python(code, str(release("1.0.0", WRONG_FAKE)), **cache)
    assert before.stdout == "different\n0 and 0 hits\n", before.stderr
    after = python(code, str(release("1.0.1", RIGHT_FAKE)), **cache)
    assert after.stdout == "1 and 1 hits\n"
    assert "The underlying op of 'sgljit_upgraded.increase' has no overload name 'v_" in after.stderr


EXPORT = """
import sys; sys.path.insert(0, sys.argv[1])
import torch
from sgljit_core import ops
increase = ops["upgraded"].increase

class Model(torch.nn.Module):
    def forward(self, x, y):
        increase(x, y)
        return y * 2

program = torch.export.export(Model(), (torch.arange(4.0), torch.zeros(4)))
torch.export.save(program, sys.argv[2])
"""
LOADED = """
import sys; sys.path.insert(0, sys.argv[1])
import torch
import sgljit_core
{before}
program = torch.export.load(sys.argv[2])
print(program.module()(torch.arange(4.0), torch.zeros(4)).tolist())
"""


@pytest.mark.slow
def test_an_exported_program_is_loaded_in_a_fresh_process_and_after_an_upgrade(release, tmp_path):
    program = str(tmp_path / "program.pt2")
    exported = python(EXPORT, str(release("1.0.0", RIGHT_MUTATES)), program)
    assert exported.returncode == 0, exported.stderr
    site = str(release("1.1.0", RIGHT_MUTATES))
    loaded = python(LOADED.format(before="sgljit_core.register_all()"), site, program)
    assert loaded.stdout == "[2.0, 4.0, 6.0, 8.0]\n", loaded.stderr
    named = python(LOADED.format(before="sgljit_core.register_all('upgraded')"), site, program)
    assert named.stdout == loaded.stdout, named.stderr
    unregistered = python(LOADED.format(before=""), site, program)
    assert unregistered.returncode != 0
    assert "sgljit_upgraded" in unregistered.stderr


@pytest.mark.slow
def test_an_exported_program_is_refused_by_a_release_with_another_schema(release, tmp_path):
    program = str(tmp_path / "program.pt2")
    exported = python(EXPORT, str(release("1.0.0", WRONG_MUTATES)), program)
    assert exported.returncode == 0, exported.stderr
    code = LOADED.format(before="sgljit_core.register_all()")
    loaded = python(code, str(release("1.1.0", RIGHT_MUTATES)), program)
    assert loaded.returncode != 0
    assert "sgljit_upgraded.increase.v_" in loaded.stderr


BROKEN = """
import sys; sys.path[:0] = sys.argv[1:]
import torch
import sgljit_core
sgljit_core.register_all()
torch.ops.sgljit_upgraded.increase(torch.ones(1), torch.ones(1))
try:
    sgljit_core.register_all("broken")
except sgljit_core.errors.PluginLoadError as error:
    print("refused:", error)
"""


def test_a_family_that_cannot_be_loaded_is_reported_and_does_not_keep_others_from_being_registered(
    release, tmp_path, script
):
    install(tmp_path / "other", "acme-broken", "broken", plugin="raise RuntimeError('no luck')")
    done = script(BROKEN, str(release("1.0.0", RIGHT_MUTATES)), str(tmp_path / "other"))
    assert done.stdout.startswith("refused: plugin acme-broken 1.2.3"), (done.stdout, done.stderr)
    assert "the ops of broken are not registered: plugin acme-broken 1.2.3" in done.stderr
    assert "no luck" in done.stderr
