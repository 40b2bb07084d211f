"""Which artifacts are kept, under which keys, and where.

``sgljit_core.cache.entries()`` and its neighbours are for operators; they are resolved when they are used, as a warm
start needs only the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import Entry, copy, entries, export_archive, import_archive, prune, root, verify

__all__ = ["Entry", "copy", "entries", "export_archive", "import_archive", "prune", "root", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import admin

    return getattr(admin, name)
