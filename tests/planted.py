"""Planted faults: an op that is right, and many that are wrong in one way each.

Each fault is the check that must find it, and the ``ops.py`` of a plugin with one op, ``scale``. Most are plain Python:
the kit sees an op's results and memory, not what it is written in.
"""

from __future__ import annotations

import textwrap

_BEGIN = """
import ctypes, itertools, torch
from sgljit_core import CppType, errors
from .plugin import FAMILY


def reference(x, out):
    out.copy_(2 * x.double())


def samples(device):
    for dtype in (torch.float32, torch.float16):
        for rows in (0, 1, 3, 8):
            x = torch.randn(rows, 16, device=device).to(dtype)
            yield {"x": x, "out": torch.empty_like(x)}


def poke(tensor, offset, byte=0):
    ctypes.memset(tensor.data_ptr() + offset, byte, 1)


def peek(tensor, offset):
    return ctypes.string_at(tensor.data_ptr() + offset, 1)[0]


declared = dict(samples=f"{__name__}:samples", reference=f"{__name__}:reference")
"""

_OP = """
@FAMILY.op(mutates=("out",), **declared)
def scale(x: torch.Tensor, out: torch.Tensor) -> None:
"""

_RETURNING = """
def reference(x):
    return 2 * x


def samples(device):
    for dtype in (torch.float32, torch.float16):
        for rows in (0, 1, 3, 8):
            yield {"x": torch.randn(rows, 16, device=device).to(dtype)}
"""


def writing(body: str, before: str = "") -> str:
    """An op that writes ``out``."""
    return _BEGIN + textwrap.dedent(before) + _OP + textwrap.indent(textwrap.dedent(body), "    ")


def returning(body: str, fake: str, before: str = "") -> str:
    """An op that returns a tensor."""
    declaration = f"\n@FAMILY.op(fake={fake}, **declared)\ndef scale(x: torch.Tensor) -> torch.Tensor:\n"
    return _BEGIN + _RETURNING + textwrap.dedent(before) + declaration + textwrap.indent(textwrap.dedent(body), "    ")


def in_cpp(declaration: str, **options: str) -> str:
    """An op whose body is C++, of the plugin's ``csrc/scale.cpp``."""
    given = "".join(f", {name}={value}" for name, value in options.items())
    return (
        _BEGIN
        + textwrap.dedent(f"""
        def host_module():
            return FAMILY.load_host("scale", cpp_files=["scale.cpp"], cpp_wrappers=[("scale", "scale")]{given})
    """)
        + textwrap.dedent(declaration)
    )


IN_PLACE_OF = """
    @FAMILY.op(exports=host_module, mutates=("out",), **declared)
    def scale(x: torch.Tensor, out: torch.Tensor) -> None:
        "The body is C++."
"""
_INCLUDES = "#include <sgl_kernel/row_program.h>\n#include <sgl_kernel/tensor.h>\n"
_DOUBLE = """
struct Double {
  SGL_OPERANDS(x, out)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map([](float v) { return 2.0f * v; }, row[x]));
  }
};
"""
_SCALE_H = f"#pragma once\n#include <sgl_kernel/row_program.h>\nnamespace scaling {{{_DOUBLE}}}\n"
_SCALE_CPP = """
#include "scale.h"
host::RowProgram<scaling::Double> program{"scale.h"};
void scale(host::TensorView x, host::TensorView out) {
  using F = scaling::Double;
  program({}, F::x = host::rows("x", x), F::out = host::rows("out", out));
}
"""

RIGHT = {
    "writes": writing("out.copy_(2 * x.double())"),
    "returns": returning("return 2 * x", "torch.empty_like"),
    "takes_contiguous_rows_alone": writing(
        """
        if not (x.is_contiguous() and out.is_contiguous()):
            raise ValueError("x and out must be contiguous")
        out.copy_(2 * x.double())
        """
    ),
    "has_an_empty_view_among_its_samples": writing(
        "out.copy_(2 * x.double())",
        """
        def samples(device):
            for dtype in (torch.float32, torch.float16):
                x = torch.randn(3, 4, 16, device=device).to(dtype)
                yield {"x": x, "out": torch.empty_like(x)}
                yield {"x": x[:0, 0], "out": torch.empty_like(x)[:0, 0]}
        """,
    ),
    "says_why_it_loses_nan": writing(
        "out.copy_(2 * x.double().nan_to_num(7, torch.inf, -torch.inf))", "reference.drops_nan = 'it marks a gap'"
    ),
}

# What is in csrc, by the name of the plugin.
SOURCES: dict[str, dict[str, str]] = {}

