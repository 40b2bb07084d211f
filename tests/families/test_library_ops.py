"""Ops as seen by torch.compile."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from sgljit_core import errors, exported, load_jit
from sgljit_core.families.library_ops import dispatching, register

calls: list[str] = []


def scale_(x: torch.Tensor, out: torch.Tensor | None = None, factor: float = 2.0, *, shift: int = 0) -> None:
    """Write ``x * factor + shift`` to ``out``, by default to ``x``."""
    calls.append("scale_")
    target = x if out is None else out
    target.copy_(x * factor + shift)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(scope="module")
def op():
    return dispatching(scale_, register("testing", "scale_", scale_, ("x", "out"), None))


def test_an_eager_call_goes_straight_to_the_function(op):
    x = torch.ones(3)
    op(x, factor=3.0, shift=1)
    assert x.tolist() == [4, 4, 4]


def test_it_looks_like_the_function(op):
    assert op.__name__ == "scale_"
    assert op.__doc__ == scale_.__doc__


def negate_(x: torch.Tensor, out: torch.Tensor | None = None, *, twice: bool = False) -> None:
    """Write ``-x``, or ``x``, to ``out``, by default to ``x``."""


NEGATE = """
#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor.h>
void negate_(host::TensorView x, host::Optional<host::TensorView> out, bool twice) {
  const auto target = out.has_value() ? *out : x;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(target.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] * (twice ? 1.f : -1.f);
}
"""


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory):
    """An op that is an exported function, of which ``torch.ops`` has the name ``sgljit_testing.negate_``."""
    csrc = tmp_path_factory.mktemp("csrc")
    (csrc / "negate.cpp").write_text(NEGATE)

    def load():
        return load_jit("negate", cpp_files=["negate.cpp"], cpp_wrappers=[("negate_", "negate_")], csrc=csrc)

    op = exported(load)(negate_)
    return dispatching(op, register("testing", "negate_", op, ("x", "out"), None))


@pytest.fixture(params=["python", "c++"])
def either(request, op, in_cpp):
    return op if request.param == "python" else in_cpp


def targets(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def changed(op):
    def f(x):
        y = x + 1
        op(y)
        return y

    return f


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_holds_the_op(either, tracing_mode):
    graph = make_fx(changed(either), tracing_mode=tracing_mode)(torch.ones(3))
    assert targets(graph) == ["aten.add.Tensor", f"sgljit_testing.{either.__name__}.default"]
    assert torch.equal(graph(torch.zeros(3)), changed(either)(torch.zeros(3)))


def test_an_export_without_dynamo_holds_the_op(either):
    class Model(torch.nn.Module):
        def forward(self, x):
            return changed(either)(x)

    program = torch.export.export(Model(), (torch.ones(3),), strict=False)
    assert f"sgljit_testing.{either.__name__}.default" in targets(program.graph_module)
    assert torch.equal(program.module()(torch.zeros(3)), changed(either)(torch.zeros(3)))


def test_on_fake_tensors_nothing_runs(either):
    calls.clear()
    with FakeTensorMode():
        assert either(torch.empty(1 << 40)) is None
    assert calls == []


def test_on_fake_tensors_nothing_runs_outside_of_their_mode_either(in_cpp):
    with FakeTensorMode() as mode:
        x = torch.empty(1 << 40)
    assert in_cpp(x) is None
    assert in_cpp(mode.from_tensor(torch.ones(8))[2:]) is None  # whose address is its offset


def test_on_meta_tensors_nothing_runs(in_cpp):
    assert in_cpp(torch.empty(1 << 40, device="meta")) is None


@pytest.mark.parametrize("real", ["x", "out"])
def test_a_meta_tensor_beside_a_real_one_is_refused_and_nothing_written(in_cpp, real):
    tensors = {"x": torch.ones(3), "out": torch.full((3,), 7.0)}
    meta = "out" if real == "x" else "x"
    mixed = {**tensors, meta: tensors[meta].to("meta")}
    text = rf"negate_\(\): {meta} is a meta tensor and {real} is on cpu, so nothing can be computed: put all tensors on"
    with pytest.raises(errors.TensorMatchError, match=text):
        in_cpp(**mixed)
    assert tensors["out"].tolist() == [7, 7, 7]


def test_a_number_of_the_cpu_goes_with_meta_tensors_as_in_torch(in_cpp):
    assert in_cpp(torch.ones(3, device="meta"), torch.tensor(1.0)) is None
    assert (torch.ones(3, device="meta") + torch.tensor(1.0)).is_meta


def test_fake_tensors_of_meta_and_of_other_devices_are_those_of_their_mode(in_cpp):
    with FakeTensorMode():
        assert in_cpp(torch.empty(3), torch.empty(3)) is None
        assert in_cpp(torch.empty(3, device="meta"), torch.empty(3, device="meta")) is None


class Watch(TorchDispatchMode):
    """Lets everything run, and keeps the names of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_op_and_may_let_it_run(either):
    x = torch.ones(3)
    with Watch() as watch:
        either(x)
    assert watch.seen[0] == f"sgljit_testing.{either.__name__}.default"
    expected = torch.ones(3)
    either(expected)
    assert torch.equal(x, expected)
    assert not torch.equal(x, torch.ones(3))


def test_another_threads_mode_does_not_see_an_eager_call(in_cpp):
    x = torch.ones(3)
    with Watch() as watch, ThreadPoolExecutor(1) as pool:
        pool.submit(in_cpp, x).result()
    assert x.tolist() == [-1, -1, -1]
    assert watch.seen == []


