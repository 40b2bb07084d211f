"""The version of sgljit-wait-value: the one place it is written."""

__version__ = "0.1.0"