FAULTS: dict[str, tuple[str, str]] = {
    "wrong_result": ("results", writing("out.copy_(3 * x)")),
    "leaves_integers_unwritten": (
        "results",
        writing(
            "out[x > 0] = 1",
            """
            def reference(x, out):
                out.copy_(x > 0)

            def samples(device):
                for dtype in (torch.float32, torch.float16):
                    x = torch.randn(8, 64, device=device).to(dtype)
                    yield {"x": x, "out": torch.zeros_like(x, dtype=torch.int32)}
            """,
        ),
    ),
    "wrong_reference": ("results", writing("out.copy_(2 * x)", "def reference(x, out):\n    out.copy_(2 * x + 1)")),
    "accumulates_in_half_precision": ("results", writing("out.copy_((x.half() * 1.999).to(out.dtype))")),
    "unwritten_tail": (
        "results",
        writing("out[..., : x.shape[-1] // 8 * 8 - 1].copy_(2 * x[..., : x.shape[-1] // 8 * 8 - 1])"),
    ),
    "depends_on_what_the_output_held": (
        "results",
        writing("out.copy_(out * 0 + 2 * x)"),
    ),
    "unwritten_fresh_allocation": (
        "results",
        returning("y = torch.empty_like(x)\ny[..., 1:] = 2 * x[..., 1:]\nreturn y", "torch.empty_like"),
    ),
    "writes_what_mutates_does_not_name": ("results", writing("out.copy_(2 * x)\nx.add_(1)")),
    "names_another_tensor_in_mutates": (
        "results",
        writing("out.copy_(2 * x)").replace('mutates=("out",)', 'mutates=("x",)'),
    ),
    "forgets_a_write_of_its_reference": (
        "results",
        writing("out.copy_(2 * x.double())", "def reference(x, out):\n    out.copy_(2 * x)\n    x.copy_(out)"),
    ),
    "no_samples_are_yielded": (
        "signatures",
        writing("out.copy_(2 * x)", "def samples(device):\n    dict(x=torch.ones(1), out=torch.ones(1))"),
    ),
    "one_byte_behind_the_end": ("results", writing("out.copy_(2 * x)\nif out.numel(): poke(out, out.nbytes)")),
    "one_byte_before_the_beginning": ("results", writing("out.copy_(2 * x)\nif out.numel(): poke(out, -1)")),
    "writes_between_the_rows": (
        "layouts",
        writing("out.copy_(2 * x)\nif out.stride(0) > out.shape[-1]: poke(out, out.shape[-1] * out.itemsize)"),
    ),
    "raises_on_its_own_sample": ("results", writing('raise ValueError("x is not taken")')),
    "reads_behind_the_end": (
        "reads",
        writing("out.copy_(2 * x)\nif x.numel() and peek(x, x.nbytes) == 0x3D: out[0, 0] += 1e-6"),
    ),
    "two_calls_differ": (
        "repeats",
        writing("out.copy_(2 * x + next(calls) % 2 * 1e-5)", "calls = itertools.count()"),
    ),
    "caches_by_address": (
        "fresh_values",
        writing(
            """
            key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
            if key not in kept:
                kept.clear()
                kept[key] = 2 * x
            out.copy_(kept[key])
            """,
            "kept = {}",
        ),
    ),
    "one_buffer_for_all_results": (
        "fresh_values",
        returning(
            "return torch.mul(x, 2, out=kept.setdefault((x.shape, x.dtype), torch.empty_like(x)))",
            "torch.empty_like",
            "kept = {}",
        ),
    ),
    "answers_with_its_reference": ("own_work", writing("reference(x, out)")),
    "ignores_strides": (
        "layouts",
        writing("flat = x.as_strided((x.numel(),), (1,)) if x.stride(-1) else x\nout.copy_(2 * flat.view(x.shape))"),
    ),
    "ignores_the_offset": (
        "layouts",
        writing("out.copy_(2 * x.as_strided(x.shape, x.stride(), x.storage_offset() // 8 * 8))"),
    ),
    "takes_a_broadcast_tensor_for_a_dense_one": (
        "layouts",
        writing("out.copy_(2 * x)\nif x.stride(0) == 0 and len(x) > 1: out[1:] = 0"),
    ),
    "refuses_after_writing": (
        "layouts",
        writing('out.copy_(2 * x)\nif not x.is_contiguous():\n    raise ValueError("x must be contiguous")'),
    ),
    "raises_something_else_on_a_layout": ("layouts", writing("out.copy_(2 * x.view(-1).view(x.shape))")),
    "loses_the_rest_of_a_vector": (
        "sizes",
        writing("n = x.shape[-1] // 8 * 8 if x.shape[-1] > 8 else x.shape[-1]\nout[..., :n].copy_(2 * x[..., :n])"),
    ),
    "fails_without_rows": ("sizes", writing("if not x.shape[-1]: raise IndexError('no element')\nout.copy_(2 * x)")),
    "wrong_for_one_row_of_a_size": (
        "sizes",
        writing("out.copy_(2 * x)\nif out.shape[-1] == 1025: out[..., 1024] = 0"),
    ),
    "returns_something_else": (
        "returns",
        returning("return 2 * x", "lambda x: [torch.empty_like(x)]").replace(
            "-> torch.Tensor", "-> list[torch.Tensor]"
        ),
    ),
    "fake_of_another_shape": ("returns", returning("return 2 * x", "lambda x: x.new_empty(x.shape[0], 1)")),
    "fake_of_another_dtype": (
        "returns",
        returning("return 2 * x", "lambda x: torch.empty_like(x, dtype=torch.float64)"),
    ),
    "fake_of_other_strides": ("returns", returning("return 2 * x", "lambda x: x.new_empty(x.shape[::-1]).T")),
    "returns_its_argument": ("opcheck", returning("return x.mul_(2)", "torch.empty_like")),
    "reference_of_another_signature": (
        "signatures",
        writing("out.copy_(2 * x)", "def reference(out, x):\n    out.copy_(2 * x)"),
    ),
    "sample_of_another_signature": (
        "signatures",
        writing("out.copy_(2 * x)", 'def samples(device):\n    yield {"input": torch.ones(1)}'),
    ),
    "no_reference": ("signatures", writing("out.copy_(2 * x)").replace("**declared", "samples=declared['samples']")),
}