def test_a_torch_that_does_not_tell_of_its_modes_costs_only_their_graphs(tmp_path):
    code = (
        "import torch\ndel torch.utils._python_dispatch._is_in_torch_dispatch_mode\n"
        "from sgljit_core import ops\nx = torch.full((2, 64), 3.0)\n"
        "ops['norm'].rmsnorm(x, torch.ones(64))\nprint(round(x.sum().item()))\n"
        "print(ops['norm'].rmsnorm(x.to('meta'), torch.ones(64, device='meta')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "128\nNone\n", done.stderr


def test_transforms_of_functions_are_refused_in_their_own_words(in_cpp):
    with pytest.raises(RuntimeError, match="Batching rule not implemented for sgljit_testing::negate_"):
        torch.vmap(in_cpp)(torch.ones(3, 4))


def test_a_tensor_whose_memory_was_freed_is_refused(in_cpp):
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"negate_\(\): argument 1: expected tensor with memory, got one of 3 elements"):
        in_cpp(x)


def test_a_sparse_tensor_is_refused_by_name_and_layout(in_cpp):
    with pytest.raises(TypeError, match=r"negate_\(\): out is a tensor of layout torch.sparse_coo.*out.to_dense\(\)"):
        in_cpp(torch.ones(2, 2), torch.eye(2).to_sparse())


def test_an_error_of_the_function_comes_through(in_cpp):
    with pytest.raises(TypeError, match=r"negate_\(\): argument 1: expected tensor, got int"):
        in_cpp(3)
    in_cpp(torch.empty(0))  # which has no memory and needs none


def device_count(minimum: int = 0) -> int:
    return max(minimum, 1)


def test_an_op_that_takes_no_tensor_is_never_traced_by_a_mode():
    op = dispatching(device_count, register("testing", "device_count", device_count, (), None))
    with FakeTensorMode():
        assert op(4) == 4


def test_a_compiled_graph_holds_the_op_whole(op):
    def f(x):
        y = x + 1
        op(y, factor=3.0, shift=1)
        return y * 2

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(3)).tolist() == [14, 14, 14]


def test_a_compiled_graph_sees_the_mutation_of_out(op):
    def f(x):
        out = torch.empty_like(x)
        op(x, out)
        return out + x

    assert torch.compile(f, fullgraph=True, backend="aot_eager")(torch.ones(3)).tolist() == [3, 3, 3]


FIRST_USES = """
import torch
from sgljit_core import ops
x, weight, family = torch.randn(3, 64), torch.ones(64), ops["norm"]

def of_an_op(x):
    family.rmsnorm(x, weight)
    return x + 1

def of_a_family(x):
    ops["quant"].per_tensor_quant_fp8(x, torch.empty_like(x, dtype=torch.float8_e4m3fn), weight[:1], is_static=True)
    return x + 1

from torch.fx.experimental.proxy_tensor import make_fx

def traced(x):
    family.layernorm(x, weight)
    return x

assert "sgljit_norm.layernorm" in make_fx(traced)(x).code

for function in (of_an_op, of_a_family):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    first = compiled(x.clone())
    assert "rmsnorm" in vars(family) and torch.equal(first, function(x.clone()))
    assert torch.equal(first, compiled(x.clone()))
print("quant" in dict.keys(ops))
"""


def test_the_first_use_of_a_family_and_of_an_op_may_be_in_a_compiled_graph():
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_an_op_that_returns_a_tensor_compiles_with_its_fake():
    op = dispatching(doubled, register("testing", "doubled", doubled, (), torch.empty_like))
    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert torch.ops.sgljit_testing.doubled(torch.ones(2)).tolist() == [2, 2]


def add_(x: torch.Tensor, mode: int, *, ctx: int = 0, name: int = 0, op: int = 0) -> None:
    """Write ``x + mode + 10 * ctx`` and more to ``x``."""
    x.add_(mode + 10 * ctx + 100 * name + 1000 * op)


def test_a_parameter_whose_name_torch_compile_uses_itself():
    """In the schema it has another one; who calls the function, eager or compiled, does not notice."""
    library_op = register("testing", "add_", add_, ("x",), None)
    op = dispatching(add_, library_op)
    assert [argument.name for argument in library_op._schema.arguments][:3] == ["x", "mode_", "ctx_"]

    def f(x):
        y = x * 0
        op(y, mode=1, ctx=2, name=3, op=4)
        op(y, 1, ctx=1)
        return y

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(1)).tolist() == f(torch.ones(1)).tolist() == [4332]
    x = torch.zeros(1)
    torch.ops.sgljit_testing.add_(x, 1, ctx_=2)
    assert x.tolist() == [21]


def test_a_signature_without_annotations_is_refused_with_the_remedy():
    def bare(x):
        return x

    with pytest.raises(errors.InvalidFamilyError, match="Annotate every parameter"):
        register("testing", "bare", bare, (), None)


def test_threads_that_meet_an_op_first_register_it_once(tmp_path):
    """In a process of its own, where nobody has met it."""
    code = (
        "import threading, torch\nfrom sgljit_core import ops\nfound = []\n"
        "start = threading.Barrier(16)\n"
        "def use():\n    start.wait()\n    found.append(ops['norm'].rmsnorm)\n"
        "threads = [threading.Thread(target=use) for _ in range(16)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(len(found), len(set(found)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "16 1\n", done.stderr


def test_an_op_that_seems_to_do_nothing_is_refused_with_the_remedy():
    """Without what it writes to, a compiled graph would drop the call."""
    with pytest.raises(errors.InvalidFamilyError, match=r'mutates=\("out",\)'):
        register("nothing", "forgetful", scale_, (), None)
