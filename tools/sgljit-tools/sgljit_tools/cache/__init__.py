"""The operations on a cache, for operators: list, verify, prune, copy, export, import."""

from .admin import Entry, copy, entries, prune, root, verify
from .archive import export_archive, import_archive

__all__ = ["Entry", "copy", "entries", "export_archive", "import_archive", "prune", "root", "verify"]
