"""How is any store asked? For objects by their names, whole or in pieces.

A store raises TryAgainError for a failure that may pass, RemoteUnavailableError for one that does not, and
RefusedObjectError for an object that is too large.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Sink:
    """Where the bytes of an object go, over all attempts to read it.

    Attributes:
        size: the bytes that are there.
        heard: a number that changes whenever something comes.
        tag: what the server calls the object that they are of, so that an attempt can go on; "" where none can.
    """

    def __init__(self, write: Callable[[bytes], object], clear: Callable[[], object]) -> None:
        self.size, self.heard, self.tag = 0, 0, ""
        self._write, self._clear = write, clear

    def begin(self, tag: str = "") -> None:
        """Forget what an attempt before has written."""
        self._clear()
        self.size, self.tag = 0, tag

    def write(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._write(piece)
        self.size += len(piece)
        self.heard += len(piece)


class Store(ABC):
    """The objects below a URL, by name. ``shown`` is the URL for messages, without passwords."""

    shown: str
    is_network = True

    def check_scheme(self) -> None:  # noqa: B027 - most know theirs
        """Ask nothing. Raise RemoteUnavailableError: nobody knows the scheme of the URL, which may be misspelt."""

    def get_ready(self) -> None:  # noqa: B027 - most need nothing
        """Import what the first question needs. Asks nothing. Raises RemoteUnavailableError: a package is missing."""

    def get(self, name: str, most: int, deadline: float) -> bytes | None:
        """An object of at most so many bytes, by one attempt; None where there is none."""
        content = bytearray()
        there = self.stream(name, most, deadline, Sink(content.extend, content.clear))
        return bytes(content) if there else None

    @abstractmethod
    def stream(self, name: str, most: int, deadline: float, sink: Sink) -> bool:
        """Hand an object of at most so many bytes to ``sink``, piece by piece; whether there is one.

        Where it raises, the sink has a part, with which the next attempt may go on.
        """

    @abstractmethod
    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        """Write an object; whether it was written. One that is there already stays, unless ``replace``."""
