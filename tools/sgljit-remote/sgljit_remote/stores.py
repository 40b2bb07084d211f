"""How are the objects of a remote read and written? Each by one request.

Web servers are asked by ``web``, registries of container images by ``registry``, and a directory is read by the
rules of the cache. fsspec opens any other URL. Rejected: its directories, whose files have no owners.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sgljit_core.errors import UntrustedCacheError
from sgljit_core.machine import private

from . import owned, web
from .asking import TryAgainError
from .errors import RefusedObjectError, RemoteUnavailableError
from .store import Sink, Store

_OWN = ("", "file")
_PIECE = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of the local disk
# By these the packages of buckets download an object by one request. By default s3fs reads one of more than 50 MiB in
# parts, ten at once, and reports nothing before all ten are there: the archive would pass for stalled. gcsfs asks for
# the size first, and not where it is given headers. adlfs makes one request for up to 32 MiB.
_AS_ONE: dict[str, dict[str, object]] = {
    "s3": {"max_concurrency": 1},
    "s3a": {"max_concurrency": 1},
    "gs": {"headers": {}},
    "gcs": {"headers": {}},
}


def opened(url: str, seconds: float = math.inf, *, check_owners: bool) -> Store:
    """The store of a URL or an absolute path.

    Args:
        seconds: a web server that sends nothing for so long has stalled.
        check_owners: refuse what another user could have written, where the store is a directory.
    """
    scheme = urlsplit(url).scheme
    if scheme in _OWN:
        path = unquote(urlsplit(url).path) if scheme else url  # a path may have any character
        return DirectoryStore(Path(path), check_owners=check_owners)
    if scheme in ("oci", "oci+http"):
        from .registry import RegistryStore

        return RegistryStore(url, seconds)
    return HttpStore(url, seconds) if scheme in ("http", "https") else FsspecStore(url)


def shown(url: str) -> str:
    """A URL for messages: without a password, which may also be in its query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else parts.path


class DirectoryStore(Store):
    """A directory of this machine, or of a file server."""

    is_network = False

    def __init__(self, root: Path, *, check_owners: bool) -> None:
        self.shown = str(root)
        self._root = root
        self._check_owners = check_owners

    def stream(self, name: str, most: int, deadline: float, sink: Sink) -> bool:
        try:
            descriptor = self._open(name)
            try:
                if self._check_owners:
                    owned.check_file(self._root / name, descriptor)
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise RefusedObjectError(f"{name} is not a plain file")
                sink.begin()
                left = most + 1
                while left > 0 and (piece := os.read(descriptor, min(_PIECE, left))):
                    sink.write(piece)
                    left -= len(piece)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return False
        except UntrustedCacheError as error:
            others = (
                "trust what is signed (SGLJIT_TRUSTED_KEYS), or anybody who can write there (SGLJIT_REMOTE_UNSIGNED=1)"
            )
            raise RemoteUnavailableError(f"{error}. Or {others}") from error
        except PermissionError as error:
            raise RemoteUnavailableError(str(error)) from error
        except OSError as error:
            raise TryAgainError(str(error)) from error
        if left <= 0:
            raise web.too_large(name, most)
        return True

    def _check_root(self, advice: str = "") -> None:
        """Raise RemoteUnavailableError where there is no directory, TryAgainError where that cannot be seen now."""
        try:
            is_there = self._root.is_dir()
        except OSError as error:
            raise TryAgainError(str(error)) from error
        if not is_there:
            raise RemoteUnavailableError(f"{self._root} is not a directory{advice}") from None

    def _open(self, name: str) -> int:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        if not self._check_owners:
            return os.open(self._root / name, flags)
        *directories, last = name.split("/")
        with owned.directory(self._root, *directories) as place:
            return os.open(last, flags | os.O_NOFOLLOW, dir_fd=place)

    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        path = self._root / name
        written = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        self._check_root("; make it, for those who publish there")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with written.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                return settle(written, path, replace=replace)
            finally:
                written.unlink(missing_ok=True)
        except OSError as error:
            lasts = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            kind = RemoteUnavailableError if lasts else TryAgainError
            raise kind(f"{path} cannot be written ({error.strerror})") from error


def settle(written: str | Path, path: str | Path, *, replace: bool, place: int | None = None) -> bool:
    """Give a complete file its name; whether it got it. A link, unlike a rename, replaces nothing.

    Args:
        place: the descriptor of the directory that relative paths are in; None for the current directory.
    """
    if not replace:
        try:
            os.link(written, path, src_dir_fd=place, dst_dir_fd=place)
        except FileExistsError:
            return False
        except OSError as error:  # a file system without links
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            if os.access(path, os.F_OK, dir_fd=place):
                return False
        else:
            return True
    os.replace(written, path, src_dir_fd=place, dst_dir_fd=place)
    return True


