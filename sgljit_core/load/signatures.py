"""Do the two sides of a call declare the same parameters?

The host part, and the kernel or deferred function that it calls, are compiled by themselves. Each compiler spells the
type of the function, with the fields of its parameters, as a symbol of the C++ ABI (``sgl_kernel/signature.h``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import zip_longest

from sgljit_core.errors import SignatureError


def check(what: str, declared: str, own: str) -> None:
    """Compare the signature that a host part declares with that of the function that it calls, ``what`` in messages.

    Each is the name of ``sgl::signature`` for a type, as symbol or as ``type_info::name``. Raises SignatureError where
    they differ; the text says where.
    """
    declared, own = (name.removeprefix("_Z") for name in (declared, own))
    if declared == own:
        return
    passed, taken = next(((a, b) for a, b in zip_longest(lines(declared), lines(own)) if a != b), (declared, own))
    has, passes = (text or f"no {other.partition(': ')[0]}" for text, other in ((taken, passed), (passed, taken)))
    raise SignatureError(
        f"{what} does not take what the host part passes: it has {has}, and the host part has {passes}. "
        "Declare the parameters once, in a header that both include; after an edit of that header, start a new process"
    )


def lines(name: str) -> list[str]:
    """The result and the fields of all parameters, for people; the name itself where it cannot be read."""
    result, _, parameters = _cut(_demangled(f"_Z{name}").removeprefix("sgl::signature<").removesuffix(">"), "(")
    if not parameters:
        return [name]
    lines = list(_described("the result", result.strip()))
    for i, parameter in enumerate(_split(parameters.removesuffix(")")), 1):
        lines += _described(f"parameter {i}", parameter)
    return lines


def _described(what: str, text: str) -> Iterator[str]:
    head, _, rest = text.partition("<")
    if head not in ("sgl::Struct", "sgl::Enum"):
        yield f"{what}: {text}"
        return
    inner, _, suffix = _cut(rest, ">")
    name, *details = _split(inner)
    if head == "sgl::Enum":
        yield f"{what}: {name} of {details[0]}{suffix}"
        return
    size, alignment, *fields = details
    for field in fields:
        member, kind, offset = _split(field.removeprefix("sgl::Field<").removesuffix(">"))
        path = f"{what.partition(' (')[0]}.{member.rpartition('::')[2]}"
        yield from _described(f"{path} (byte {offset.rstrip('ul')} of {name})", kind)
    yield f"{what}: {name} ({size.rstrip('ul')} bytes, aligned to {alignment.rstrip('ul')}){suffix}"


def _split(text: str) -> list[str]:
    """The parts between the commas outside of brackets."""
    parts = []
    while text:
        part, _, text = _cut(text, ",")
        parts.append(part.strip())
    return parts


def _cut(text: str, separator: str) -> tuple[str, str, str]:
    """``partition``, at the first separator outside of brackets."""
    depth = 0
    for i, letter in enumerate(text):
        if letter == separator and depth == 0:
            return text[:i].rstrip(), letter, text[i + 1 :]
        depth += (letter in "<([{") - (letter in ">)]}")
    return text, "", ""


def _demangled(symbol: str) -> str:
    try:
        demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except OSError:  # the host part was made with another library
        return symbol
    demangle.restype = ctypes.c_void_p
    text = demangle(symbol.encode(), None, None, ctypes.byref(ctypes.c_int()))
    if text is None:
        return symbol
    try:
        return (ctypes.string_at(text)).decode()
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(text)
