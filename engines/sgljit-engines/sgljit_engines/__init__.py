"""For adapters, the distributions that put ops into the models of an inference engine."""

from ._version import __version__
from .adapter import Adapter

__all__ = ["Adapter", "__version__"]
