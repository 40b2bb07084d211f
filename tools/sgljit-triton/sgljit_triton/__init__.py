"""Triton kernels in families of sgljit: ``TRITON = TritonKernels(FAMILY)`` declares them and their ops.

``source`` reads a kernel's declaration from its file, and ``configurations`` those of an autotuned one;
``specialisation`` says what a call's arguments specialise; ``build`` asks the core's cache for a compiled kernel;
``monitor`` calls Triton's own hook; ``compiler`` has Triton compile one, in a process of its own that runs ``worker``;
``launcher`` launches from C++; ``interpreter`` runs kernels on the CPU; ``tuning`` chooses a configuration; ``kernels``
is what authors use, and ``cli`` is ``sgljit tune``. Importing the package imports neither torch nor Triton.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = ["Kernel", "TritonKernels", "__version__"]

if TYPE_CHECKING:
    from .kernels import Kernel, TritonKernels
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"kernels": ("Kernel", "TritonKernels")})
