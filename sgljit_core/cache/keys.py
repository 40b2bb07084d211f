"""When are two builds the same build, and where do its artifacts lie? Functions from ingredients to keys.

The *source key* covers everything that decides the program and can be known without a compiler: the generated
source, the content of every file it can reach, flags, target. The *toolchain key* covers the compilers. Both hash
the canonical JSON of a flat mapping, so that two manifests can be compared ingredient by ingredient. Paths appear
only relative to a labelled root: a moved checkout keeps its keys. docs/cache.md documents the format.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sgljit_core.compilers.includes import Scan
from sgljit_core.specs.build import BuildSpec

_NATIVE = re.compile(r"=native\b")  # also within a list, as in -Xcompiler=-march=native,-ffast-math

# Raise it when the meaning of an ingredient changes; the C ABI is the one of tvm-ffi that artifacts are built on.
FORMAT = 1
_C_ABI = "tvm-ffi 0.1"
# The contract between compiled code and the core that runs it, whose headers it was compiled with: what they call of
# each other, and how a host part launches a cubin. Raise it with a change of that; docs/compatibility.md.
ABI = 1
# The files of the core in the ingredients of a source key.
CORE = "core:"


def source_ingredients(
    spec: BuildSpec,
    generated: Mapping[str, str],
    scan: Scan,
    flags: Mapping[str, Sequence[str]],
    *,
    tvm_ffi: Callable[[], str] = str,
    cpu: Callable[[], str] = str,
) -> dict[str, str]:
    """The ingredients of the source key: of the generated sources by file name, and flags by step with roots as labels.

    Args:
        tvm_ffi: returns the version of tvm-ffi, an ingredient only where its unstable C++ ABI is used.
        cpu: returns this machine's processor, an ingredient only where a flag asks for code for it (``-march=native``).
    """
    ingredients = {"format": str(FORMAT), "core_abi": str(ABI), "target": spec.target.name}
    if spec.kernel:  # a cubin calls nothing
        ingredients["kernel"] = spec.kernel
    else:
        ingredients |= {"c_abi": _C_ABI, "tvm_ffi": tvm_ffi()} if scan.uses_tvm_cpp else {"c_abi": _C_ABI}
        ingredients |= {} if spec.target.name.startswith("cpu-") else {"machine": platform.machine()}
    ingredients |= {f"generated {name}": digest(text) for name, text in generated.items()}
    ingredients |= {f"file {name}": content for name, content in scan.files.items()}
    ingredients |= {f"flags {step}": json.dumps(values) for step, values in flags.items()}
    if not spec.header_only:
        ingredients["units"] = json.dumps([*spec.cpp_files, *spec.cuda_files])
    if any(_NATIVE.search(flag) for values in flags.values() for flag in values):
        ingredients["cpu"] = cpu()
    return ingredients


def without_core(source: Mapping[str, str]) -> dict[str, str]:
    """The ingredients of a source key that are the author's: not the text of the core's headers and units."""
    return {name: value for name, value in source.items() if not name.startswith((f"file {CORE}", "generated core_"))}


def keys_of(source: Mapping[str, str], toolchain: Mapping[str, str]) -> tuple[str, str]:
    """The source key and the toolchain key, of their ingredients."""
    return key(source), key(toolchain)


def key(ingredients: Mapping[str, str]) -> str:
    """The key of a set of ingredients: 32 hexadecimal digits of the sha256 of its canonical JSON."""
    return hashed(ingredients)[:32]


def hashed(value: object) -> str:
    """The sha256 of the one JSON text of a value."""
    return digest(canonical(value))


def canonical(value: object) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """The sha256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Location:
    """Where a build's artifacts live below a root: one directory for each toolchain."""

    target: str
    family: str
    module: str
    source_key: str
    path: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = Path(self.target, self.family or "_", self.module, self.source_key)
        object.__setattr__(self, "path", path)