# Found where the op is declared, or first called: the text of the error.
REFUSED: dict[str, tuple[str, str]] = {
    "no_fake": (
        "a graph must know what that looks like",
        returning("return 2 * x", "None"),
    ),
    "fake_of_another_signature": (
        r"fake takes \(\), and gets the op's arguments",
        returning("return 2 * x", "lambda: None"),
    ),
    "writes_to_nothing": (
        "names no parameter that it writes to",
        writing("").replace('mutates=("out",)', "mutates=()") + "    pass",
    ),
    "cpp_returns_where_python_does_not": (
        r"scale \(planted-cpp-.*-does-not 1\.2\.3, .*ops\.py:\d+\) says that it returns None, and the "
        r"C\+\+ function returned a int",
        in_cpp(IN_PLACE_OF),
    ),
    "python_returns_where_cpp_does_not": (
        r"says that it returns Tensor, and the C\+\+ function returned None",
        in_cpp(
            """
            @FAMILY.op(exports=host_module, fake=lambda x, out: x, **declared)
            def scale(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
                "The body is C++."
            """
        ),
    ),
}
SOURCES["cpp_returns_where_python_does_not"] = {
    "scale.cpp": _INCLUDES + "int scale(host::TensorView x, host::TensorView out) { return 1; }\n"
}
SOURCES["python_returns_where_cpp_does_not"] = {
    "scale.cpp": _INCLUDES + "void scale(host::TensorView x, host::TensorView out) {}\n"
}

# Found by checks of the family.
OF_FAMILIES: dict[str, tuple[str, str]] = {
    "swallowed_compile_error": (
        "compile_errors",
        writing(
            """
            try:
                kernel = FAMILY.load_jit("scale", cpp_files=["scale.cpp"], cpp_wrappers=[("scale", "scale")]).scale
            except Exception:
                kernel = lambda x, out: out.copy_(2 * x)
            kernel(x, out)
            """
        ),
    ),
    "code_that_never_compiles": (
        "compile_errors",
        writing(
            """
            try:
                FAMILY.load_jit("scale", cpp_files=["scale.cpp"], cpp_wrappers=[("scale", "scale")]).scale(x, out)
            except errors.CompileError:
                out.copy_(2 * x)
            """
        ),
    ),
    "statics_shared_by_two_plugins": (
        "statics",
        in_cpp(IN_PLACE_OF, extra_cflags='["-fgnu-unique", "-fvisibility=default"]'),
    ),
    "does_not_compile": ("compiles", in_cpp(IN_PLACE_OF)),
    "a_kernel_that_its_file_does_not_have": ("dry_run", in_cpp(IN_PLACE_OF)),
    "a_kernel_name_that_only_a_launch_asks_for": ("dry_run", in_cpp(IN_PLACE_OF)),
    "a_kernel_with_other_parameters": ("dry_run", in_cpp(IN_PLACE_OF)),
}
_ROW_COUNTER = (
    _INCLUDES
    + "inline int& calls() {\n  static int count = 0;\n  return count;\n}\n"
    + _DOUBLE.replace("Double", "Twice")
    + "void scale(host::TensorView x, host::TensorView out) { ++calls(); }\n"
)
SOURCES["statics_shared_by_two_plugins"] = {"scale.cpp": _ROW_COUNTER}
SOURCES["swallowed_compile_error"] = {
    "scale.cpp": _INCLUDES + "void scale(host::TensorView x, host::TensorView out) {}\n"
}
SOURCES["does_not_compile"] = {"scale.cpp": _SCALE_CPP.replace("F =", "F"), "scale.h": _SCALE_H}
SOURCES["code_that_never_compiles"] = {"scale.cpp": "void scale( {\n"}
SOURCES["a_kernel_that_its_file_does_not_have"] = {
    "scale.cpp": _SCALE_CPP,
    # The functor is there for the host's compiler alone.
    "scale.h": _SCALE_H.replace("namespace scaling", "#ifndef __CUDACC__\nnamespace scaling") + "#endif\n",
}
SOURCES["declares_another_form_of_a_kernel"] = {"scale.cpp": _SCALE_CPP, "scale.h": _SCALE_H}

