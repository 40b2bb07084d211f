"""How is any store asked? For whole objects by their names.

A store raises TryAgainError for a failure that may pass, RemoteUnavailableError for one that does not, and
RefusedObjectError for an object that is too large.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Store(ABC):
    """The objects below a URL, by name. ``shown`` is the URL for messages, without passwords."""

    shown: str
    is_network = True

    @abstractmethod
    def get(self, name: str, most: int, deadline: float) -> bytes | None:
        """An object of at most so many bytes; None where there is none."""

    @abstractmethod
    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        """Write an object; whether it was written. One that is there already stays, unless ``replace``."""
