"""What holds for every test of the repository: the core's, the plugins' and the examples'."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

# Variables that would make a test's outcome depend on who runs it. Compilers stay the reader's choice.
_NEUTRAL = ("SGLJIT_PLUGINS", "SGLJIT_CUDA_ARCH", "SGLJIT_JIT", "SGLJIT_PREBUILT_PATH", "TVM_FFI_CUDA_ARCH_LIST")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory):
    """One cold cache for the session: the user's own is neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _NEUTRAL:
            patch.delenv(name, raising=False)
        cache = tmp_path_factory.mktemp("cache")
        cache.chmod(0o700)
        patch.setenv("SGLJIT_CACHE_DIR", os.fspath(cache))
        yield cache


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    reason = "no CUDA device" if torch.backends.cuda.is_built() else f"torch {torch.__version__} is built without CUDA"
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=reason))
