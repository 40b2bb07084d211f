"""SGL_EXPORT: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch
import tvm_ffi
from torch._subclasses import FakeTensorMode  # it has no public name

from sgljit_core import paths


def test_functions_of_every_form(host) -> None:
    assert host.add(2, 3) == 5
    assert host.scale(2**40) == 3 * 2**40
    assert host.half(3.0) == 1.5
    assert host.twice(21) == 42
    assert host.nothing() is None
    assert host.args(7) == 7, "a name that the macro could hide"


def test_numbers(host) -> None:
    assert host.negate(True) is False
    assert host.half(3) == 1.5
    assert host.single(0.5) == 0.5
    assert host.narrow(-128) == -128
    assert host.wide(-1) == -1  # all ones, and back
    assert host.mode(1) == 2
    assert host.add(True, True) == 2


@pytest.mark.parametrize("text", ["", "a", "1234567", "12345678", "a longer string than any buffer" * 9, "ünïcödé"])
def test_strings(host, text: str) -> None:
    assert host.text_length(text) == len(text.encode())


@pytest.mark.parametrize("text", ["a\0b", "a longer string with a \0 inside"])
def test_strings_with_a_nul_are_refused(host, text: str) -> None:
    with pytest.raises(TypeError, match=r"text_length\(\): argument 1: expected str, got str with a NUL inside"):
        host.text_length(text)


def test_tensors(host) -> None:
    x = torch.zeros(3, 4)
    assert host.numel(x) == 12
    assert host.numel_by_reference(x) == 12
    assert host.numel(torch.zeros(())) == 1
    assert host.numel(tvm_ffi.from_dlpack(x)) == 12  # an owned tensor object, not a view
    assert host.address(x[1:]) == x.data_ptr() + 16


def test_tensors_without_memory(host, tvm) -> None:
    text = r"argument 1: expected tensor with memory, got one of 12 elements without any: a fake or.*torch\.ops"
    with FakeTensorMode() as mode:
        fake = torch.zeros(3, 4)
    for function in (host.numel, host.numel_by_reference, tvm.rows, tvm.light_rows):
        arguments = (fake, None) if function is tvm.rows else (fake,)
        with pytest.raises(TypeError, match=text):
            function(*arguments)
    with pytest.raises(TypeError, match="got one of 1 element without"):
        host.numel(mode.from_tensor(torch.zeros(20))[19])  # whose address is its offset
    assert host.numel(torch.zeros(0, 4)) == 0


def test_optional(host) -> None:
    assert host.numel_or(None, 7) == 7
    assert host.numel_or(torch.zeros(5), 7) == 5
    assert host.scale_or_one(None) == 1.0
    assert host.scale_or_one(2) == 2.0


def test_a_struct_takes_an_argument_for_each_field(host) -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    assert host.grouped(one, two, 0.5, 3, 1, 4, 5) == 123245 / 2
    assert host.grouped(one, two, None, 3, 0, 4, 5) == 123145
    for arguments in ((), (one, two, None, 3, 0, 4), (one, two, None, 3, 0, 4, 5, 6)):
        with pytest.raises(TypeError, match=rf"grouped\(\): expected 7 arguments, got {len(arguments)}"):
            host.grouped(*arguments)
    for i, (wrong, text) in enumerate(
        [
            (1, "expected tensor, got int"),
            (None, "expected tensor, got None"),
            ("x", "expected float or None, got str"),
            (None, "expected int, got None"),
            (2**9, "expected uint8, got int 512"),
            (2**7, "expected int8, got int 128"),
            ("x", "expected int, got str"),
        ]
    ):
        arguments = [one, two, 0.5, 3, 1, 4, 5]
        arguments[i] = wrong
        with pytest.raises(TypeError, match=rf"grouped\(\): argument {i + 1}: {text}"):
            host.grouped(*arguments)


def test_devices_dtypes_pointers(host) -> None:
    assert host.device_index(tvm_ffi.device("cuda", 3)) == 203
    assert host.dtype_code(torch.bfloat16) == 416
    assert host.is_null(None) is True
    assert host.is_null(ctypes.c_void_p(64)) is False


def test_tensors_made_in_cpp(host) -> None:
    x = torch.zeros(1)
    made = torch.from_dlpack(host.make(3, x))
    assert torch.equal(made, torch.arange(6.0).reshape(3, 2))
    like = torch.from_dlpack(host.make_like(torch.zeros(2, 0, 3, dtype=torch.int16)))
    assert like.shape == (2, 0, 3)
    assert like.dtype == torch.int16
    assert host.no_tensor() is None


def test_from_blob_frees_once(host) -> None:
    tensor = torch.from_dlpack(host.blob(6))
    assert torch.equal(tensor, torch.arange(6.0).reshape(3, 2) / 2)
    assert host.count_blobs() == 1
    view = tensor[1]
    del tensor
    gc.collect()
    assert host.count_blobs() == 1
    assert view.tolist() == [1.0, 1.5]
    del view
    gc.collect()
    assert host.count_blobs() == 0


def test_an_error_of_the_allocator_keeps_its_kind(host) -> None:
    with pytest.raises(MemoryError, match="negative dimension -3"):
        host.make(-3, torch.zeros(1))


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("add", (1,), "add(): expected 2 arguments, got 1"),
        ("add", (1, 2, 3), "add(): expected 2 arguments, got 3"),
        ("nothing", (1,), "nothing(): expected 0 arguments, got 1"),
        ("numel", (), "numel(): expected 1 argument, got 0"),
        ("add", (1, None), "add(): argument 2: expected int, got None"),
        ("add", (1.5, "x"), "add(): argument 1: expected int, got float"),
        ("add", ("x", 1), "add(): argument 1: expected int, got str"),
        ("add", (2**40, 1), "add(): argument 1: expected int32, got int 1099511627776, which does not fit"),
        ("narrow", (128,), "narrow(): argument 1: expected int8, got int 128, which does not fit"),
        ("mode", (-1,), "mode(): argument 1: expected uint8, got int -1, which does not fit"),
        ("negate", (0.5,), "negate(): argument 1: expected bool, got float"),
        ("half", ("x",), "half(): argument 1: expected float, got str"),
        ("text_length", (b"x",), "text_length(): argument 1: expected str, got bytes"),
        ("text_length", (1,), "text_length(): argument 1: expected str, got int"),
        ("numel", ([1, 2],), "numel(): argument 1: expected tensor, got list"),
        ("numel", ({1: 2},), "numel(): argument 1: expected tensor, got dict"),
        ("numel", (None,), "numel(): argument 1: expected tensor, got None"),
        ("numel_or", ("x", 1), "numel_or(): argument 1: expected tensor or None, got str"),
        ("scale_or_one", ("x",), "scale_or_one(): argument 1: expected float or None, got str"),
        ("device_index", (torch.float32,), "device_index(): argument 1: expected device, got dtype"),
        ("dtype_code", (1,), "dtype_code(): argument 1: expected dtype, got int"),
        ("is_null", (torch.zeros(1),), "is_null(): argument 1: expected pointer, got tensor"),
        ("is_null", (print,), "is_null(): argument 1: expected pointer, got function"),
    ],
)
def test_wrong_arguments(host, name: str, arguments: tuple, text: str) -> None:
    with pytest.raises(TypeError) as info:
        getattr(host, name)(*arguments)
    assert str(info.value) == text


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("add", (2**70, 1), "add(): argument 1: expected int, got"),
        ("add", (1, -(2**63) - 1), "add(): argument 2: expected int, got"),
        ("half", (2**63,), "half(): argument 1: expected float, got"),
    ],
)
def test_an_int_outside_of_int64(host, name: str, arguments: tuple, text: str) -> None:
    """tvm-ffi has a type for it since 0.1.15; the releases before refuse it themselves."""
    if "kTVMFFIBigInt" in (paths.tvm_ffi_include() / "tvm" / "ffi" / "c_api.h").read_text():
        expected: tuple[type[Exception], str] = TypeError, f"{text} an int outside of int64, -2**63 to 2**63 - 1"
    else:
        expected = OverflowError, "Python int too large to convert to C long"
    with pytest.raises(expected[0]) as info:
        getattr(host, name)(*arguments)
    assert str(info.value) == expected[1]


def test_exceptions_by_kind(host) -> None:
    kinds = [ValueError, TypeError, KeyError, IndexError]
    for which, kind in enumerate(kinds):
        with pytest.raises(kind, match=f"kind number {which}"):
            host.throw_kind(which)
    with pytest.raises(RuntimeError, match="kind number 4"):
        host.throw_kind(4)


def test_exceptions_of_others(host) -> None:
    with pytest.raises(RuntimeError, match=r"^a standard exception$"):
        host.throw_standard()
    with pytest.raises(RuntimeError, match=r"not a std::exception"):
        host.throw_other()
    assert host.add(1, 1) == 2  # and nothing is left behind


@pytest.fixture(scope="module")
def tvm(build):
    # tvm-ffi's own headers are not free of warnings
    return build("tvm.cpp", strict=False)


def test_tvm_types_in_the_same_module(tvm) -> None:
    x = torch.zeros(3, 4)
    assert tvm.rows(x, None) == 3
    assert tvm.rows(x, torch.zeros(3, 1)) == 3
    assert tvm.light_rows(x) == 3
    assert tvm.greet("you") == "hello you"
    assert torch.from_dlpack(tvm.same(tvm_ffi.from_dlpack(x))).data_ptr() == x.data_ptr()


def test_a_thread_may_end_inside_of_a_call(host) -> None:
    """As a Python that shuts down ends one which asks for its lock: by pthread_exit, which unwinds the stack."""
    assert host.outlives_a_thread() is True


def test_tvm_errors(tvm) -> None:
    with pytest.raises(ValueError, match="thrown by tvm-ffi"):
        tvm.throw_tvm()
    with pytest.raises(ValueError, match=r"Tensor<2, 1>.*tvm.cpp:\d+\n.*mismatch for shape#0\('rows'\)"):
        tvm.rows(torch.zeros(3, 4), torch.zeros(2, 1))
    with pytest.raises(TypeError, match=r"^rows\(\): argument 1: expected DLTensor\*, got int$"):
        tvm.rows(1, None)
    with pytest.raises(TypeError, match=r"^light_rows\(\): argument 1: expected tensor, got str$"):
        tvm.light_rows("x")
