"""What belongs to the process, to PyTorch and to tvm-ffi is the same after an op was declared and called."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sgljit_core import load_jit

STATE = """
import gc, json, logging, os, random, signal, sys, threading, types, warnings
import importlib_metadata  # it adds a finder of its own to sys.meta_path
import numpy, torch, tvm_ffi
import torch._dynamo.config, torch._functorch.config, torch._inductor.config
from tvm_ffi import core
from tvm_ffi.registry import list_global_func_names

def own(thing):
    # PyTorch imports modules of its own as it needs them, and a namespace of torch.ops is one.
    return {name: id(value) for name, value in vars(thing).items() if not isinstance(value, types.ModuleType)}

def configured(logger):
    return logger.level or logger.handlers or logger.filters or not logger.propagate or logger.disabled

def loggers():
    named = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    return {
        name: [one.level, repr(one.handlers), repr(one.filters), one.propagate, one.disabled]
        for name, one in {**named, "root": logging.root}.items()
        if configured(one) and not name.startswith("sgljit")
    }

def state():
    return {
        "torch.compiler.config": repr(torch.compiler.config.get_config_copy()),
        "torch._inductor.config": repr(torch._inductor.config.get_config_copy()),
        "torch._dynamo.config": repr(torch._dynamo.config.get_config_copy()),
        "torch._functorch.config": repr(torch._functorch.config.get_config_copy()),
        "attributes of torch": [own(one) for one in (torch, torch.ops, torch.library, torch.compiler)],
        "attributes of torch's classes": [own(one) for one in (torch.Tensor, torch.nn.Module, torch.library.Library)],
        "torch": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.get_num_threads(),
                  torch.are_deterministic_algorithms_enabled(), str(torch.get_default_device())],
        "attributes of tvm_ffi": [own(one) for one in (tvm_ffi, core)],
        "attributes of tvm_ffi's classes": [own(one) for one in (tvm_ffi.Module, tvm_ffi.Function, tvm_ffi.Tensor)],
        "global functions": {name: 0 for name in list_global_func_names()},
        "error classes": {name: id(cls) for name, cls in core.ERROR_NAME_TO_TYPE.items()},
        "logging": [loggers(), logging.raiseExceptions, id(logging.getLogRecordFactory()), id(logging.getLoggerClass()),
                    logging.root.manager.disable],
        "warnings": [repr(warnings.filters), id(warnings.showwarning)],
        "environment": [dict(os.environ), os.getcwd()],
        "signals": {int(one): repr(signal.getsignal(one)) for one in signal.valid_signals()},
        "blocked signals": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "import machinery": [sys.path[:], list(map(id, sys.meta_path)), list(map(id, sys.path_hooks))],
        "hooks": [id(sys.excepthook), id(sys.unraisablehook), id(threading.excepthook), id(sys.gettrace()),
                  id(sys.getprofile()), sys.getrecursionlimit(), sys.getswitchinterval()],
        "garbage collector": [gc.isenabled(), gc.get_threshold(), list(map(id, gc.callbacks))],
        "random numbers": [random.getstate(), torch.get_rng_state().tolist(), repr(numpy.random.get_state())],
    }

def changes(before, after):
    return sorted(key for key in before if before[key] != after[key])

def new(what):
    had, has = before[what], state()[what]
    return sorted(name for name in has.keys() | had.keys() if had.get(name) != has.get(name))

torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))  # PyTorch sets itself up at its first use
"""
IMPORT = """
import sgljit_core, sgljit_norm
list(sgljit_core.ops), sgljit_core.ops["norm"], sgljit_norm.rmsnorm, sgljit_core.load_jit, sgljit_core.freeze
"""
USE = """
FAMILY = sgljit_core.KernelFamily("stately", "nowhere")

@FAMILY.op(mutates=("out",), inplace="x")
def put(x: torch.Tensor, out: torch.Tensor | None = None) -> None:
    (x if out is None else out).zero_()

