"""Softmax and arg-max of logits for sgljit: ``from sgljit_sampling import argmax``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = ["__version__", "argmax", "softmax"]

if TYPE_CHECKING:
    from .ops import argmax, softmax
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