_LAUNCH = """
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>
#include "params.h"
host::Kernel<scaling::Params> kernel{"scale.cuh", "scaling::NAME"};
void scale(host::TensorView x, host::TensorView out) {
  if (x.numel() == 0) return;
  host::LaunchKernel(1, 32, x.device())(kernel.get(), scaling::Params{x.data_ptr(), out.data_ptr(), x.numel()});
}
"""
_PARAMS = """
#pragma once
#include <sgl_kernel/signature.h>
namespace scaling {
struct Params {
  const void* x;
  void* out;
  LENGTH length;
  SGL_FIELDS(x, out, length)
};
}
"""
_KERNEL = """
#include "params.h"
namespace scaling {
__global__ void scale(const __grid_constant__ Params params) {}
}
"""
SOURCES["a_kernel_name_that_only_a_launch_asks_for"] = {
    "scale.cpp": _LAUNCH.replace("NAME", "scales"),
    "params.h": _PARAMS.replace("LENGTH", "long long"),
    "scale.cuh": _KERNEL,
}
SOURCES["a_kernel_with_other_parameters"] = {
    "scale.cpp": _LAUNCH.replace("NAME", "scale"),
    # The host's compiler sees another type than the device's.
    "params.h": _PARAMS.replace("  LENGTH", "#ifdef __CUDACC__\n  double\n#else\n  long long\n#endif\n "),
    "scale.cuh": _KERNEL,
}

FAULTS["a_struct_that_is_larger_on_the_cpu_side"] = ("results", in_cpp(IN_PLACE_OF))
SOURCES["a_struct_that_is_larger_on_the_cpu_side"] = {
    "scale.cpp": """
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/tensor.h>
#include "params.h"
host::Deferred<void(const scaling::Params&)> on_cpu{"scale_cpu.cpp", "scale_on_cpu"};
void scale(host::TensorView x, host::TensorView out) {
  on_cpu({x.data_ptr(), out.data_ptr(), x.numel()});
}
""",
    "params.h": _PARAMS.replace("  LENGTH", "  EXTRA long long").replace(
        "#pragma once", "#pragma once\n#ifndef EXTRA\n#define EXTRA\n#endif"
    ),
    "scale_cpu.cpp": '#define EXTRA long long first = 0;\n#include "params.h"\n'
    "void scale_on_cpu(const scaling::Params& params) {}\n",
}

RIGHT["cpp"] = in_cpp(IN_PLACE_OF)
SOURCES["cpp"] = {"scale.cpp": _SCALE_CPP, "scale.h": _SCALE_H}

# Found on a GPU.
ON_CUDA: dict[str, tuple[str, str]] = {
    "runs_on_the_default_stream": (
        "stream",
        writing("with torch.cuda.stream(torch.cuda.default_stream()):\n    out.copy_(2 * x)"),
    ),
    "waits_for_the_device": ("graph", writing("torch.cuda.synchronize()\nout.copy_(2 * x)")),
    "reads_a_value_on_the_host": (
        "graph",
        writing(
            """
            key = (x.data_ptr(), x.shape)
            if key not in kept:
                kept[key] = (2 * x).clone()
            out.copy_(kept[key])
            """,
            "kept = {}",
        ),
    ),
    "writes_behind_the_end": (
        "results",
        writing(
            "out.copy_(2 * x)\n"
            "n = out.storage_offset() + out.numel()\n"
            "if out.numel() and out.untyped_storage().nbytes() > (n + 1) * out.itemsize:\n"
            "    out.as_strided((1,), (1,), n).fill_(0)"
        ),
    ),
    "ignores_the_alignment": (
        "layouts",
        writing("out.copy_(2 * x.as_strided(x.shape, x.stride(), x.storage_offset() // 8 * 8))"),
    ),
}


