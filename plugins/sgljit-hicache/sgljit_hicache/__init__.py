"""Moving rows of KV caches: ``sgljit_core.ops["hicache"]``. Importing it imports nothing else."""

from ._version import __version__

__all__ = ["__version__"]
