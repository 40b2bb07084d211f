"""Ops as seen by torch.compile, and by everything else that traces."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import kit
import pytest
import torch
from kit import python
from torch._subclasses import FakeTensorMode  # it has no public name
from torch.fx.experimental.proxy_tensor import make_fx

from sgljit_core import KernelFamily, errors, load_jit
from sgljit_core.plugins.origin import NAMES_OF_PYTORCH

calls: list[str] = []
FAMILY = KernelFamily("testing", "nowhere")


def scale(x: torch.Tensor, out: torch.Tensor | None = None, factor: float = 2.0, *, shift: int = 0) -> None:
    """Write ``x * factor + shift`` to ``out``, by default to ``x``."""
    calls.append("scale")
    target = x if out is None else out
    target.copy_(x * factor + shift)


@pytest.fixture(scope="module")
def op():
    return FAMILY.op(mutates=("out",), inplace="x")(scale)


def test_an_eager_call_goes_straight_to_the_function(op):
    x = torch.ones(3)
    op(x, factor=3.0, shift=1)
    assert x.tolist() == [4, 4, 4]
    with torch.inference_mode():
        op(x)
    op(torch.nn.Parameter(x, requires_grad=False))
    assert x.tolist() == [16, 16, 16]


def test_it_looks_like_the_function(op):
    assert op.__name__ == "scale"
    assert op.__doc__ == scale.__doc__


def test_no_schema_names_a_tensor_that_a_call_leaves_alone(op):
    """An op with an optional out is two: one writes out, the other works in place."""
    x, out = torch.ones(3), torch.zeros(3)
    torch.ops.sgljit_testing.scale(x, out, shift=1)
    assert (x.tolist(), out.tolist()) == ([1, 1, 1], [3, 3, 3])
    torch.ops.sgljit_testing.scale_(x)
    assert x.tolist() == [2, 2, 2]
    for packet, given in ((torch.ops.sgljit_testing.scale, (out.clone(),)), (torch.ops.sgljit_testing.scale_, ())):
        (name,) = packet.overloads()
        results = torch.library.opcheck(getattr(packet, name), (x.clone(), *given))
        assert set(results.values()) == {"SUCCESS"}


def negate(x: torch.Tensor, out: torch.Tensor | None = None, *, twice: bool = False) -> None:
    """Write ``-x``, or ``x``, to ``out``, by default to ``x``."""


NEGATE = """
#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor.h>
void negate(host::TensorView x, host::Optional<host::TensorView> out, bool twice) {
  const auto target = out.has_value() ? *out : x;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(target.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] * (twice ? 1.f : -1.f);
}
"""


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory):
    """An op that is an exported function, of which ``torch.ops`` has the name ``sgljit_testing.negate``."""
    csrc = tmp_path_factory.mktemp("csrc")
    (csrc / "negate.cpp").write_text(NEGATE)

    def load():
        return load_jit("negate", cpp_files=["negate.cpp"], cpp_wrappers=[("negate", "negate")], csrc=csrc)

    return FAMILY.op(exports=load, mutates=("out",), inplace="x")(negate)


@pytest.fixture(params=["python", "c++"])
def either(request, op, in_cpp):
    return op if request.param == "python" else in_cpp


def targets(graph: torch.fx.GraphModule) -> list[str]:
    """The names of what a graph calls; of the project's own ops without their overloads'."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return [re.sub(r"^(sgljit_\w+\.\w+)\.v_[0-9a-f]{12}$", r"\1", name) for name in names]


def changed(op):
    def f(x):
        y = x + 1
        op(y)
        return y

    return f


@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
def test_make_fx_holds_the_op(either, tracing_mode):
    graph = make_fx(changed(either), tracing_mode=tracing_mode)(torch.ones(3))
    assert targets(graph) == ["aten.add.Tensor", f"sgljit_testing.{either.__name__}_"]
    assert torch.equal(graph(torch.zeros(3)), changed(either)(torch.zeros(3)))


def test_an_export_without_dynamo_holds_the_op(either):
    class Model(torch.nn.Module):
        def forward(self, x):
            return changed(either)(x)

    program = torch.export.export(Model(), (torch.ones(3),), strict=False)
    assert f"sgljit_testing.{either.__name__}_" in targets(program.graph_module)
    assert torch.equal(program.module()(torch.zeros(3)), changed(either)(torch.zeros(3)))


