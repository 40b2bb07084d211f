"""For adapters, the distributions that put ops into the models of an inference engine."""

from ._version import __version__
from .adapter import Adapter
from .uses import Report, Use, report

__all__ = ["Adapter", "Report", "Use", "__version__", "report"]
