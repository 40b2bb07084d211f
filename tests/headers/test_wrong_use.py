"""A wrong use of a template does not compile, and the error says in a sentence what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from headers import toolbox
from kit import mostly_slow

VARIANT = """\
#include <sgl_kernel/variant.h>
#define LAUNCH(...) host::LaunchKernel(1, 1, host::native_stream_t{})(__VA_ARGS__)
"""

MANY = ", ".join(f"x{i}" for i in range(33))

PROGRAM = """\
#include <sgl_kernel/row_program.h>
namespace rows {
struct Add {
  SGL_OPERANDS(a, b, out)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map([](float x, float y) { return x + y; }, row[a], row[b]));
  }
};
struct Owner : Add { Owner(const Owner&); };
}
using F = rows::Add;
host::RowProgram<F> add{"f.h"};
"""

MONOID = """\
struct State { SIZE values[COUNT]; };
struct Monoid {
  SGL_HD State identity() const { return {}; }
  SGL_HD State of(float, long long) const { return {}; }
  SGL_HD State merge(const State&, const State&) const { return {}; }
};
"""


def returning(result: str, before: str = "") -> str:
    """`PROGRAM` with another result, and a call of it: the host part alone compiles no loop and no kernel."""
    call = "void f(host::Rows x) { add({}, F::a = x, F::b = x, F::out = x); }"
    assert "sgl::map([](float x, float y) { return x + y; }, row[a], row[b])" in PROGRAM
    program = PROGRAM.replace("sgl::map([](float x, float y) { return x + y; }, row[a], row[b])", result)
    return program.replace("struct Add", before + "struct Add") + call


def of_monoid(kind: str, count: int) -> str:
    monoid = MONOID.replace("SIZE", kind).replace("COUNT", str(count))
    return returning("sgl::map([](float x) { return x; }, (row.reduce(Monoid{}, row[b]), row[a]))", monoid)


SUM = "row.sum, row.max: the function takes a float of each value after it, and returns a float or sgl::Values"

HOST = {
    "a parameter that cannot come from Python": (
        "#include <sgl_kernel/export.h>\nstruct S {}; void f(S) {}\nSGL_EXPORT(f, (f))",
        "this parameter type cannot come from Python. Allowed are integers",
    ),
    "a result that cannot go to Python": (
        "#include <sgl_kernel/export.h>\nstruct S {}; S f() { return {}; }\nSGL_EXPORT(f, (f))",
        "this result type cannot go to Python. Allowed are void, integers",
    ),
    "a lambda with captures": (
        (
            "#include <sgl_kernel/export.h>\nint x = 1; auto f() { int y = x; return [y] { return y; }; }\n"
            "auto g = f();\nSGL_EXPORT(f, (g))"
        ),
        "the symbol must be a function, a function template with its arguments",
    ),
    "a dtype that nobody described": (
        (
            "#include <sgl_kernel/tensor.h>\nstruct S {};\n"
            "void f(host::TensorView x) { host::TensorMatcher({1}).with_dtype<float, S>().verify(x); }"
        ),
        "a dtype option must be an integer, bool, float, half, bfloat16 or fp8 type",
    ),
    "is_type of such a dtype": (
        "#include <sgl_kernel/dtype.h>\nstruct S {};\nbool f() { return host::is_type<S>({}); }",
        "this type has no DLDataType: specialise host::dtype_of<T>",
    ),
    "with_dtype of nothing": (
        (
            "#include <sgl_kernel/tensor.h>\n"
            "void f(host::TensorView x) { host::TensorMatcher({1}).with_dtype<>().verify(x); }"
        ),
        r"with_dtype() needs a type, a SymbolicDType or a DLDataType",
    ),
    "a matcher that never verifies": (
        "#include <sgl_kernel/tensor.h>\nvoid f() { host::TensorMatcher({1}).with_dtype<float>(); }",
        "nodiscard",
    ),
    "printing what cannot be printed": (
        "#include <sgl_kernel/utils.h>\nstruct S {}; void f(S s) { host::RuntimeCheck(1 == 2, s); }",
        "host::Message cannot print this type: pass a number",
    ),
    "offsets of typed pointers": (
        "#include <sgl_kernel/utils.h>\nvoid* f(float* x) { return host::pointer::offset(x, 4); }",
        r"pointer::offset counts bytes: cast the pointer to void* first",
    ),
    "a deleter that takes no pointer": (
        "#include <sgl_kernel/ffi.h>\nauto f() { return host::ffi::from_blob(nullptr, {}, {}, {}, [] {}); }",
        "the deleter must be callable with the data pointer",
    ),
    "a long long for a kernel's int": (
        VARIANT + 'host::Kernel<int> k{"f", "k"};\nvoid f(long long n) { LAUNCH(k.get(), n); }',
        "LaunchKernel: an argument does not convert to the kernel's parameter type, or not without loss",
    ),
    "a float for a kernel's pointer": (
        VARIANT + 'host::Kernel<float*> k{"f", "k"};\nvoid f(float x) { LAUNCH(k.get(), x); }',
        "LaunchKernel: an argument does not convert to the kernel's parameter type",
    ),
    "an argument more than a kernel takes": (
        VARIANT + 'host::Kernel<int> k{"f", "k"};\nvoid f() { LAUNCH(k.get(), 1, 2); }',
        "LaunchKernel: the kernel takes a different number of arguments",
    ),
    "a kernel's struct whose fields are not known": (
        VARIANT + 'struct S { int a; };\nhost::Kernel<S> k{"f", "k"};',
        "so that its fields must be known: write SGL_FIELDS(a, b, ...) into it",
    ),
    "a deferred function's struct whose fields are not known": (
        '#include <sgl_kernel/deferred.h>\nstruct S { int a; };\nhost::Deferred<int(S&)> d{"f", "d"};\n'
        "int f(S s) { return d(s); }",
        "so that its fields must be known: write SGL_FIELDS(a, b, ...) into it",
    ),
    "a field that is forgotten": (
        VARIANT + 'struct S { int a, b, c; SGL_FIELDS(a, c) };\nhost::Kernel<S> k{"f", "k"};',
        "only 2 names",
    ),
    "more than 32 fields": (
        VARIANT + f'struct S {{ int {MANY}; SGL_FIELDS({MANY}) }};\nhost::Kernel<S> k{{"f", "k"}};',
        "SGL_EACH_AGAIN",
    ),
    "a bit-field": (
        VARIANT + 'struct S { int a : 3; SGL_FIELDS(a) };\nhost::Kernel<S> k{"f", "k"};',
        "bit-field",
    ),
    "a type of an unnamed namespace as a template argument": (
        VARIANT + 'namespace { struct S {}; }\nhost::Kernel<> k{"f", "k"};\nvoid f() { (void)k.get(host::type<S>); }',
        "a kernel's type argument must have a name: no lambda, no unnamed namespace, no function",
    ),
    "an operand too few for a row program": (
        PROGRAM + "void f(host::Rows x) { add({}, F::a = x, F::out = x); }",
        "RowProgram: pass each operand that SGL_OPERANDS names once, F::x = rows",
    ),
    "an operand twice": (
        PROGRAM + "void f(host::Rows x) { add({}, F::a = x, F::b = x, F::b = x); }",
        "RowProgram: pass each operand that SGL_OPERANDS names once, F::x = rows",
    ),
    "one set of rows for a program of two": (
        PROGRAM + 'host::RowProgram<F, 2> both{"f.h"};\n'
        "void f(host::Rows x) { both({}, F::a = x, F::b = x, F::out = x); }",
        "RowProgram: pass the rows of each segment, {program.rows(...), program.rows(...)}",
    ),
    "no values for a functor with fields": (
        PROGRAM.replace("SGL_OPERANDS(a, b, out)", "SGL_OPERANDS(a, b, out)\n  float scale;\n  SGL_FIELDS(scale)")
        + "void f(host::Rows x) { add({}, F::a = x, F::b = x, F::out = x); }",
        "FieldsNeedValues",
    ),
    "no values for a functor with fields and several sets of rows": (
        PROGRAM.replace("SGL_OPERANDS(a, b, out)", "SGL_OPERANDS(a, b, out)\n  float scale;\n  SGL_FIELDS(scale)")
        + 'host::RowProgram<F, 2> both{"f.h"};\n'
        "void f(const host::ProgramRows<3>& rows) { both({}, {rows, rows}); }",
        "FieldsNeedValues",
    ),
    "an operand that is stored in place of its elements": (
        returning("a"),
        "an operand is not a value: write out = row[x] to store its elements",
    ),
    "a result that is not stored": (
        returning("row[a]").replace("sgl::store(out = row[a])", "row[a]"),
        "a row program returns sgl::store(operand = value, ...)",
    ),
    "a result that is stored twice": (
        returning("row[a], out = row[b]"),
        "sgl::store: an operand is stored once",
    ),
    "five values that are reduced at once": (
        returning("row.sum([](float) { return sgl::Values<5>{}; }, row[a]).values[0]"),
        "row.sum, row.max: at most four values are reduced at once",
    ),
    "a state of 20 bytes": (of_monoid("float", 5), "row.reduce: a state has at most 16 bytes"),
    "a state of 6 bytes": (of_monoid("short", 3), "row.reduce: a state is of whole words of 32 bits"),
    "a function of two floats for one value": (
        returning("sgl::map([](float x, float y) { return x + y; }, row[a])"),
        "sgl::map: the function takes a float of each value after it, and returns a float",
    ),
    "a function of one float for two values": (
        returning("sgl::map([](float x) { return x; }, row[a], row[b])"),
        "sgl::map: the function takes a float of each value after it, and returns a float",
    ),
    "a function that returns two values in a map": (
        returning("sgl::map([](float) { return sgl::Values<2>{}; }, row[a])"),
        "sgl::map: the function takes a float of each value after it, and returns a float",
    ),
    "a sum of a function of two floats for one value": (
        returning("row.sum([](float x, float y) { return x + y; }, row[a])"),
        SUM,
    ),
    "a maximum of a function of one float for two values": (
        returning("row.max([](float x) { return x; }, row[a], row[b])"),
        SUM,
    ),
    "a sum of groups of a function of two floats for one value": (
        returning("row.sum(sgl::groups_of<4>, [](float x, float y) { return x + y; }, row[a])"),
        SUM,
    ),
    "two sums of each group": (
        returning("row.sum(sgl::groups_of<4>, [](float) { return sgl::Values<2>{}; }, row[a])"),
        "row.sum, row.max: the function returns one float for groups",
    ),
    "a function of a pair's elements alone beside a cosine": (
        returning(
            "row.pairs(sgl::neox, [](float, float) { return sgl::Values<2>{}; }, row[a], row.of_pairs(sgl::neox, b))"
        ),
        "row.pairs: the function takes two floats, and one of each value after the first, and returns sgl::Values<2>",
    ),
    "six sets of rows": (
        PROGRAM + 'host::RowProgram<F, 6> six{"f.h"};',
        "RowProgram: a call has at most 5 sets of rows",
    ),
    "two alike sets of one": (
        returning("sgl::map([](float x, float y) { return x + y; }, row[a], row[b])").replace(
            "SGL_OPERANDS(a, b, out)", "SGL_OPERANDS(a, b, out)\n  static constexpr int kAlike = 2;"
        ),
        "RowProgram: kAlike is at most the number of sets of rows",
    ),
    "a program with a constructor of its own": (
        PROGRAM + 'host::RowProgram<rows::Owner> own{"f.h"};\n'
        "void f(host::Rows x, const rows::Owner& o) { own(o, F::a = x, F::b = x, F::out = x); }",
        "RowProgram: the functor must be trivially copyable",
    ),
}

DEVICE = {
    "a vector of three": ("AlignedVector<float, 3> x;", "the number of elements must be a power of two"),
    "a vector too wide": ("AlignedVector<float, 8> x;", "at most 16 bytes, or 32 on Blackwell with CUDA 13"),
    "a vector of another type's memory": (
        "AlignedVector<float, 4> x; int y[4]; x.load(y);",
        "AlignedVector::load takes a pointer to its element type or to void",
    ),
    "a cast of nonsense": ("struct S {}; auto x = cast<float>(S{});", "device::cast to a scalar takes fp32_t, fp16_t"),
    "a cast of a scalar to a pair": ("auto x = cast<fp16x2_t>(1.0f);", "device::cast to a pair takes a pair"),
    "a reduction of what does not shuffle": (
        "struct S {}; auto x = warp::reduce_sum(S{});",
        "warp reductions take a type that shuffles",
    ),
    "a group of 12 lanes": (
        "auto x = warp::reduce_sum<int, 12>(1);",
        "the group size must be a power of two of at most 32 lanes",
    ),
    "the root of an integer": ("auto x = math::sqrt(1);", "math::sqrt takes fp32, fp64, fp16 or bf16"),
    "the maximum of pointers": ("int y; auto x = math::max(&y, &y);", "math::max and math::min take fp32, fp64, fp16"),
    "an atomic on a byte": ("char y = 0; atomic::add(&y, char{1});", "atomic::add takes fp32, fp64, fp16, bf16"),
    "an exchange of three bytes": (
        "struct S { char c[3]; }; auto x = warp::exchange(S{}, 1);",
        "warp::exchange takes fp16, bf16, or whole words of 32 bits",
    ),
    "a row of a part of a vector": (
        "const Stripes<100, 8, 32> x{0};",
        "Stripes: a row must be a whole number of vectors",
    ),
    "a norm of a length that is not provided for": (
        "constexpr bool x = host::norm::should_use_cta<fp16_t, 100>();",
        "rows are of fp16_t or bf16_t, with 64, 128, 256 or a multiple of 256",
    ),
    "a norm of fp32": (
        "constexpr bool x = host::norm::should_use_cta<float, 128>();",
        "rows are of fp16_t or bf16_t",
    ),
}

LAUNCH = {
    "too few arguments": (
        "host::LaunchKernel(1, 1, host::native_stream_t{})(kernel);",
        "LaunchKernel: the kernel takes a different number of arguments",
    ),
    "an argument of another type": (
        'host::LaunchKernel(1, 1, host::native_stream_t{})(kernel, "x", 1);',
        "LaunchKernel: an argument does not convert to the kernel's parameter type",
    ),
}


@pytest.mark.parametrize("compiler", ["g++", pytest.param("clang++", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", mostly_slow(*HOST, quick=20))
def test_host(case: str, compiler: str, tmp_path: Path) -> None:
    source, sentence = HOST[case]
    result = toolbox.compile_host(source + "\n", tmp_path, compiler)
    assert result.returncode != 0
    assert sentence in re.sub(r"\s+", " ", result.stderr.replace('" "', "")) or sentence in result.stderr


def test_the_right_use_of_the_same_compiles(tmp_path: Path) -> None:
    source = """
