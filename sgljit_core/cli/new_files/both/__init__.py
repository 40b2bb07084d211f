"""The family $family of kernels for sgljit: ``from $package import $op``.

Importing the package imports nothing else; the op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

__all__ = ["$op"]

if TYPE_CHECKING:
    from .ops import $op
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
