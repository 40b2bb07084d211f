"""How is one request put to a web server, and what does its answer mean? By Python's own library.

Rejected: fsspec's HTTP needs seven more packages, asks for the size first, and does not bound a reader.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import math
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from .asking import StalledError, TryAgainError
from .errors import RefusedObjectError, RemoteUnavailableError

_PIECE = 1 << 16
_PASSING = (408, 409, 425, 429)  # 409: another write, or no such directory


class ExistsError(Exception):
    """The server has the object already."""


class OtherPartError(TryAgainError):
    """The server does not go on where an attempt has ended."""


class UnauthorizedError(RemoteUnavailableError):
    """The server asks who is there; ``challenge`` says how to answer."""

    def __init__(self, text: str, challenge: str) -> None:
        self.challenge = challenge
        super().__init__(text)


def too_large(name: str, most: int) -> RefusedObjectError:
    """The error for an object of more bytes than may be."""
    return RefusedObjectError(f"{name} has more than {most} bytes")


def kept(error: ExistsError, name: str, *, replace: bool) -> bool:
    """The answer to a write of a server that keeps what it has: False. Raises RemoteUnavailableError if ``replace``."""
    if replace:
        raise RemoteUnavailableError(f"it does not replace {name}: {error}") from error
    return False


def basic(user: str) -> str:
    """The header of a user and a password, "user:password"."""
    return f"Basic {base64.b64encode(user.encode()).decode()}"


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to another web server, but not out of TLS. Nothing of its own body is read, of any size."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        fp.close()  # else the library reads it to its end
        scheme = urlsplit(newurl).scheme
        if scheme == "https" or (scheme == "http" and urlsplit(req.full_url).scheme == "http"):
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        if scheme == "http":
            raise RemoteUnavailableError("it redirects to an address without TLS")
        raise RemoteUnavailableError(f"it redirects to {scheme}://, which is no web server")  # the library takes FTP


class _Plain(http.client.HTTPConnection):
    """A connection without TLS that looks its host up by bytes.

    For a host in text, Python imports the codec of international names, which takes as long as a request.
    """

    def connect(self) -> None:
        try:
            host: Any = self.host.encode("ascii")
        except UnicodeEncodeError:
            host = self.host
        self.sock = socket.create_connection((host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Web(urllib.request.HTTPHandler):
    """Asks with TLS, too. To read the certificates that the machine trusts takes 20 ms: once, and when it is needed.

    The library's handler reads them for each request before Python 3.12, and later also where nobody asks with TLS.
    """

    https_request = urllib.request.HTTPHandler.http_request

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Plain, request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(http.client.HTTPSConnection, request, context=self.trusting)

    @functools.cached_property
    def trusting(self) -> ssl.SSLContext:
        """The certificates that servers may have."""
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context


class Client:
    """Requests, each in its time. Raises as a store does.

    Args:
        seconds: a server that sends nothing for so long has stalled.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        library = urllib.request  # its own choice of handlers has files, FTP, and the other one for TLS
        plain = (library.ProxyHandler, library.UnknownHandler, library.HTTPDefaultErrorHandler)
        self._opener, self._web = library.OpenerDirector(), _Web()
        for handler in (*plain, library.HTTPErrorProcessor, _SameScheme):
            self._opener.add_handler(handler())
        self._opener.add_handler(self._web)

    def get_ready(self) -> None:
        """Read the certificates that this machine trusts, for TLS."""
        _ = self._web.trusting

    @contextlib.contextmanager
    def answered(self, url: str, deadline: float, authorization: str = "", **request: Any) -> Iterator[Any]:
        """The answer to a request, while the block runs; None where the server has no such object.

        Args:
            authorization: sent to the server of the URL, and not to where it redirects.

        Raises:
            UnauthorizedError: status 401.
            ExistsError: status 412, to a PUT.
            OtherPartError: status 416.
        """
        asked = urllib.request.Request(url, **request)  # noqa: S310 - the scheme is one of HTTP's
        if authorization:
            asked.add_unredirected_header("Authorization", authorization)
        try:
            seconds = min(self._seconds, deadline - time.monotonic())
            with self._opener.open(asked, timeout=max(0.001, seconds)) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            error.close()
            text = f"it answers {error.code} {error.reason}"
            if error.code in (404, 410):
                yield None
            elif error.code == 401:
                raise UnauthorizedError(text, error.headers.get("WWW-Authenticate", "")) from error
            elif error.code == 412 and asked.get_method() == "PUT":
                raise ExistsError(text) from error
            elif error.code == 416:
                raise OtherPartError(text) from error
            elif error.code in _PASSING or error.code >= 500:
                raise TryAgainError(text) from error
            else:
                raise RemoteUnavailableError(text) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise StalledError("no answer") from error
            raise TryAgainError(str(error.reason)) from error
        except TimeoutError as error:
            raise StalledError("no answer") from error
        except (OSError, OverflowError, http.client.HTTPException, ValueError) as error:  # OverflowError: of a port
            if isinstance(error, RemoteUnavailableError | RefusedObjectError):
                raise
            raise TryAgainError(f"{type(error).__name__}: {error}") from error


def tag(answer: Any) -> str:
    """The strong ETag of an answer; "" where it has none."""
    named = str(answer.headers.get("ETag") or "")
    return named if re.fullmatch(r'"[^"\r\n]*"', named) else ""


def goes_on(answer: Any, size: int) -> bool:
    """Whether the answer is the rest of an object behind so many bytes; if not, it is all of it.

    Raises OtherPartError: it is another part.
    """
    if answer.status != 206:
        return False
    part = str(answer.headers.get("Content-Range") or "")
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", part)
    if found is None or int(found[1]) != size or int(found[2]) + 1 != int(found[3]):
        raise OtherPartError(f"it answers with {part or 'a part without a Content-Range'}; asked for bytes {size}-")
    return True


def body(answer: Any, name: str, most: int, deadline: float) -> bytes:
    """The whole body of an answer, of at most so many bytes. Raises as a store does."""
    return b"".join(pieces(answer, name, most, deadline))


def pieces(answer: Any, name: str, most: int, deadline: float, sent: int = 0) -> Iterator[bytes]:
    """The body of an answer. Raises as a store does, also at its end.

    Args:
        most: the object may have so many bytes.
        sent: so many of them came with other answers.
    """
    named = answer.headers.get("Content-Length")
    length = sent + int(named) if named else 0
    if length > most:
        raise too_large(name, most)
    while piece := answer.read1(_PIECE):
        sent += len(piece)
        if sent > most:
            raise too_large(name, most)
        if time.monotonic() > deadline:
            raise TryAgainError(f"it had sent {sent} bytes of {name}")
        yield piece
    if sent < length:
        raise TryAgainError(f"it ended {name} after {sent} bytes of {length}")
