"""What the injections share: a ground for each worker, which takes seconds to make."""

from __future__ import annotations

from collections.abc import Iterator

import injection
import pytest


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[injection.Ground]:
    with injection.ground(tmp_path_factory.mktemp("ground")) as made:
        yield made
