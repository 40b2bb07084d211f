"""For authors and operators of kernel families: the ``sgljit`` command, the conformance kit, benchmarks, the cache.

A process that serves a model needs none of it.
"""

from ._version import __version__

__all__ = ["__version__"]
