"""The family triton_example of kernels for sgljit: ``from sgljit_triton_example import moe_sum``.

Importing the package imports nothing else; the op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

__all__ = ["moe_sum"]

if TYPE_CHECKING:
    from .ops import moe_sum
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
