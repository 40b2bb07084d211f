"""How is any store asked? For objects by their names, whole or in pieces.

A store raises TryAgainError for a failure that may pass, RemoteUnavailableError for one that does not, and
RefusedObjectError for an object that is too large.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

Write = Callable[[bytes], object]


class Store(ABC):
    """The objects below a URL, by name. ``shown`` is the URL for messages, without passwords."""

    shown: str
    is_network = True

    def get_ready(self) -> None:  # noqa: B027 - most need nothing
        """Import what the first question needs. Asks nothing. Raises RemoteUnavailableError: a package is missing."""

    def get(self, name: str, most: int, deadline: float) -> bytes | None:
        """An object of at most so many bytes; None where there is none."""
        content = bytearray()
        return bytes(content) if self.stream(name, most, deadline, content.extend) else None

    @abstractmethod
    def stream(self, name: str, most: int, deadline: float, write: Write) -> bool:
        """Hand an object of at most so many bytes to ``write``, piece by piece; whether there is one.

        Where it raises, pieces may have been written.
        """

    @abstractmethod
    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        """Write an object; whether it was written. One that is there already stays, unless ``replace``."""
