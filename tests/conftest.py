"""What the packaging tests share: each distribution is built once."""

from __future__ import annotations

from collections.abc import Callable

import isolated
import pytest


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], isolated.Built]:
    """Build a distribution of this repository, by name, from a copy of the sources."""
    sources = isolated.copy_sources(isolated.ROOT, tmp_path_factory.mktemp("sources"))
    built: dict[str, isolated.Built] = {}

    def get(name: str) -> isolated.Built:
        if name not in built:
            built[name] = isolated.build(sources / isolated.PROJECTS[name], tmp_path_factory.mktemp(name))
        return built[name]

    return get
