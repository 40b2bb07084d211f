"""Models of Hugging Face transformers run on the kernels of sgljit: ``sgljit_transformers.enable(model)``.

Importing the package imports neither torch nor transformers.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = ["__version__", "disable", "enable", "enabled", "errors"]

if TYPE_CHECKING:
    from . import errors
    from .switching import disable, enable, enabled
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"": ("errors",), "switching": ("disable", "enable", "enabled")})
