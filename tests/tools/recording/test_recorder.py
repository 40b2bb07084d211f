"""Recording: nothing is compiled but host parts, wrong calls are errors, and what was noted builds with its checks."""

from __future__ import annotations

import re
import sys

import kit
import plugin_on_disk
import pytest

from sgljit_core import TOKENS, TensorSpec, errors
from sgljit_core.families import loading
from sgljit_core.jit.kernels import build
from sgljit_core.plugins import discovery
from sgljit_tools.errors import RecordingError
from sgljit_tools.recording import launches
from sgljit_tools.recording.recorder import Recording, record
from sgljit_tools.recording.tensors import Place
from sgljit_tools.testing import family_checks
from sgljit_tools.testing.family_checks import compiles, dry_run
from sgljit_tools.testing.subject import Fault

OPS = """
import torch
from .plugin import FAMILY
@FAMILY.op(mutates=("out",), %s)
def twice(x: torch.Tensor, out: torch.Tensor) -> None:
    "In C++."
def calls(model):
    from sgljit_core import TOKENS, TensorSpec
    yield {"x": TensorSpec((TOKENS, %s), "float16"), "out": TensorSpec((TOKENS, 64), "float16")}
def samples(device):
    yield {name: torch.ones(2, 64, dtype=torch.float16, device=device) for name in ("x", "out")}
"""
FUNCTOR = """
#pragma once
#include <sgl_kernel/row_program.h>
namespace recorded {
struct Twice {
  SGL_OPERANDS(x, out)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map([](float v) { return 2 * v; }, row[x]));
  }
};
}
"""
HOST = """
#include "twice.h"
#include <sgl_kernel/export.h>
namespace {
using F = recorded::Twice;
host::RowProgram<F> program{"twice.h"};
void twice(host::TensorView x, host::TensorView out) {
  program({}, F::x = host::rows("x", x), F::out = host::rows("out", out));
}
}
SGL_EXPORT(twice, (twice))
"""
PLUGIN = """
from sgljit_core import KernelFamily
FAMILY = KernelFamily(name="recorded", package="sgljit_recorded", host="twice.cpp")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    def install(columns: int = 64, calls: str = 'calls="sgljit_recorded.ops:calls"', host: str = HOST) -> str:
        package = plugin_on_disk.install(tmp_path, "sgljit-recorded", "recorded", plugin=PLUGIN, attribute=":FAMILY")
        (package / "ops.py").write_text(OPS % (calls, columns))
        (package / "csrc" / "twice.h").write_text(FUNCTOR)
        (package / "csrc" / "twice.cpp").write_text(host)
        monkeypatch.syspath_prepend(tmp_path)
        discovery.rescan()
        return "recorded"

    yield install
    for module in [module for module in sys.modules if module.startswith("sgljit_recorded")]:
        del sys.modules[module]
    monkeypatch.undo()
    discovery.rescan()


def names(recorded: Recording) -> list[str]:
    """What was noted, without the template arguments after the functor."""
    return [re.sub(r", .*>", ">", wanted.spec.label.partition(" of ")[0]) for wanted in recorded.wanted]


def test_the_kernels_of_the_device_and_the_loops_of_the_cpu_are_noted(install):
    recorded = record([install()], cuda_arch="9.0", on_cpu=True, tokens=(1, 300))
    assert names(recorded) == [
        "recorded.recorded for cpu-x86_64",
        "recorded.device.row_program_without_fields<recorded::Twice> for sm_90a",
        "recorded.host.cpu.row_program<recorded::Twice> for cpu-x86_64",
    ]


@pytest.mark.slow
def test_a_declared_call_that_the_op_refuses_is_an_error_with_the_call(install):
    with pytest.raises(RecordingError, match=r"(?s)recorded\.twice: the call that it declares raises .*\(-1, 32\)"):
        record([install(columns=32)], cuda_arch=None, on_cpu=True, tokens=(1,))


CUDA_ALONE = HOST.replace(
    "  program(",
    """  host::TensorMatcher({-1, -1}).with_dtype<__half>().with_device<kDLCUDA>().verify(x, "x");
  program(""",
)


@pytest.mark.slow
@pytest.mark.parametrize("calls", ['calls="sgljit_recorded.ops:calls"', 'samples="sgljit_recorded.ops:samples"'])
def test_an_op_for_cuda_alone_is_recorded_there(install, calls):
    package = install(calls=calls, host=CUDA_ALONE)
    recorded = record([package], cuda_arch="9.0", on_cpu=True, tokens=(1,))
    assert names(recorded) == [
        "recorded.recorded for cpu-x86_64",
        "recorded.device.row_program_without_fields<recorded::Twice> for sm_90a",
    ]
    assert recorded.stopped == ()


@pytest.mark.slow
def test_an_op_without_calls_is_named(install):
    recorded = record([install(calls="")], cuda_arch="9.0", on_cpu=True)
    assert recorded.stopped == (("recorded", "twice has neither samples nor calls"),)


@pytest.mark.slow
def test_what_was_noted_is_compared_with_what_the_host_part_passes(install):
    loop = record([install()], cuda_arch=None, on_cpu=True, tokens=(1,)).wanted[-1]
    build(loop)
    with pytest.raises(errors.SignatureError, match=r"host::cpu::row_program<.*> of recorded/twice\.h does not take"):
        build(loop._replace(signature="N3sgl9signatureIFviEEE"))


def test_tensors_have_their_shapes_and_strides_and_no_common_memory():
    place = Place()
    spec = TensorSpec((TOKENS, 3, 8), "bfloat16")
    view = TensorSpec((TOKENS, 8), "float32", strides=(100, 1), offset=4)
    first, second = place.tensor(spec, "cpu"), place.tensor(view, "cpu")
    a, b = first.handed_over(), second.handed_over()
    for tokens in (1, 7, 16384):
        first.set_tokens(tokens)
        second.set_tokens(tokens)
        assert (tuple(a.shape), tuple(a.strides)) == ((tokens, 3, 8), (24, 8, 1))
        assert (tuple(b.shape), tuple(b.strides)) == ((tokens, 8), (100, 1))
    assert b.data_ptr() - a.data_ptr() >= 16384 * 24 * 2
    assert b.data_ptr() % 512 == 16
    place.clear()
    third = place.tensor(spec, "cpu")
    assert third.handed_over().data_ptr() == a.data_ptr()


def test_a_tensor_that_cannot_be_described_is_refused():
    with pytest.raises(ValueError, match="pass strides where TOKENS is not the first dimension"):
        TensorSpec((8, TOKENS), "float32")
    with pytest.raises(RecordingError, match="unknown dtype 'float33'; expected such as 'float16'"):
        Place().tensor(TensorSpec((8,), "float33"), "cpu")


@pytest.mark.slow
def test_nothing_is_imported_from_the_working_directory(install, tmp_path, monkeypatch):
    family = install()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "pickle.py").write_text("raise SystemExit('the code of somebody else')\n")
    monkeypatch.chdir(tmp_path / "shared")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert record([family], cuda_arch="9.0", on_cpu=False, tokens=(1,)).wanted


def test_a_missing_compiler_is_the_error_that_says_so(install, monkeypatch):
    family = install()
    monkeypatch.setenv("SGLJIT_CXX", "/no/such/compiler")
    with pytest.raises(errors.SgljitError, match="/no/such/compiler"):
        record([family], cuda_arch="9.0", on_cpu=False, tokens=(1,), keep=False)


def test_a_driver_that_does_not_compile_is_an_error_with_what_the_compiler_says(tmp_path, monkeypatch):
    source = tmp_path / "broken.cpp"
    source.write_text("#error nothing here\n")
    monkeypatch.setattr(launches, "_DRIVER", source)
    with pytest.raises(RecordingError, match=r"(?s)driver of a recording cannot be compiled:\n.*#error nothing here"):
        launches.compiled_driver("9.0", str(tmp_path))


def test_a_tensor_without_dimensions_has_no_strides():
    scalar = Place().tensor(TensorSpec((), "float32"), "cpu")
    tensor = scalar.handed_over()
    assert (tuple(tensor.shape), tuple(tensor.strides)) == ((), ())


BODY = """
import torch
from .plugin import FAMILY
def module(device):
    if device.type == "cuda":
        return FAMILY.load_jit("twice", cuda_files=["twice.cu"], cuda_wrappers=[("twice", "twice")])
    return FAMILY.load_jit("twice", cpp_files=["twice.cpp"], cpp_wrappers=[("twice", "twice")])
def samples(device):
    yield {"x": torch.ones(2, 64, device=device)}
@FAMILY.op(exports=None, fake=torch.empty_like, samples="sgljit_recorded.ops:samples")
def twice(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32 or x.device.type not in ("cpu", "cuda") or x.is_cuda != (x.device.type == "cuda"):
        raise ValueError(f"x is {x.dtype} on {x.device}")
    parts = torch.cat([torch.empty_like(x), x.new_zeros(x.shape)])
    out = torch.empty(x.shape, dtype=x.dtype%s)
    assert parts.is_cuda == x.is_cuda and (2 * x).is_cuda == x.is_cuda and not torch.empty(1).is_cuda
    module(x.device).twice(x, out)
    return out
"""


@pytest.mark.slow
def test_a_body_in_python_gets_tensors_on_a_device_that_is_not_there(install, tmp_path):
    name = install()
    (tmp_path / "sgljit_recorded" / "ops.py").write_text(BODY % ", device=x.device")
    recorded = record([name], cuda_arch="9.0", on_cpu=True, samples=True)
    assert recorded.stopped == ()
    assert names(recorded) == ["recorded.twice for sm_90a", "recorded.twice for cpu-x86_64"]
    assert [wanted.spec.cuda_files for wanted in recorded.wanted] == [("twice.cu",), ()]


@pytest.mark.slow
def test_a_body_in_python_that_makes_its_result_on_the_cpu_is_an_error(install, tmp_path, monkeypatch):
    name = install()
    built = []
    monkeypatch.setattr(family_checks, "parallel_compile", built.extend)
    (tmp_path / "sgljit_recorded" / "ops.py").write_text(BODY % ", device=x.device")
    compiles(loading.load(name))
    assert len(built) == 1
    (tmp_path / "sgljit_recorded" / "ops.py").write_text(BODY % "")
    text = "twice gets tensors on CUDA, and returns one on the CPU: pass device="
    with pytest.raises(RecordingError, match=text):
        record([name], cuda_arch="9.0", on_cpu=True, samples=True)
    compiles(loading.load(name))  # of the CPU there is nothing wrong
    assert len(built) == 2
    with pytest.raises(Fault, match=text):
        dry_run(loading.load(name))


@pytest.mark.slow
def test_an_error_of_a_body_in_python_stops_its_calls(install, tmp_path):
    name = install()
    text = (BODY % ", device=x.device").replace("    parts", "    raise ValueError('no such size')\n    parts")
    (tmp_path / "sgljit_recorded" / "ops.py").write_text(text)
    recorded = record([name], cuda_arch="9.0", on_cpu=False, samples=True)
    assert recorded.stopped == (("recorded", "twice: ValueError: no such size"),)


IN_LOW_HEAP = """
import torch
from sgljit_tools.recording.recorder import record
torch.zeros(2).data_ptr() < 1 << 32 or print("the heap is not low")
recorded = record(["wait_value"], cuda_arch="9.0", on_cpu=False, samples=True)
print(len([one for one in recorded.wanted if one.spec.kernel]), [text for _, text in recorded.stopped])
"""


@pytest.mark.slow
def test_samples_are_recorded_where_the_heap_has_low_addresses(tmp_path):
    """Samples lie in the CPU's memory, and are said to be on a device, which has no address so low."""
    done = kit.in_low_heap(IN_LOW_HEAP, directory=tmp_path)
    assert done.stdout == "2 ['check_timeouts has neither samples nor calls']\n", done.stderr
