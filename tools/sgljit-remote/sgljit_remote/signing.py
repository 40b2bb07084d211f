"""Whose code is it? Ed25519 signatures over manifests, by the keys that an operator trusts.

A manifest holds the sha256 of its payload and all ingredients of its keys, so that a signature over it covers both: the
code, and what it may be used for. Files of keys are as good as code: one that another user could have written is
refused, by the rules of the cache.

A file of a key may begin with a line ``valid-until: 2027-01-31``, the last day (UTC) on which the key signs or its
signatures count. The line is not signed: who can write the file decides what is trusted anyway.

cryptography takes longer to import than a small artifact takes to bring. So nothing needs it before a signature is
made or verified, and ``import_library`` imports it while a server is waited for.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sgljit_core.errors import UntrustedCacheError

from . import owned
from .errors import KeyFileError, RefusedObjectError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_LARGEST = 1 << 16
_UNTIL = "valid-until"
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\s+(MCowBQYDK2VwAyEA[\w+/]{43}=)\s+-----END PUBLIC KEY-----\s*")


def import_library() -> None:
    """Import what verifies a signature. Where it is missing, the check of a signature says so."""
    with contextlib.suppress(ImportError):
        import cryptography.exceptions
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401


def load_keys(trusted: Sequence[TrustedKey]) -> None:
    """Let the library take the keys: the first one takes it as long as several signatures. A check says what fails."""
    with contextlib.suppress(Exception):
        for one in trusted:
            _verifier(one.key)


def sign(text: bytes, key: Ed25519PrivateKey, kind: str = "manifest") -> bytes:
    """The signature of the text of a manifest, or of something of another kind."""
    return key.sign(_signed(text, kind))


def _signed(text: bytes, kind: str) -> bytes:
    return f"sgljit {kind} 1\n".encode() + text  # a signature for one kind is none for another


class TrustedKey(NamedTuple):
    """A public key, the file that it is in, and the last day on which it counts, if there is one."""

    path: Path
    key: bytes
    until: date | None

    @property
    def fault(self) -> str:
        """Why it counts no more; "" where it does."""
        return _expired(self.path, self.until)


def _expired(path: Path, until: date | None) -> str:
    today = datetime.now(timezone.utc).date()
    return f"the key {path} was valid until {until}, and it is {today}" if until and today > until else ""


def check(text: bytes, signature: bytes | None, trusted: Sequence[TrustedKey], kind: str = "manifest") -> None:
    """Refuse a text that no trusted key has signed, or one that counts no more. Raises RefusedObjectError."""
    if signature is None:
        raise RefusedObjectError("it is not signed, and SGLJIT_TRUSTED_KEYS asks for a signature")
    key = signer(text, signature, trusted, kind)
    if key is None:
        raise RefusedObjectError("it is signed by none of the keys of SGLJIT_TRUSTED_KEYS")
    if key.fault:
        raise RefusedObjectError(f"{key.fault}: what it has signed must be signed by another one")


def signer(text: bytes, signature: bytes, trusted: Sequence[TrustedKey], kind: str = "manifest") -> TrustedKey | None:
    """The key that has signed a text; None where it is none of them. One that counts comes first."""
    from cryptography.exceptions import InvalidSignature

    for one in sorted(trusted, key=lambda key: bool(key.fault)):
        try:
            _verifier(one.key).verify(signature, _signed(text, kind))
        except InvalidSignature:
            continue
        return one
    return None


@functools.lru_cache(maxsize=64)
def _verifier(key: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(key)


def new_key(path: Path, until: date | None = None) -> Path:
    """Write a new private key, which only its owner can read, and beside it ``.pub``, its public key; that one's path.

    Args:
        until: the last day on which both count; None for no end.

    Raises:
        KeyFileError: one of the two is there already, or cannot be written.
    """
    header = f"{_UNTIL}: {until}\n".encode() if until else b""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private_text = key.private_bytes(serialization.Encoding.PEM, *form)
    text = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        if public.exists():
            raise FileExistsError(17, "it is there already", str(public))
        for file, content, mode in ((path, private_text, 0o600), (public, text, 0o644)):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(header + content)
    except OSError as error:
        raise KeyFileError(f"{error.filename} cannot be written ({error.strerror}); name another file") from error
    return public


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key of a file. Raises KeyFileError, also where it is not valid any more."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content, until = _read(path, "expected a private key, as --sign or SGLJIT_SIGNING_KEY names it")
    if fault := _expired(path, until):
        raise KeyFileError(f"{fault}: it signs nothing any more. Make another with `sgljit-remote key new`")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} is not a private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is a key of another kind; expected Ed25519, as `sgljit-remote key new` makes it")
    return key


def public_keys(places: Sequence[Path]) -> tuple[TrustedKey, ...]:
    """The keys of files, and of the files ``*.pub`` of directories.

    One that has expired is among them, so that a refusal can name it. Raises KeyFileError, also where there is none, or
    none is valid any more.
    """
    keys = [_public_key(file) for place in places for file in _files(place)]
    if not keys:
        named = ", ".join(map(str, places))
        raise KeyFileError(f"SGLJIT_TRUSTED_KEYS names {named}, where there is no key; expected files *.pub")
    if all(key.fault for key in keys):
        faults = "; ".join(key.fault for key in keys)
        remedy = "Add the public key that signs now, or set the clock"
        raise KeyFileError(f"SGLJIT_TRUSTED_KEYS has no key that is valid: {faults}. {remedy}")
    return tuple(keys)


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        return iter([place])
    try:
        owned.check(place.resolve())
    except UntrustedCacheError as error:  # somebody else could put a key there, or a link to one
        raise KeyFileError(f"the keys in {place} are not used: {error}") from error
    return iter(sorted(place.glob("*.pub")))


def _public_key(path: Path) -> TrustedKey:
    content, until = _read(path, "expected public keys, as files *.pub, where SGLJIT_TRUSTED_KEYS names some")
    if plain := _PEM.fullmatch(content):  # the one form that Ed25519 has
        return TrustedKey(path, base64.b64decode(plain[1])[-32:], until)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} is not a public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path} is a key of another kind; expected Ed25519, as `sgljit-remote key new` makes it")
    return TrustedKey(path, key.public_bytes_raw(), until)


def _read(path: Path, expected: str) -> tuple[bytes, date | None]:
    """The PEM text of a key, and the last day on which it counts. ``expected`` says what names the key."""
    try:
        content = owned.read(path, _LARGEST)
    except UntrustedCacheError as error:
        raise KeyFileError(f"the key {path} is not used: {error}") from error
    except OSError as error:
        raise KeyFileError(f"the key {path} cannot be read ({error.strerror}); {expected}") from error
    header, begin, pem = content.partition(b"-----BEGIN ")
    if not begin:
        return content, None
    if (behind := pem.partition(b"-----END ")[2].partition(b"-----")[2]).strip():
        raise KeyFileError(f"{path} has text behind the key, which nobody reads: {behind.strip()[:80]!r}. Remove it")
    return begin + pem, _until(path, header.decode(errors="replace"))


def _until(path: Path, header: str) -> date | None:
    """The day that the lines before a key name. Another line could be a misspelt limit, and is refused."""
    until = None
    for line in filter(None, map(str.strip, header.splitlines())):
        name, _, value = line.partition(":")
        try:
            if name != _UNTIL or until:
                raise ValueError(line)
            until = date.fromisoformat(value.strip())
        except ValueError:
            raise KeyFileError(f"{path} begins with {line!r}; expected a line such as '{_UNTIL}: 2027-01-31'") from None
    return until