@FAMILY.op(fake=torch.empty_like)
def made(x: torch.Tensor) -> torch.Tensor:
    return x + 1

@FAMILY.op()
def count() -> int:
    return 1

@torch.no_grad()
def use(x, weight):
    y = x + 0
    sgljit_norm.rmsnorm(y, weight)
    put(y)
    return made(y) + count()

x, weight = torch.ones(2, 8), torch.ones(8)
for one in (use, torch.compile(use, fullgraph=True, backend="aot_eager")):
    assert one(x, weight).tolist() == [[2] * 8] * 2
use(x.to("meta"), weight.to("meta"))
torch.ops.sgljit_norm.rmsnorm_(torch.ones(2, 8), weight)
try:
    sgljit_norm.rmsnorm(x, weight[1:])
except sgljit_core.errors.TensorMatchError:
    pass
else:
    raise AssertionError
"""


CHANGES = {
    "torch.compiler.config.cache_key_tag = 'mine'": "torch.compiler.config",
    "torch._inductor.config.fx_graph_cache = False": "torch._inductor.config",
    "torch._dynamo.config.recompile_limit = 3": "torch._dynamo.config",
    "torch.compiler.mine = 1": "attributes of torch",
    "torch.Tensor.mine = 1": "attributes of torch's classes",
    "tvm_ffi.mine = 1": "attributes of tvm_ffi",
    "tvm_ffi.Module.mine = 1": "attributes of tvm_ffi's classes",
    "tvm_ffi.register_global_func('x.y', print)": "global functions",
    "tvm_ffi.register_error('Strange', OSError)": "error classes",
    "logging.basicConfig()": "logging",
    "logging.getLogger('torch').setLevel('DEBUG')": "logging",
    "warnings.simplefilter('ignore')": "warnings",
    "os.environ['X'] = '1'": "environment",
    "signal.signal(signal.SIGUSR1, print)": "signals",
    "sys.meta_path.append(object())": "import machinery",
    "sys.excepthook = print": "hooks",
    "gc.disable()": "garbage collector",
    "random.random()": "random numbers",
    "torch.rand(1)": "random numbers",
}


@pytest.fixture(scope="module")
def found():
    """The changes by our import and use, and then by each line of ``CHANGES``: of one process, as torch is slow."""
    ours = "[imported, changes(before, state()), new('error classes'), new('global functions')]"
    planted = "\n".join(f"before = state()\n{one}\nseen.append(changes(before, state()))" for one in CHANGES)
    script = f"""from __future__ import annotations
{STATE}
before = state()
{IMPORT}
imported = changes(before, state())
{USE}
ours, seen = {ours}, []
{planted}
print(json.dumps([ours, seen]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_each_change_of_the_state_is_seen(found):
    _, seen = found
    assert dict(zip(CHANGES, seen, strict=True)) == {change: [key] for change, key in CHANGES.items()}


@pytest.fixture
def used(found):
    return found[0]


def test_importing_and_listing_changes_nothing(used):
    imported, _, _, _ = used
    assert imported == []


def test_declaring_and_calling_ops_changes_only_what_tvm_ffi_registers(used):
    _, keys, _, _ = used
    assert keys == ["error classes", "global functions"]


def test_what_is_registered_with_tvm_ffi_has_names_of_sgljit_or_of_python(used):
    _, _, classes, functions = used
    assert classes == ["KeyboardInterrupt", "SystemExit", "TensorMatchError", "sgljit.Passing"]
    assert functions
    assert all(name.startswith("sgljit.") for name in functions)


def test_a_loaded_module_has_no_attribute_but_the_functions_that_tvm_ffi_keeps():
    module = load_jit("untouched", cpp_sources="int one() { return 1; }", cpp_wrappers=[("one", "one")])
    assert vars(module) == {}
    assert module.one() == 1
    assert [*vars(module)] == ["one"]