# One op of C++ without a row program, and one line of it wrong. The samples are float32 and have an index of rows.
_OF_ROWS = in_cpp(
    """
    def reference(x, index, out):
        out.copy_(2 * x[index])


    def samples(device):
        for rows in (0, 1, 3, 8, 101):
            x = torch.randn(max(rows, 1), 16, device=device)
            index = torch.randint(len(x), (rows,), device=device)
            yield {"x": x, "index": index, "out": torch.empty(rows, 16, device=device)}

    @FAMILY.op(exports=host_module, mutates=("out",), **declared)
    def scale(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
        "The body is C++."
    """
)
OF_ROWS_CPP = """
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/tensor.h>
namespace {
void require(bool is_right, const char* text) {
  if (!is_right) throw host::Error("ValueError", text);
}
bool is(host::TensorView tensor, int code, int bits) {
  return tensor.dtype().code == code && tensor.dtype().bits == bits && tensor.dtype().lanes == 1;
}
}  // namespace
void scale(host::TensorView x, host::TensorView index, host::TensorView out) {
  require(x.dim() == 2 && index.dim() == 1 && out.dim() == 2, "a number of dimensions");
  require(is(x, kDLFloat, 32), "the dtype of x");
  require(is(index, kDLInt, 64), "the dtype of index");
  require(is(out, kDLFloat, 32), "the dtype of out");
  require(x.device().device_type == kDLCPU, "the device of x");
  require(index.device().device_type == kDLCPU, "the device of index");
  require(out.device().device_type == kDLCPU, "the device of out");
  require(out.size(0) == index.size(0), "rows of out");
  require(out.size(1) == x.size(1), "columns of out");
  require(x.stride(1) == 1 && index.stride(0) == 1 && out.stride(1) == 1, "strides");
  const auto rows = out.size(0), columns = out.size(1);
  const auto* const from = static_cast<const float*>(x.data_ptr());
  const auto* const rows_of_x = static_cast<const long*>(index.data_ptr());
  auto* const to = static_cast<float*>(out.data_ptr());
  if (rows == 0 || columns == 0) return;
  require(rows == 1 || out.stride(0) >= columns, "rows of out overlap");
  const auto* const end_of_x = from + (x.size(0) - 1) * x.stride(0) + columns;
  const auto* const end_of_out = to + (rows - 1) * out.stride(0) + columns;
  require(end_of_x <= to || end_of_out <= from, "out shares memory with x");
  for (long row = 0; row < rows; ++row) require(rows_of_x[row] >= 0 && rows_of_x[row] < x.size(0), "an index");
  host::cpu::parallel_for(rows, 10000, [&](long begin, long end) {
    for (long row = begin; row < end; ++row) {
      for (long column = 0; column < columns; ++column) {
        to[row * out.stride(0) + column] = 2 * from[rows_of_x[row] * x.stride(0) + column];
      }
    }
  });
}
"""


def _with_a_factor(used: str) -> str:
    """An op with a number, which all samples give the same value."""
    return writing(
        f"out.copy_({used} * x.double())",
        """
        kept = {}

        def reference(x, out, factor):
            out.copy_(factor * x.double())

        def samples(device):
            for dtype in (torch.float32, torch.float16):
                x = torch.randn(3, 4, device=device).to(dtype)
                yield {"x": x, "out": torch.empty_like(x), "factor": 0.5}
        """,
    ).replace("out: torch.Tensor)", "out: torch.Tensor, factor: float)")


def _with_an_offset(used: str, sampled: str, before: str = "") -> str:
    """An op with an integer, which has a value of ``sampled`` with each dtype."""
    return writing(
        f"out.copy_(x.double() + ({used}))",
        f"""
        def reference(x, out, offset):
            out.copy_(x.double() + offset)

        def samples(device):
            for dtype, offset in zip((torch.float32, torch.float16), ({sampled})):
                x = torch.randn(8, 64, device=device).to(dtype)
                yield {{"x": x, "out": torch.empty_like(x), "offset": offset}}

        {before}
        """,
    ).replace("out: torch.Tensor)", "out: torch.Tensor, offset: int)")