class HttpStore(Store):
    """A web server. A user and a password in the URL are sent to it, and not to where it redirects."""

    def __init__(self, url: str, seconds: float = math.inf) -> None:
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        self._parts = parts._replace(netloc=host)
        self._authorization = web.basic(unquote(user)) if at else ""
        self._client = web.Client(seconds)
        self.shown = shown(url)

    def get_ready(self) -> None:
        if self._parts.scheme == "https":
            self._client.get_ready()

    def stream(self, name: str, most: int, deadline: float, sink: Sink) -> bool:
        headers = {"Range": f"bytes={sink.size}-", "If-Range": sink.tag} if sink.tag else {}
        try:
            with self._client.answered(self._url(name), deadline, self._authorization, headers=headers) as answer:
                if answer is None:
                    return False
                if not (sink.tag and web.goes_on(answer, sink.size)):
                    sink.begin(web.tag(answer))
                for piece in web.pieces(answer, name, most, deadline, sink.size):
                    sink.write(piece)
                return True
        except web.OtherPartError:
            sink.tag = ""  # the next attempt begins anew
            raise

    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        if not replace and self._has(name, deadline):
            return False
        headers = {"Content-Type": "application/octet-stream", **({} if replace else {"If-None-Match": "*"})}
        request = {"data": content, "method": "PUT", "headers": headers}
        try:
            with self._client.answered(self._url(name), deadline, self._authorization, **request) as answer:
                if answer is None:
                    raise RemoteUnavailableError(f"it does not take {name}: status 404")
                return True
        except web.ExistsError as error:
            return web.kept(error, name, replace=replace)

    def _has(self, name: str, deadline: float) -> bool:
        """Whether there is an object: a server may take a conditional PUT for any other, as nginx does."""
        headers = {"Range": "bytes=0-0"}  # not HEAD, which a server may not know
        try:
            with self._client.answered(self._url(name), deadline, self._authorization, headers=headers) as answer:
                return answer is not None
        except web.OtherPartError:  # an empty one
            return True

    def _url(self, name: str) -> str:
        return urlunsplit(self._parts._replace(path=f"{self._parts.path}/{quote(name)}"))


class FsspecStore(Store):
    """Whatever fsspec opens. An object is read as a file is downloaded, whose progress fsspec reports.

    Rejected: to read parts of a size, each by a request. An object that is replaced meanwhile would be damaged.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        scheme = urlsplit(url).scheme
        self.is_network, self._as_one = scheme != "memory", _AS_ONE.get(scheme, {})
        self.shown = shown(url)

    def stream(self, name: str, most: int, deadline: float, sink: Sink) -> bool:
        def hear(size: int | None, value: int, **_: object) -> None:
            if max(size or 0, value) > most:
                raise web.too_large(name, most)
            if time.monotonic() > deadline:  # nobody waits any more
                raise TryAgainError(f"it was not done with {name} in time")
            sink.heard = value

        with _temporary(name) as directory, self._failing_plainly():
            files, path = self._place(name)
            from fsspec.callbacks import Callback

            file = Path(directory, "object")
            try:
                files.get_file(path, str(file), callback=Callback(hooks={"": hear}), **self._as_one)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno in _FULL:
                    raise _no_room(name, error) from error
                raise
            if file.stat().st_size > most:  # of which nothing was reported
                raise web.too_large(name, most)
            content = file.read_bytes()
        sink.begin()
        sink.write(content)
        return True

    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        with self._failing_plainly():
            files, path = self._place(name)
            try:
                files.pipe_file(path, content, mode="overwrite" if replace else "create")
            except FileExistsError:
                return False
        return True

    def check_scheme(self) -> None:
        from fsspec.registry import known_implementations, registry  # takes 10 ms to import

        if (scheme := urlsplit(self._url).scheme) not in {*known_implementations, *registry}:
            known = "https, http, file, oci, oci+http, or one that fsspec knows, such as s3"
            raise RemoteUnavailableError(f"Protocol not known: {scheme}. Expected a URL that begins with {known}")

    def get_ready(self) -> None:
        self.check_scheme()
        from fsspec import get_filesystem_class

        try:
            get_filesystem_class(urlsplit(self._url).scheme)  # takes up to a second
        except ImportError as error:  # a package is missing
            raise RemoteUnavailableError(str(error)) from error

    def _place(self, name: str) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        self.get_ready()
        try:
            files, path = url_to_fs(self._url)  # which is kept, and made anew in a forked child
        except (ImportError, ValueError) as error:
            raise RemoteUnavailableError(str(error)) from error
        return files, f"{path.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _failing_plainly(self) -> Any:
        try:
            yield
        except (RemoteUnavailableError, RefusedObjectError):
            raise
        except PermissionError as error:
            raise RemoteUnavailableError(str(error)) from error
        except Exception as error:  # a package's, and may be anything
            raise TryAgainError(f"{type(error).__name__}: {error}") from error


def _temporary(name: str) -> tempfile.TemporaryDirectory[str]:
    """A directory for the file of an object, which only this user can write."""
    try:
        return tempfile.TemporaryDirectory(dir=private.process_directory(), ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_room(name, error) from error


def _no_room(name: str, error: OSError) -> RefusedObjectError:
    """A local disk that takes no file, which is no failure of the remote."""
    return RefusedObjectError(f"{name} cannot be written to a temporary file of this machine: {error}")
