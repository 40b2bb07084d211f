"""A backend of torch.compile: inductor, with the fused chains of a decoder layer on the kernels of sgljit.

Importing the package imports no torch. ``torch.compile(model, backend="sgljit")`` finds the backend by its entry point.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = ["Graph", "__version__", "explain", "sgljit"]

if TYPE_CHECKING:
    from .backend import sgljit
    from .records import Graph, explain
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"backend": ("sgljit",), "records": ("Graph", "explain")})