RIGHT["takes_a_number"] = _with_a_factor("factor")
RIGHT["takes_an_integer"] = _with_an_offset("offset", "3, 5")
RIGHT["says_why_an_integer_is_the_same"] = _with_an_offset(  # ValueError for another
    "3 + [3].index(offset)", "3, 3", "reference.as_sampled = {'offset': 'one size'}"
)
RIGHT["rounds_on_the_way_otherwise_than_its_reference"] = writing(
    """
    if x.dtype not in (torch.float16, torch.bfloat16) or out.dtype != torch.float32:
        raise ValueError("x has 16 bits, and out 32")
    out.copy_(2 * x.double() * (1 + 2**-11))
    """,
    """
    def reference(x, out):
        if x.dtype == torch.float64:
            raise TypeError("x is rounded to its dtype")
        out.copy_(2 * x.double())

    def samples(device):
        for dtype in (torch.float16, torch.bfloat16):
            x = torch.randn(8, 64, device=device).to(dtype)
            yield {"x": x, "out": torch.empty(8, 64, device=device)}
    """,
)
RIGHT["cpp_of_rows"] = _OF_ROWS
SOURCES["cpp_of_rows"] = {"scale.cpp": OF_ROWS_CPP}

# By the check that must find it: the name of the fault, a line, and that line with the fault.
_LINES = {
    "arguments": [
        ("takes_any_dtype", '  require(is(x, kDLFloat, 32), "the dtype of x");\n', ""),
        ("takes_any_dtype_of_one_width", "is(out, kDLFloat, 32)", "out.dtype().bits == 32"),
        ("takes_fewer_columns", '  require(out.size(1) == x.size(1), "columns of out");\n', ""),
        ("takes_fewer_rows", '  require(out.size(0) == index.size(0), "rows of out");\n', ""),
        ("takes_any_device", '  require(x.device().device_type == kDLCPU, "the device of x");\n', ""),
    ],
    "overlaps": [
        (
            "takes_an_output_in_the_memory_of_its_input",
            '  require(end_of_x <= to || end_of_out <= from, "out shares memory with x");\n',
            "",
        ),
        (
            "takes_an_output_whose_rows_overlap",
            '  require(rows == 1 || out.stride(0) >= columns, "rows of out overlap");\n',
            "",
        ),
    ],
    "indices": [
        ("takes_an_index_behind_the_end", "&& rows_of_x[row] < x.size(0)", ""),
        ("takes_a_negative_index", "rows_of_x[row] >= 0 &&", ""),
    ],
    "far_rows": [
        ("an_int32_product_of_row_and_stride", "row * out.stride(0)", "int(row) * int(out.stride(0))"),
        ("an_int32_offset_of_a_row_that_is_read", "rows_of_x[row] * x.stride(0)", "int(rows_of_x[row] * x.stride(0))"),
    ],
    "nans": [
        (
            "a_maximum_that_loses_nan",
            "x.stride(0) + column];",
            "x.stride(0) + column];\n        auto& y = to[row * out.stride(0) + column];\n"
            "        y = __builtin_fmaxf(y, -1e38f);",
        )
    ],
    "threads": [
        (
            "a_thread_skips_the_end_of_its_range",
            "row < end; ++row",
            "row < (end < rows ? end - (end - begin) % 2 : end); ++row",
        ),
        ("threads_begin_at_the_first_row", "long row = begin;", "long row = begin + (begin > 0);"),
    ],
}
_HELPERS, _FUNCTION = OF_ROWS_CPP.split("}  // namespace\n")


def _with_a_wrong_line(fault: str, right: str, wrong: str) -> str:
    """The function, under the name of the fault."""
    assert _FUNCTION.count(right) == 1, right
    return _FUNCTION.replace(right, wrong).replace("void scale(", f"void {fault}(")


# The check of each of these faults, and the two files of their family: it has an op for each, and is compiled once.
OF_ROWS = {fault: check for check, faults in _LINES.items() for fault, *_ in faults}
_DECLARATIONS, _OP_OF_ROWS = _OF_ROWS.replace(
    '("scale", "scale")', ", ".join(f'("{fault}", "{fault}")' for fault in OF_ROWS)
).split("@FAMILY.op(")
OPS_OF_ROWS = _DECLARATIONS + "".join(
    f"\n@FAMILY.op({_OP_OF_ROWS.replace('def scale', f'def {fault}')}" for fault in OF_ROWS
)
WRONG_OF_ROWS_CPP = f"{_HELPERS}}}  // namespace\n" + "".join(
    _with_a_wrong_line(*line) for faults in _LINES.values() for line in faults
)