def test_an_export_without_dynamo_holds_a_call_on_constants_and_does_not_run_it(either):
    constant = torch.ones(3)

    class Model(torch.nn.Module):
        def forward(self, x):
            either(constant)
            return x + constant

    program = torch.export.export(Model(), (torch.ones(3),), strict=False)
    assert any(target.startswith(f"sgljit_testing.{either.__name__}") for target in targets(program.graph_module))
    assert constant.tolist() == [1, 1, 1]


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
    text = rf"negate\(\): {meta} is a meta tensor and {real} is on cpu, so nothing can be computed: put all tensors on"
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


def test_a_graph_of_real_tensors_holds_what_is_called_by_its_name_in_torch_ops(in_cpp):
    """What traces plain tensors shows in no public place: there the Python function runs at once."""

    def named(x):
        y = x + 1
        torch.ops.sgljit_testing.negate_(y)
        return y

    graph = make_fx(named, tracing_mode="real")(torch.ones(3))
    assert targets(graph) == ["aten.add.Tensor", "sgljit_testing.negate_"]
    assert torch.equal(graph(torch.zeros(3)), changed(in_cpp)(torch.zeros(3)))


def test_another_threads_trace_does_not_see_an_eager_call(in_cpp):
    x = torch.ones(3)

    def traced(y):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(in_cpp, x).result()
        return y + 1

    assert targets(make_fx(traced, tracing_mode="fake")(torch.ones(3))) == ["aten.add.Tensor"]
    assert x.tolist() == [-1, -1, -1]


# The offset of a view, in elements: as an address it is far above what Linux never maps, and below any executable.
FAR = 1 << 19


def far_views(op):
    def f(x):
        y = x + 1
        op(y[FAR:])
        out = torch.empty_like(y)
        op(y, out)
        op(y[FAR + 1 :], out[FAR + 1 :])
        return y, out

    return f


def test_functionalize_refuses_an_op_that_writes_in_cpp(in_cpp):
    """In PyTorch's own words. torch.compile has another way, and takes it."""
    x, function = torch.randn(FAR + 3), far_views(in_cpp)
    with pytest.raises(RuntimeError, match="custom \\(non-ATen\\) operator"):
        torch.func.functionalize(function)(x)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(x), function(x)))


LOW = """
import sys
import torch
from sgljit_core import load_jit
csrc, far = sys.argv[1], int(sys.argv[2])
sources = {"cpp_files": ["negate.cpp"], "cpp_wrappers": [("negate", "negate")], "csrc": csrc}
x = torch.ones(far + 3)
small = next(one for one in (torch.ones(4 + n) for n in range(99)) if one.data_ptr() < 1 << 32)
negate = load_jit("negate", **sources).negate
negate(small[1:], None, False)
print(small[:3].tolist())
try:
    torch.func.functionalize(lambda x: negate(x[far:], None, False))(x)
except TypeError as error:
    print(error)
"""


@pytest.mark.slow
def test_in_a_low_heap_memory_is_used_and_an_offset_before_the_executable_is_refused(tmp_path):
    """An address there may be below 4 GiB."""
    (tmp_path / "negate.cpp").write_text(NEGATE)
    done = kit.in_low_heap(LOW, tmp_path, str(FAR), directory=tmp_path)
    assert not done.returncode, done.stderr
    values, refusal = done.stdout.splitlines()
    assert values == "[1.0, -1.0, -1.0]"
    assert "negate(): argument 1: expected tensor with memory, got one of 3 elements" in refusal


def test_transforms_of_functions_are_refused_in_their_own_words(in_cpp):
    with pytest.raises(RuntimeError, match=r"Batching rule not implemented for sgljit_testing::negate_\.v_\w+;"):
        torch.vmap(in_cpp)(torch.ones(3, 4))


def test_a_tensor_whose_memory_was_freed_is_refused(in_cpp):
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"negate\(\): argument 1: expected tensor with memory, got one of 3 elements"):
        in_cpp(x)


@pytest.mark.filterwarnings("ignore")  # quantised tensors are deprecated
def test_a_quantised_tensor_is_refused_by_name(in_cpp):
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    text = r"negate\(\): out is a quantised tensor of dtype torch.qint8.*out.dequantize\(\)"
    with pytest.raises(errors.TensorMatchError, match=text):
        in_cpp(torch.ones(2), quantised)


@pytest.mark.parametrize("lazy", ["conj", "neg"])
def test_a_lazy_view_in_a_call_that_fails_is_named_and_the_first_error_kept(in_cpp, lazy):
    view = torch.ones(2, dtype=torch.complex64).conj()
    view = view if lazy == "conj" else view.imag
    text = rf"negate\(\): out is a lazy {lazy} view: pass out.resolve_{lazy}\(\)"
    with pytest.raises(errors.TensorMatchError, match=text) as caught:
        in_cpp(torch.ones(2), view, twice="no")
    assert "argument 3" in str(caught.value.__context__)


