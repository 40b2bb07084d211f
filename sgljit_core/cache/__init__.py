"""Which artifacts are kept, under which keys, and where.

``sgljit_core.cache.entries()`` and its neighbours are for operators; they are resolved when they are used, as a warm
start needs only the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Entry", "copy", "entries", "export_archive", "import_archive", "prune", "root", "verify"]

if TYPE_CHECKING:
    from .admin import Entry, copy, entries, export_archive, import_archive, prune, root, verify
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"admin": __all__})
