"""The environment of this process, as those that it starts inherit it."""

from __future__ import annotations

import os


def inherited_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: this one's, with some variables changed."""
    return {**os.environ, **changes}


def is_in_ci() -> bool:
    """Whether ``CI`` is set, as in continuous integration, to anything but 0, false or no."""
    return os.environ.get("CI", "").strip().lower() not in ("", "0", "false", "no")


def change(**variables: str) -> None:
    """Change variables of this process, and of those that it starts."""
    os.environ.update(variables)