#include <sgl_kernel/tensor.h>
struct half { short bits; };
template <> struct host::dtype_of<half> { static constexpr DLDataType value = {kDLFloat, 16, 1}; };
void f(host::TensorView x) { host::TensorMatcher({1}).with_dtype<float, half>().verify(x); }
struct Point { int x; };
void append_to(host::Message& message, const Point& p) { message << "Point " << p.x; }
void g(Point p) { host::RuntimeCheck(p.x == 1, "got ", p); }
"""
    assert toolbox.compile_host(source, tmp_path).returncode == 0
    right = (
        "sgl::map([](float x, float y) { return x + y; }, row[a], row[b])",
        "row.sum([](float) { return sgl::Values<4>{}; }, row[a]).values[0]",
        "row.max(sgl::groups_of<4>, [](float x, float y) { return x > y; }, row[a], row[b])",
        "row.pairs(sgl::neox, sgl::Rotation{}, row[a], row.of_pairs(sgl::neox, b), row.of_pairs(sgl::neox, b, 1, 2))",
    )
    five = 'host::RowProgram<F, 5> five{"f.h"};\n'
    for source in (*map(returning, right), of_monoid("float", 4), PROGRAM + five):
        result = toolbox.compile_host("#include <sgl_kernel/stages.h>\n" + source, tmp_path)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("case", DEVICE)
def test_device(case: str) -> None:
    body, sentence = DEVICE[case]
    headers = "".join(f"#include <{header}>\n" for header in toolbox.DEVICE_HEADERS)
    log = toolbox.compile_nvrtc(f"{headers}using namespace device;\n__global__ void kernel() {{ {body} }}\n")
    assert sentence in log


@pytest.mark.parametrize(
    "step",
    [
        "row.sum([](float v) { return v; }, row[a])",
        "row.max(sgl::groups_of<8>, [](float v) { return v; }, row[a]).vectors[0].value",
        "row.reduce(Monoid{}, row[a]).values[0]",
        "row.list(2, [](int i) { return i; }).size",
    ],
)
def test_a_reduction_behind_a_branch_that_the_host_part_did_not_take(step: str) -> None:
    """It took the program for a map, as `row.value` is 1 there."""
    monoid = MONOID.replace("SIZE", "float").replace("COUNT", "1")
    source = PROGRAM.replace("struct Add", monoid + "struct Add").replace(
        "return sgl::store", f"float y = 0; if (row.value(b) > 2) y = {step};\nreturn sgl::store"
    )
    source = source.replace("(float x, float y)", "[=](float x)").replace("[][=]", "[=]").replace(", row[b])", ")")
    is_map, value_for_b = 1 << 46 | 8 << 40, 1 << 63 | 8 << 4
    log = toolbox.compile_nvrtc(
        source.partition("using F")[0]
        + f"template __global__ void device::row_program_without_fields<rows::Add, 3, 128, 0, true, 0, {value_for_b}u, "
        f"{is_map}u>(const __grid_constant__ sgl::RowProgramParams<3, 1>);",
        "90a",
        "-default-device",
    )
    assert "the steps of a program must not depend on values" in log.partition("error: ")[2].partition("\n")[0]


@pytest.mark.parametrize("case", LAUNCH)
def test_launch(case: str, tmp_path: Path) -> None:
    body, sentence = LAUNCH[case]
    source = f"#include <sgl_kernel/launch.cuh>\n__global__ void kernel(int*, float) {{}}\nvoid f() {{ {body} }}\n"
    result = toolbox.compile_cuda(source, tmp_path)
    assert result.returncode != 0
    assert sentence in result.stdout + result.stderr