FAULTS |= {
    "a_default_that_differs_from_the_references": (
        "signatures",
        writing("out.copy_(2 * x)", "def reference(x, out, eps=1e-5):\n    out.copy_(2 * x)").replace(
            "out: torch.Tensor)", "out: torch.Tensor, eps: float = 1e-6)"
        ),
    ),
    "loses_nan": ("nans", writing("out.copy_(2 * x.double().nan_to_num(0, torch.inf, -torch.inf))")),
    "loses_nan_at_the_end": (
        "nans",
        writing("out.copy_(2 * x)\nif out.numel(): out[-1, -1] = 2 * x[-1, -1].nan_to_num(0, torch.inf, -torch.inf)"),
    ),
    "loses_an_infinity": ("nans", writing("out.copy_((2 * x.double()).clamp(min=-6e4))")),
    "makes_nan_of_an_infinity": ("nans", writing("out.copy_(x.double() + x.double() * x.sign().abs() + 0 * x)")),
    "loses_an_infinity_beside_a_mask": (
        "nans",
        writing(
            "out.copy_(torch.where(mask, (2 * x.double()).clamp(-6e4, 6e4), 0))",
            """
            def reference(x, mask, out):
                out.copy_(torch.where(mask, 2 * x, 0))

            def samples(device):
                for dtype in (torch.float32, torch.float16):
                    x = torch.randn(8, 64, device=device).to(dtype)
                    yield {"x": x, "mask": x == x, "out": torch.empty_like(x)}
            """,
        ).replace("x: torch.Tensor, out", "x: torch.Tensor, mask: torch.Tensor, out"),
    ),
    "an_exponential_that_overflows": (
        "nans",
        writing(
            "out.copy_(x.float().exp().log1p())",
            "def reference(x, out):\n    out.copy_(torch.nn.functional.softplus(x))",
        ),
    ),
    "loses_nan_for_no_reason": ("nans", writing("out.copy_(2 * x.double())", "reference.drops_nan = True")),
    "ignores_a_number": ("arguments", _with_a_factor("0.5")),
    "keeps_the_number_of_the_first_call": ("arguments", _with_a_factor("kept.setdefault(0, factor)")),
    "products_rounded_to_bfloat16": (
        "precision",
        writing(
            "out.copy_((x.float() * 1.1).bfloat16().float() * 1.3)",
            """
            def reference(x, out):
                out.copy_(x * 1.1 * 1.3)

            def samples(device):
                for dtype in (torch.bfloat16, torch.float32):
                    x = torch.randn(8, 64, device=device).to(dtype)
                    yield {"x": x, "out": torch.empty_like(x)}
            """,
        ),
    ),
    "products_rounded_to_bfloat16_of_float16": (
        "precision",
        writing("out.copy_((2.1 * x.float()).bfloat16())", "def reference(x, out):\n    out.copy_(2.1 * x)"),
    ),
    "samples_of_one_dtype": (
        "samples",
        writing(
            "out.copy_(2 * x)",
            """
            def samples(device):
                yield {"x": torch.ones(3, 4, device=device), "out": torch.ones(3, 4, device=device)}
            """,
        ),
    ),
    "a_dtype_that_no_sample_has": (
        "samples",
        writing(
            "if x.dtype != out.dtype: raise ValueError(x.dtype)\nout.copy_((3 if x.dtype == torch.bfloat16 else 2) * x)"
        ),
    ),
    "an_option_that_no_sample_passes": (
        "samples",
        writing(
            "out.copy_(2 * x)",
            "def reference(x, out, bias=None):\n    out.copy_(2 * x if bias is None else 2 * x + bias)",
        ).replace("out: torch.Tensor)", "out: torch.Tensor, bias: torch.Tensor | None = None)"),
    ),
    "an_integer_that_no_sample_varies": ("samples", _with_an_offset("offset", "3, 3")),
    "takes_any_integer": ("arguments", _with_an_offset("min(offset, 5)", "3, 5")),
    "takes_a_negative_integer": ("arguments", _with_an_offset("abs(offset)", "3, 5")),
    "a_float32_result_wrong_by_four_units_of_float16": (
        "results",
        RIGHT["rounds_on_the_way_otherwise_than_its_reference"].replace("2**-11", "2**-8"),
    ),
    "a_float32_result_wrong_by_three_units_of_bfloat16": (
        "results",
        RIGHT["rounds_on_the_way_otherwise_than_its_reference"]
        .replace("(torch.float16, torch.bfloat16):\n", "(torch.bfloat16,):\n")
        .replace("2**-11", "0.025"),
    ),
    "no_reason_but_none": ("samples", _with_an_offset("offset", "3, 3", "reference.as_sampled = {'offset': None}")),
    "names_without_reasons": ("samples", _with_an_offset("offset", "3, 3", "reference.as_sampled = ['offset']")),
    "one_value_for_no_reason": ("samples", _with_an_offset("offset", "3, 3", "reference.as_sampled = {'offset': ''}")),
    "one_value_of_no_parameter": ("samples", _with_an_offset("3", "3, 3", "reference.as_sampled = {'ofset': 'why'}")),
    "a_switch_that_every_sample_leaves": (
        "samples",
        writing(
            "out.copy_(2 * x)", "def reference(x, out, inverse=False):\n    out.copy_(x / 2 if inverse else 2 * x)"
        ).replace("out: torch.Tensor)", "out: torch.Tensor, inverse: bool = False)"),
    ),
    "samples_that_ignore_their_device": (
        "samples",
        writing(
            "out.copy_(2 * x)",
            """
            def samples(device):
                for dtype in (torch.float32, torch.float16):
                    yield {"x": torch.ones(3, 4, dtype=dtype), "out": torch.ones(3, 4, dtype=dtype)}
            """,
        ),
    ),
}

