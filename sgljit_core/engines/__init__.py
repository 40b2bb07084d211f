"""For adapters, the distributions that put ops into the models of an inference engine."""

from .adapter import Adapter

__all__ = ["Adapter"]
