"""The texts of failed checks: place, values, and nothing beyond the buffer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sgljit_core.errors import TensorMatchError

SOURCE = (Path(__file__).parent / "csrc" / "host.cpp").read_text()


def line_of(text: str) -> int:
    return SOURCE[: SOURCE.index(text)].count("\n") + 1


def test_runtime_check(host) -> None:
    host.check(True, "x", 1)
    line = line_of('host::RuntimeCheck(condition, text, " and ", number)')
    with pytest.raises(RuntimeError, match=rf"^Runtime check failed at \S*host.cpp:{line}: a thing and -7$"):
        host.check(False, "a thing", -7)


def test_runtime_check_without_a_text(host) -> None:
    with pytest.raises(RuntimeError, match=r"^Runtime check failed at \S*host.cpp:\d+$"):
        host.check_silent(False)


def test_runtime_check_with_a_location(host) -> None:
    line = line_of("// check_from_afar")
    with pytest.raises(RuntimeError, match=rf"host.cpp:{line}: as seen by the caller$"):
        host.check_from_afar(False)


def test_panic(host) -> None:
    line = line_of('host::Panic("number ", number)')
    with pytest.raises(RuntimeError, match=rf"host.cpp:{line}: number 3$"):
        host.panic_here(3)


def test_what_a_message_prints(host) -> None:
    with pytest.raises(ValueError, match=r"^text ") as info:
        host.print_many("text")
    assert str(info.value) == (
        "text true -5 18446744073709551615 0.1 0.1 1e+300 -0 1 string <> bfloat16 float16x4 bool float8_e4m3fn "
        "dtype(code=99, bits=8) cuda:3 cpu device_type(99):1 (nil) (null)"
    )


@pytest.mark.parametrize("length", [2000, 2046, 2047, 2048, 100_000])
@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
def test_long_text_is_cut_with_an_ellipsis(host, length: int, character: str) -> None:
    text = character * (length // len(character.encode()))
    with pytest.raises(RuntimeError) as info:
        host.check(False, text, 1)
    message = str(info.value)
    assert len(message.encode()) <= 2047
    assert message.endswith(("...", " and 1"))
    whole = message.split(": ", 1)[0] + ": " + text + " and 1"
    assert message.endswith("...") == (len(whole.encode()) > 2047)
    assert set(message.split(": ", 1)[1].removesuffix(" and 1").rstrip(".")) <= set(character + " and1")


# ---- failed matches ----


def failed(call, *arguments) -> str:
    with pytest.raises(TensorMatchError) as info:
        call(*arguments)
    assert isinstance(info.value, ValueError)
    assert isinstance(info.value, RuntimeError)
    return re.sub(r"at \S*/?host\.cpp:\d+", "at host.cpp:LINE", str(info.value))


def test_the_whole_text(host) -> None:
    k = torch.zeros(4, 8, dtype=torch.int32)
    text = failed(host.match_caches, k, torch.zeros(5, 4, dtype=torch.int32))
    assert text == (
        "match_caches(): Tensor match failed for Tensor<5, 4>[strides=<4, 1>, dtype=int32, device=cpu] at "
        "host.cpp:LINE\n"
        "- Root cause: Size mismatch for shape#1('head dimension'): expected 8 but got 4"
    )
    text = failed(host.match_caches, k, torch.zeros(4, 9, dtype=torch.int32)[:, :8])
    assert text == (
        "match_caches(): Tensor match failed for Tensor<4, 8>[strides=<9, 1>, dtype=int32, device=cpu] at "
        "host.cpp:LINE\n"
        "- Root cause: Size mismatch for stride#0('kv stride'): expected 8 but got 9"
    )
    text = failed(host.match_caches, k.t(), k)
    assert text.startswith("match_caches(): Tensor match failed for k_cache, Tensor<8, 4>[")
    assert text.endswith("Size mismatch for stride#1: expected 1 but got 8")
    text = failed(host.match_caches, k, k.long())
    assert text.endswith("DType mismatch: expected int32 but got int64")
    text = failed(host.match_caches, k.float(), k)
    assert text.endswith("DType mismatch: expected one of [int32, int64] but got float32")
    text = failed(host.match_caches, k[0], k)
    assert text.endswith("Dimension mismatch: expected 2 but got 1")


def test_the_line_is_that_of_the_verify(host) -> None:
    first, second = line_of('.verify(k_cache, "k_cache")'), line_of(".verify(v_cache)")
    k, bad = torch.zeros(4, 8, dtype=torch.int32), torch.zeros(4, 8)
    for line, arguments in ((first, (bad, k)), (second, (k, bad))):
        with pytest.raises(TensorMatchError, match=rf"host.cpp:{line}\n"):
            host.match_caches(*arguments)


def test_without_strides_a_tensor_must_be_contiguous(host) -> None:
    assert failed(host.match_dtype_any, torch.zeros(8)[::2]).endswith("Stride mismatch: expected a contiguous tensor")
    host.match_dtype_any(torch.zeros(8)[::8])  # one element: its stride means nothing
    host.match_dtype_any(torch.zeros(0))


def test_scalar(host) -> None:
    host.match_scalar(torch.zeros(()))
    text = failed(host.match_scalar, torch.zeros((), dtype=torch.float64))
    assert text.startswith("match_scalar(): Tensor match failed for Tensor<>[strides=<>, dtype=float64, device=cpu] at")
    assert failed(host.match_scalar, torch.zeros(1)).endswith("Dimension mismatch: expected 0 but got 1")


def test_eight_dimensions(host) -> None:
    x = torch.zeros(2**0, 2, 1, 2, 1, 2, 1, 3)
    assert failed(host.match_rank_8, x) == (
        "match_rank_8(): Tensor match failed for Tensor<1, 2, 1, 2, 1, 2, 1, 3>[strides=<24, 12, 12, 6, 6, 3, 3, 1>, "
        "dtype=float32, device=cpu] at host.cpp:LINE\n- Root cause: Size mismatch for shape#7: expected 7 but got 3"
    )
    huge = torch.zeros(1).as_strided((2**40, 2**20, 1, 1, 1, 1, 1, 1), (0,) * 8)
    assert "Tensor<1099511627776, 1048576, 1, " in failed(host.match_rank_8, huge)


@pytest.mark.parametrize("length", [10, 200, 201, 5000])
def test_long_annotations_leave_room_for_the_cause(host, length: int) -> None:
    text = failed(host.match_long_annotation, torch.zeros(2, 3), "a" * length)
    shown = "a" * length if length <= 200 else "a" * 197 + "..."
    assert text.endswith(f"Size mismatch for shape#1('{shown}'): expected 2 but got 3")


def test_values_and_lists(host) -> None:
    host.match_dtype_value(torch.zeros(1, dtype=torch.int32))
    assert failed(host.match_dtype_value, torch.zeros(1)).endswith("DType mismatch: expected int32 but got float32")
    host.match_dtype_list(torch.zeros(1, dtype=torch.int64))
    assert failed(host.match_dtype_list, torch.zeros(1)).endswith("expected one of [int32, int64] but got float32")
    assert failed(host.match_device_value, torch.zeros(1)).endswith("Device mismatch: expected cuda:1 but got cpu")


def test_dtypes(host) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        host.match_dtype_float(torch.zeros(1).to(dtype))
    assert failed(host.match_dtype_float, torch.zeros(1).to(torch.float8_e5m2)).endswith(
        "expected one of [float32, float16, bfloat16, float8_e4m3fn] but got float8_e5m2"
    )
    assert failed(host.match_dtype_float, torch.zeros(1, dtype=torch.bool)).endswith("but got bool")
    assert failed(host.match_dtype_float, torch.zeros(1, dtype=torch.complex64)).endswith("but got complex64")


def test_misuse_of_the_matcher(host) -> None:
    x = torch.zeros(1)
    with pytest.raises(RuntimeError, match="with_strides is given twice"):
        host.match_strides_twice(x)
    with pytest.raises(RuntimeError, match="with_strides has 1 entries for a shape of 2"):
        host.match_strides_short(x)
    with pytest.raises(RuntimeError, match="the value of size 'never matched' is not set"):
        host.unwrap_unset()


def test_tensors_without_strides_or_data(host) -> None:
    with pytest.raises(TensorMatchError) as info:
        host.match_without_strides(3, 4)
    assert "Tensor<3, 4>[strides=<4, 1>, dtype=float32, device=cpu]" in str(info.value)
    assert str(info.value).endswith("DType mismatch: expected one of [float64] but got float32")
    with pytest.raises(RuntimeError, match="the tensor pointer is null"):
        host.null_tensor()


# ---- views ----


def test_view_accessors(host) -> None:
    x = torch.zeros(2, 3, 4)
    assert [host.size_at(x, i) for i in (0, 1, 2, -1, -2, -3)] == [2, 3, 4, 4, 3, 2]
    assert [host.stride_at(x, i) for i in (0, 1, 2, -1)] == [12, 4, 1, 1]
    for index in (3, -4, 2**40):
        with pytest.raises(IndexError, match=rf"^dimension {index} is out of range for a tensor of 3 dimensions$"):
            host.size_at(x, index)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3),
        torch.zeros(2, 3).t(),
        torch.zeros(4, 3)[::2],
        torch.zeros(1, 3)[:, :2],
        torch.zeros(3, 1).as_strided((3, 1), (1, 77)),
        torch.zeros(0, 3),
        torch.zeros(3, 0).t(),
        torch.zeros(()),
        torch.zeros(1).expand(5),
    ],
)
def test_contiguity_is_as_in_pytorch(host, tensor) -> None:
    assert host.is_contiguous(tensor) == tensor.is_contiguous()


def test_pointer_offset(host) -> None:
    assert host.pointer_offset(3, 4) == 7
    assert host.pointer_offset(9, -2) == 7