def test_a_sparse_tensor_is_refused_by_name_and_layout(in_cpp):
    with pytest.raises(TypeError, match=r"negate\(\): out is a tensor of layout torch.sparse_coo.*out.to_dense\(\)"):
        in_cpp(torch.ones(2, 2), torch.eye(2).to_sparse())


def test_an_error_of_the_function_comes_through(in_cpp):
    with pytest.raises(TypeError, match=r"negate\(\): argument 1 \(x\): expected tensor, got int"):
        in_cpp(3)
    in_cpp(torch.empty(0))  # which has no memory and needs none


def device_count(minimum: int = 0) -> int:
    return max(minimum, 1)


def test_an_op_that_takes_no_tensor_is_never_traced_and_a_constant_of_graphs():
    op = FAMILY.op()(device_count)
    with FakeTensorMode():
        assert op(4) == 4
    compiled = torch.compile(lambda x: x + op(minimum=3), fullgraph=True, backend="aot_eager")
    assert compiled(torch.zeros(1)).tolist() == [3]
    program = torch.export.export(Adds(op), (torch.zeros(1),), strict=False)
    assert program.module()(torch.zeros(1)).tolist() == [2]


class Adds(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return x + self.op(2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_an_op_without_tensors_and_results_is_neither_dropped_nor_moved(op, backend):
    seen = []

    def note(number: int) -> None:
        seen.append(number)

    def see(x: torch.Tensor) -> None:
        seen.append("see")

    noted, sees = FAMILY.op()(note), FAMILY.op(mutates=("x",))(see)

    def f(x):
        noted(1)
        y = x + 1
        noted(2)
        sees(y)
        noted(number=3)
        return y

    f(torch.ones(2))
    expected, seen[:] = list(seen), []
    torch.compile(f, fullgraph=True, backend=backend)(torch.ones(2))
    numbers = [number for number in seen if number != "see"]
    assert numbers == [1, 2, 3]
    assert sorted(map(str, seen)) == sorted(map(str, expected))


FIRST_USE_OF_TICK = """
import torch
from torch._subclasses import FakeTensorMode
from sgljit_core import KernelFamily

FAMILY, ticks = KernelFamily("testing", "nowhere"), []

def tick() -> None:
    ticks.append(1)

with {mode}:
    tick = FAMILY.op()(tick)
for backend in ("eager", "aot_eager"):
    torch.compiler.reset()
    torch.compile(lambda x: (tick(), x + 1)[1], fullgraph=True, backend=backend)(torch.ones(2))
print(len(ticks))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["torch.device('meta')", "FakeTensorMode()", "torch.inference_mode()"])
def test_an_op_without_tensors_runs_in_graphs_wherever_it_was_declared(mode):
    """As an engine that makes a model without weights declares it."""
    done = python(FIRST_USE_OF_TICK.format(mode=mode))
    assert done.stdout == "2\n", done.stderr


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
IMPORTS
x, weight, family = torch.randn(3, 64), torch.ones(64), ops["norm"]

def of_an_op(x):
    family.rmsnorm(x, weight)
    return x + 1

def of_a_family(x):
    ops["quant"].per_tensor_quant_fp8(x, torch.empty_like(x, dtype=torch.float8_e4m3fn), weight[:1], is_static=True)
    return x + 1

for function in (of_an_op, of_a_family):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    first = compiled(x.clone())
    assert "rmsnorm" in vars(family) and torch.equal(first, function(x.clone()))
    assert torch.equal(first, compiled(x.clone()))
print("sgljit_quant.ops" in __import__("sys").modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param("torch", marks=pytest.mark.slow), "sgljit_core"])
def test_the_first_use_of_a_family_and_of_an_op_may_be_in_a_compiled_graph(first):
    imports = ["import torch", "from sgljit_core import ops"]
    code = FIRST_USES.replace("IMPORTS", "\n".join(imports if first == "torch" else reversed(imports)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_an_op_that_returns_a_tensor_is_declared_with_its_fake():
    @FAMILY.op(fake=torch.empty_like)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(lambda x: doubled(x) + 1, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert torch.ops.sgljit_testing.doubled(torch.ones(2)).tolist() == [2, 2]
    assert torch.func.functionalize(doubled)(torch.ones(2)).tolist() == [2, 2]
    torch.library.opcheck(torch.ops.sgljit_testing.doubled, (torch.ones(2),))


def test_an_op_may_take_lists_of_tensors():
    @FAMILY.op(fake=lambda xs: torch.empty_like(xs[0]))
    def added(xs: list[torch.Tensor]) -> torch.Tensor:
        return sum(xs, torch.zeros(()))

    assert added([torch.ones(2), torch.ones(2)]).tolist() == [2, 2]
    with FakeTensorMode():
        assert added([torch.ones(2)]).shape == (2,)
    with pytest.raises(errors.InferenceOnlyError, match=r"testing.added\(\): xs requires grad"):
        added([torch.ones(2, requires_grad=True)])


def add_(x: torch.Tensor, mode: int, *, ctx: int = 0, name: int = 0, op: int = 0) -> None:
    """Write ``x + mode + 10 * ctx`` and more to ``x``."""
    x.add_(mode + 10 * ctx + 100 * name + 1000 * op)


def test_a_parameter_whose_name_torch_compile_uses_itself():
    """In the schema it has another one; who calls the function, eager or compiled, does not notice."""
    op = FAMILY.op(mutates=("x",))(add_)

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


def twofold(x: torch.Tensor, out: torch.Tensor | None = None, *, minus: bool = False) -> torch.Tensor:
    """Return ``2 * x``, in ``out`` if that is given."""
    torch.mul(x, -2.0 if minus else 2.0, out=out)


@pytest.fixture(scope="module")
def doubling():
    return FAMILY.op(mutates=("out",), fake=lambda x, out, *, minus: x.new_empty(x.shape))(twofold)


def test_an_op_may_return_the_tensor_that_it_writes_and_make_it(doubling):
    x, out = torch.arange(3.0), torch.full((3,), float("nan"))
    assert doubling(x).tolist() == [0, 2, 4]
    assert doubling(x, out, minus=True) is out
    assert out.tolist() == [0, -2, -4]
    assert torch.ops.sgljit_testing.twofold(x, out) is None
    assert out.tolist() == [0, 2, 4]
    with pytest.raises(errors.InferenceOnlyError):
        doubling(torch.ones(3, requires_grad=True))
    with pytest.raises(TypeError, match="must be Tensor, not str"):
        doubling("3")


def test_an_op_that_makes_its_result_is_one_node_of_any_graph(doubling):
    def f(x):
        return doubling(x), doubling(x, torch.empty_like(x), minus=True)

    x = torch.arange(3.0)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(Holder(f), (x,)).module()
    graph = make_fx(f, tracing_mode="symbolic")(x)
    for way in (compiled, exported, graph):
        assert [one.tolist() for one in way(x)] == [[0, 2, 4], [0, -2, -4]]
    assert targets(graph).count("sgljit_testing.twofold") == 2
    assert doubling(x.to("meta")).shape == (3,)
    assert doubling(torch.nn.Parameter(x, requires_grad=False)).tolist() == [0, 2, 4]


class Holder(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def bare(x):
    return x


def unknown(x: Missing) -> None:  # noqa: F821
    """Its annotation is nowhere."""


def partly(x, factor: float = 1.0) -> torch.Tensor:
    """One parameter is not annotated."""


def name(x: torch.Tensor) -> None:
    """Has a name that PyTorch has."""


def hidden(x: torch.Tensor, sgl_body: int = 0) -> None:
    """A parameter is named as generated code is."""


async def later(x: torch.Tensor) -> None:
    """Is awaited."""


def many(x: torch.Tensor) -> None:
    yield x


def both(x: torch.Tensor, out: torch.Tensor | None = None) -> None:
    """Takes an out."""


def returned(x: torch.Tensor) -> torch.Tensor:
    """Returns a tensor."""


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (bare, {"fake": bare}, "annotate what it returns, -> None if nothing"),
        (partly, {"fake": partly}, "Annotate every parameter"),
        (name, {"mutates": ("x",)}, r"torch\.ops\.sgljit_wrong\.name is an attribute of PyTorch's own.*choose another"),
        (hidden, {"mutates": ("x",)}, "the parameter 'sgl_body' begins with 'sgl_', as the names of generated code do"),
        (later, {"mutates": ("x",)}, "is async or a generator, and an op is a plain function"),
        (many, {"mutates": ("x",)}, "is async or a generator, and an op is a plain function"),
        (both, {"mutates": ("out",), "exports": 3}, "exports must be the function that returns the module, .*; got 3"),
        (unknown, {"mutates": ("x",)}, "an annotation cannot be evaluated: name 'Missing' is not defined"),
        (both, {}, r'mutates=\("out",\)\), every tensor that it changes'),
        (both, {"mutates": ("outt",)}, "mutates names 'outt'; the parameters are x, out"),
        (both, {"mutates": ("out",), "inplace": "out"}, "inplace='out' must name a tensor .* that is never None;"),
        (both, {"mutates": ("x",), "inplace": "x"}, "mutates must name one .* may be None, .* Got mutates=.*'x'"),
        (returned, {}, r"returns <class 'torch.Tensor'>.*Write @FAMILY.op\(..., fake=...\): a function with the op's"),
        (returned, {"fake": "empty_like"}, "fake must be a function, got 'empty_like'"),
        (both, {"mutates": "out", "samples": "samples"}, 'samples must read "package.module:function"'),
        (lambda x: x, {"fake": bare}, "the op's name '<lambda>' must be a public Python identifier"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once_with_the_op_its_file_and_the_remedy(function, options, text):
    with pytest.raises(errors.InvalidFamilyError, match=text) as caught:
        KernelFamily("wrong", "nowhere").op(**options)(function)
    line = function.__code__.co_firstlineno
    assert str(caught.value).startswith(f"op wrong.{function.__name__} ({__file__}:{line})")
    assert function is name or not hasattr(torch.ops.sgljit_wrong, function.__name__)


def test_pytorchs_own_names_in_its_namespaces_are_those_that_no_op_can_have():
    own = {name for name in dir(torch.ops.sgljit_nobodys) if not name.startswith("_")}
    assert own == NAMES_OF_PYTORCH


@pytest.mark.parametrize("given", [functools.partial(both), type("both", (), {}), 3])
def test_what_is_no_function_is_refused_where_it_is_declared(given):
    text = re.escape(f"family wrong: @FAMILY.op declares a function that is written with def, got {given!r}")
    with pytest.raises(errors.InvalidFamilyError, match=text):
        KernelFamily("wrong", "nowhere").op(mutates=("out",))(given)


def test_an_op_that_is_declared_twice_is_refused_with_the_other_place():
    family = KernelFamily("twice", "nowhere")

    @family.op(mutates=("x",))
    def same(x: torch.Tensor) -> None:
        x.add_(1)

    first = same.__wrapped__.__code__.co_firstlineno
    with pytest.raises(errors.InvalidFamilyError, match=f"has this op already, from {__file__}:{first}"):

        @family.op(mutates=("x",))
        def same(x: torch.Tensor) -> None:
            x.add_(2)

    x = torch.zeros(1)
    torch.ops.sgljit_twice.same(x)
    assert x.tolist() == [1]


def test_a_declaration_that_fails_leaves_the_earlier_ops_at_work():
    family = KernelFamily("again", "nowhere")

    @family.op(mutates=("x",))
    def kept_(x: torch.Tensor) -> None:
        x.add_(10)

    def declare(number, **options):
        @family.op(**options)
        def kept(x: torch.Tensor, out: torch.Tensor | None = None) -> None:
            (x if out is None else out).add_(number)

        return kept

    first = declare(1, mutates=("x", "out"))
    with pytest.raises(errors.InvalidFamilyError, match=r"mutates=\.\.\. names no parameter"):
        declare(2)
    with pytest.raises(errors.InvalidFamilyError, match=r"again\.kept .*: the family has this op already, from"):
        declare(3, mutates=("out",), inplace="x")  # whose second form would be kept_
    x = torch.zeros(1)
    first(x)
    torch.ops.sgljit_again.kept(x, None)
    torch.ops.sgljit_again.kept_(x)
    assert x.tolist() == [12]
    second = declare(100, mutates=("x", "out"))
    torch.ops.sgljit_again.kept(x, None)
    assert x.tolist() == [112]
    assert family._declared["kept"].function is second


def test_an_op_that_somebody_holds_can_be_declared_anew():
    family = KernelFamily("held", "nowhere")

    def declare(number):
        @family.op(mutates=("x",))
        def kept(x: torch.Tensor) -> None:
            x.add_(number)

    declare(1)
    held = family._declared["kept"]
    declare(100)
    x = torch.zeros(1)
    torch.ops.sgljit_held.kept(x)
    assert x.tolist() == [100]
    held.function(x)
    assert x.tolist() == [101]


def test_threads_that_meet_an_op_first_register_it_once(script):
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
    done = script(code)
    assert done.stdout == "16 1\n", done.stderr
