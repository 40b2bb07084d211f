"""For adapters, the distributions that put ops into the models of an inference engine."""

from typing import TYPE_CHECKING

from ._version import __version__
from .adapter import Adapter
from .uses import Report, Use, report

__all__ = ["Adapter", "Kernels", "Report", "Use", "__version__", "report"]

if TYPE_CHECKING:
    from .kernels import Kernels
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"kernels": ("Kernels",)})  # it imports torch
