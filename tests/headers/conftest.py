"""What the header tests share: modules built from tests/headers/csrc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from headers import toolbox


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Build and load a source of tests/headers/csrc."""
    return toolbox.load


@pytest.fixture(scope="session")
def host(build: Callable[..., Any]) -> Any:
    return build("host.cpp")