# Kernels that only a launch asks for; their host part is right for the CPU, where it is not called.
_ROWS_PARAMS = _PARAMS.replace("LENGTH length", "long long rows;\n  long long columns;\n  long long stride").replace(
    "SGL_FIELDS(x, out, length)", "SGL_FIELDS(x, out, rows, columns, stride)"
)
_LAUNCH_OF_ROWS = """
#include <sgl_kernel/error.h>
#include <sgl_kernel/launch.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>
#include "params.h"
host::Kernel<scaling::Params> kernel{"scale.cuh", "scaling::scale"};
void scale(host::TensorView x, host::TensorView out) {
  if (x.numel() == 0) return;
  if (x.stride(1) != 1 || !out.is_contiguous()) throw host::Error("ValueError", "strides");
  if (x.device().device_type != kDLCUDA) return;
  host::LaunchKernel(x.size(0), 32, x.device())(
      kernel.get(), scaling::Params{x.data_ptr(), out.data_ptr(), x.size(0), x.size(1), x.stride(0)});
}
"""
for fault, right, wrong in (
    ("launches_on_the_default_stream", "32, x.device()", "32, host::native_stream_t{}"),
    ("a_launch_that_ignores_a_stride", "x.stride(0)});", "x.size(1)});"),
    ("a_launch_that_ignores_the_stride_of_elements", "x.stride(1) != 1 ||", ""),
    ("a_right_launch", "#include", "#include"),
):
    SOURCES[fault] = {
        "scale.cpp": _LAUNCH_OF_ROWS.replace(right, wrong),
        "params.h": _ROWS_PARAMS,
        "scale.cuh": _KERNEL,
    }
    if fault != "a_right_launch":
        OF_FAMILIES[fault] = ("dry_run", in_cpp(IN_PLACE_OF))

# More values than the registers of 1024 threads hold.
_SPILLING_KERNEL = """
#pragma once
#include "params.h"
namespace scaling {
__global__ void __launch_bounds__(1024, 2) scale(const __grid_constant__ Params params) {
  const float* x = static_cast<const float*>(params.x);
  float* out = static_cast<float*>(params.out);
  float values[64];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = x[i * params.columns + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * params.columns + threadIdx.x] = sum += values[i] * values[i * 7 % 64];
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * params.columns + threadIdx.x] += values[i];
}
}  // namespace scaling
"""
_WIDE_KERNEL = """
#include "params.h"
namespace scaling {
__global__ void scale(const __grid_constant__ Params params) {
  const long long at = blockIdx.x * params.columns;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const char*>(params.x) + at);
  uint4* out = reinterpret_cast<uint4*>(static_cast<char*>(params.out) + at);
  out[threadIdx.x] = x[threadIdx.x];
NARROW
}
}
"""
_NARROW = "  static_cast<char*>(params.out)[threadIdx.x] = static_cast<const char*>(params.x)[threadIdx.x];"
for fault, narrow in (("a_launch_that_ignores_the_alignment", ""), ("a_kernel_that_peels", _NARROW)):
    SOURCES[fault] = {**SOURCES["a_right_launch"], "scale.cuh": _WIDE_KERNEL.replace("NARROW", narrow)}
OF_FAMILIES["a_launch_that_ignores_the_alignment"] = ("dry_run", in_cpp(IN_PLACE_OF))
SOURCES["a_kernel_that_spills"] = {**SOURCES["a_right_launch"], "scale.cuh": _SPILLING_KERNEL}
OF_FAMILIES["a_kernel_that_spills"] = ("dry_run", in_cpp(IN_PLACE_OF))

# Mistakes that stop every call: each is told once.
OF_FAMILIES["a_source_that_is_not_there"] = ("compiles", in_cpp(IN_PLACE_OF))
OF_FAMILIES["an_export_of_another_name"] = (
    "compiles",
    in_cpp(IN_PLACE_OF).replace('("scale", "scale")', '("skale", "scale")'),
)
SOURCES["an_export_of_another_name"] = SOURCES["a_right_launch"]
