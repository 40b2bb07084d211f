"""How does a registry of container images (OCI) hold objects? Each as an artifact of one layer, under a tag of its own.

The tag is the sha256 of the object's name. An object of up to 1 MiB stands in its manifest, too (``data`` of its
descriptor), so that one request brings it. Rejected: oras-py, whose requests have no time-out and whose bodies have
no limit.

The digests of a registry say that an object is undamaged, and not whose it is: objects are verified as everywhere.
A registry has no conditional write. If two publish at the same moment, the last wins.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit

from sgljit_core.errors import ConfigError

from . import config, web
from .errors import RefusedObjectError, RemoteUnavailableError
from .store import Sink, Store

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_KIND = "application/vnd.sgljit.object.v1"
_EMPTY = b"{}"  # the config of an artifact that has none
_MOST_INSIDE = 1 << 20  # bytes of an object that stands in its manifest
_MOST_OF_MANIFEST = 4 << 20  # what registries take
_MOST_OF_TOKEN = 1 << 20
_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class RegistryStore(Store):
    """A repository of a registry: ``oci://HOST/REPOSITORY``, or ``oci+http://`` for one without TLS.

    A user and a password stand in the URL, or in docker's file of them.
    """

    def __init__(self, url: str, seconds: float = math.inf) -> None:
        parts = urlsplit(url)
        user, at, self._host = parts.netloc.rpartition("@")
        repository = parts.path.strip("/")
        self.shown = f"{parts.scheme}://{self._host}/{repository}"
        if not self._host or not _REPOSITORY.fullmatch(repository):
            raise ConfigError(f"a registry is named oci://HOST/REPOSITORY, in lower case; got {self.shown}")
        self._root = f"{'http' if parts.scheme == 'oci+http' else 'https'}://{self._host}/v2/{repository}"
        self._user = unquote(user) if at else config.docker_user(self._host)
        self._authorization = ""  # as the registry has asked for it last
        self._client = web.Client(seconds)

    def get_ready(self) -> None:
        if self._root.startswith("https:"):
            self._client.get_ready()

    def stream(self, name: str, most: int, deadline: float, sink: Sink) -> bool:
        with self._answered(self._manifest(name), deadline, headers={"Accept": _MANIFEST}) as answer:
            if answer is None:
                return False
            text = web.body(answer, name, _MOST_OF_MANIFEST, deadline)
        digest, size, inside = _layer(name, text)
        if size > most:
            raise web.too_large(name, most)
        found = hashlib.sha256()
        sink.begin()
        for piece in [inside] if inside is not None else self._blob(digest, name, most, deadline):
            found.update(piece)
            sink.write(piece)
        if f"sha256:{found.hexdigest()}" != digest:
            raise RefusedObjectError(f"{name} is not what its digest says")
        return True

    def put(self, name: str, content: bytes, deadline: float, *, replace: bool) -> bool:
        if not replace and self._has(self._manifest(name), deadline):
            return False
        for blob in (_EMPTY, content):
            self._upload(blob, deadline)
        layer: dict[str, Any] = {"mediaType": _KIND, "digest": _digest(content), "size": len(content)}
        layer["annotations"] = {"org.opencontainers.image.title": name}
        if len(content) <= _MOST_INSIDE:
            layer["data"] = base64.b64encode(content).decode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": _KIND,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": _digest(_EMPTY), "size": 2},
            "layers": [layer],
        }
        try:
            self._write(self._manifest(name), deadline, json.dumps(manifest).encode(), _MANIFEST)
        except web.ExistsError as error:  # somebody was faster, and a tag of this registry cannot change
            return web.kept(error, name, replace=replace)
        return True

    def _manifest(self, name: str) -> str:
        return f"{self._root}/manifests/{hashlib.sha256(name.encode()).hexdigest()}"

    def _blob(self, digest: str, name: str, most: int, deadline: float) -> Iterator[bytes]:
        with self._answered(f"{self._root}/blobs/{digest}", deadline) as answer:
            if answer is None:
                raise RefusedObjectError(f"{name} has a manifest, and no content")
            yield from web.pieces(answer, name, most, deadline)

    def _has(self, url: str, deadline: float) -> bool:
        with self._answered(url, deadline, method="HEAD", headers={"Accept": _MANIFEST}) as answer:
            return answer is not None

    def _upload(self, blob: bytes, deadline: float) -> None:
        if self._has(f"{self._root}/blobs/{_digest(blob)}", deadline):
            return
        url = f"{self._root}/blobs/uploads/"
        with self._answered(url, deadline, data=b"", method="POST") as answer:
            location = "" if answer is None else answer.headers.get("Location", "")
        if not location:
            raise RemoteUnavailableError("it takes no uploads")
        place = _by_same_scheme(url, location, "uploads")
        digest = urlencode({"digest": _digest(blob)})
        self._write(f"{place}{'&' if '?' in place else '?'}{digest}", deadline, blob, "application/octet-stream")

    def _write(self, url: str, deadline: float, content: bytes, kind: str) -> None:
        with self._answered(url, deadline, data=content, method="PUT", headers={"Content-Type": kind}) as answer:
            if answer is None:
                raise RemoteUnavailableError("it does not take what is written: status 404")

    @contextlib.contextmanager
    def _answered(self, url: str, deadline: float, **request: Any) -> Iterator[Any]:
        """The answer, after the registry was told who asks if it wants to know."""
        with contextlib.ExitStack() as stack:
            for is_last in (False, True):
                own = self._authorization if urlsplit(url).netloc == self._host else ""
                try:
                    answer = stack.enter_context(self._client.answered(url, deadline, own, **request))
                    break
                except web.UnauthorizedError as error:
                    if is_last:
                        raise
                    self._authorization = self._answer_to(error.challenge, deadline)
            yield answer

    def _answer_to(self, challenge: str, deadline: float) -> str:
        """The header that a registry asks for: a user and a password, or a token for them, or for nobody."""
        kind, _, rest = challenge.partition(" ")
        fields = dict(_CHALLENGE.findall(rest))
        if kind.lower() == "basic" and self._user:
            return web.basic(self._user)
        if kind.lower() != "bearer" or "realm" not in fields:
            raise RemoteUnavailableError("it asks for a user and a password, and none is known: see `docker login`")
        realm = _by_same_scheme(self._root, fields["realm"], "a password")
        asked = urlencode({name: fields[name] for name in ("service", "scope") if name in fields}, quote_via=quote)
        url = f"{realm}{'&' if '?' in realm else '?'}{asked}"
        with self._client.answered(url, deadline, web.basic(self._user) if self._user else "") as answer:
            text = b"" if answer is None else web.body(answer, "a token", _MOST_OF_TOKEN, deadline)
        try:
            document = json.loads(text)
            return f"Bearer {document.get('token') or document['access_token']}"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RemoteUnavailableError(f"{realm} gives no token") from error


def _by_same_scheme(url: str, location: str, what: str) -> str:
    """Where a registry wants something sent to, from a URL on: not out of TLS. Raises RemoteUnavailableError."""
    try:
        place = urljoin(url, location)
        scheme = urlsplit(place).scheme
    except ValueError as error:
        raise RemoteUnavailableError(f"it wants {what} sent to {location!r}, which is no URL") from error
    if scheme != urlsplit(url).scheme:
        raise RemoteUnavailableError(f"it wants {what} sent to {scheme}://")
    return place


def _layer(name: str, text: bytes) -> tuple[str, int, bytes | None]:
    """The digest and size of the one layer of a manifest, and its content if that stands there."""
    try:
        (layer,) = json.loads(text)["layers"]
        digest, size, data = layer["digest"], layer["size"], layer.get("data")
        if not isinstance(size, int) or not _DIGEST.fullmatch(digest):
            raise ValueError(digest)
        inside = None if data is None else base64.b64decode(data, validate=True)
        if inside is not None and len(inside) != size:
            raise ValueError(f"{len(inside)} bytes, not {size}")
        return digest, size, inside
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RefusedObjectError(f"{name} has a manifest that is none of an object ({type(error).__name__})") from error
