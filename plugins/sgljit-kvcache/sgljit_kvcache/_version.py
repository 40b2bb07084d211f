"""The version of sgljit-kvcache: the one place it is written."""

__version__ = "0.1.0"
