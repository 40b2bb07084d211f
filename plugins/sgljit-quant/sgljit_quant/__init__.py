"""FP8 quantisation kernels for sgljit: ``sgljit_core.ops["quant"]``. Importing it imports nothing else."""

from ._version import __version__

__all__ = ["__version__"]
