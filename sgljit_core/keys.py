"""When are two builds the same build? Pure functions from ingredients to keys.

The *source key* covers everything that decides the program and can be known without a compiler: the generated
source, the content of every file it can reach, flags, target. The *toolchain key* covers the compilers. Both hash
the canonical JSON of a flat mapping, so that two manifests can be compared ingredient by ingredient. Paths appear
only relative to a labelled root: a moved checkout keeps its keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .includes import Scan
from .spec import BuildSpec
from .toolchain import Toolchain

__all__ = ["FORMAT", "key", "source_ingredients", "toolchain_ingredients"]

# Raise it when the meaning of an ingredient changes; the C ABI is the one of tvm-ffi that artifacts are built on.
FORMAT = 1
_C_ABI = "tvm-ffi 0.1"


def source_ingredients(
    spec: BuildSpec, generated: Mapping[str, str], scan: Scan, flags: Mapping[str, tuple[str, ...]], tvm_ffi: str
) -> dict[str, str]:
    """What the source key is made of.

    Args:
        generated: the generated sources by file name.
        flags: flags by step ("cxx", "nvcc", "link"), with roots written as labels.
        tvm_ffi: the version of tvm-ffi, an ingredient only where its unstable C++ ABI is used.
    """
    ingredients = {"format": str(FORMAT), "target": spec.target.name, "c_abi": _C_ABI}
    ingredients |= {f"generated {name}": _sha256(text) for name, text in generated.items()}
    ingredients |= {f"file {name}": digest for name, digest in scan.files.items()}
    ingredients |= {f"flags {step}": json.dumps(values) for step, values in flags.items()}
    if scan.uses_tvm_cpp:
        ingredients["tvm_ffi"] = tvm_ffi
    return ingredients


def toolchain_ingredients(toolchain: Toolchain) -> dict[str, str]:
    """What the toolchain key is made of."""
    ingredients = {"cxx": toolchain.cxx.version}
    if toolchain.nvcc is not None:
        ingredients["nvcc"] = toolchain.nvcc.version
    return ingredients


def key(ingredients: Mapping[str, str]) -> str:
    """The key of a set of ingredients: 32 hexadecimal digits of the sha256 of its canonical JSON."""
    return _sha256(json.dumps(ingredients, sort_keys=True, separators=(",", ":")))[:32]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
