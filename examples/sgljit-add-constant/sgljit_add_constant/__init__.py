"""The family add_constant of kernels for sgljit: ``from sgljit_add_constant import add_constant``.

Importing the package imports nothing else; the op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

__all__ = ["add_constant"]

if TYPE_CHECKING:
    from .ops import add_constant
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
