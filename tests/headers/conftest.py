"""What the header tests share: modules built from tests/headers/csrc or from a few lines of C++."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sgljit_core import load_jit

CSRC = Path(__file__).parent / "csrc"
STRICT = ["-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Build and load a source of tests/headers/csrc, with warnings as errors, once a session."""
    cache = tmp_path_factory.mktemp("cache")

    def load(name: str, *, wrappers: list[tuple[str, str]] | None = None, strict: bool = True) -> Any:
        cuda = name.endswith((".cu", ".cuh"))
        kind = "cuda" if cuda else "cpp"
        keywords: dict[str, Any] = {f"{kind}_files": [name]}
        if wrappers is not None:
            keywords[f"{kind}_wrappers"] = wrappers
        if strict:
            keywords["extra_cuda_cflags" if cuda else "extra_cflags"] = (
                ["-Werror=all-warnings", *(f"-Xcompiler={flag}" for flag in STRICT)] if cuda else STRICT
            )
        return load_jit(Path(name).stem, csrc=CSRC, build_directory=cache, header_only=wrappers is not None, **keywords)

    return load


@pytest.fixture(scope="session")
def host(build: Callable[..., Any]) -> Any:
    return build("host.cpp")
