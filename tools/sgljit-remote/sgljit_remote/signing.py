"""Whose code is it? Ed25519 signatures over manifests, by the keys that an operator trusts.

A manifest holds the sha256 of its payload and all ingredients of its keys, so that a signature over it covers both: the
code, and what it may be used for. Files of keys are as good as code: one that another user could have written is
refused, by the rules of the cache.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sgljit_core.errors import UntrustedCacheError
from sgljit_core.machine import roots

from .errors import KeyFileError

_PREFIX = b"sgljit manifest 1\n"  # a signature for something else is none for a manifest
_LARGEST = 1 << 16
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\s+(MCowBQYDK2VwAyEA[\w+/]{43}=)\s+-----END PUBLIC KEY-----\s*")


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """The signature of the text of a manifest."""
    return key.sign(_PREFIX + manifest)


def is_signed(manifest: bytes, signature: bytes, trusted: Sequence[Ed25519PublicKey]) -> bool:
    """Whether a signature of the text of a manifest is that of one of the keys."""
    for key in trusted:
        try:
            key.verify(signature, _PREFIX + manifest)
        except InvalidSignature:
            continue
        return True
    return False


def new_key(path: Path) -> Path:
    """Write a new private key, which only its owner can read, and beside it ``.pub``, its public key; that one's path.

    Raises KeyFileError: one of the two is there already, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization

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
                opened.write(content)
    except OSError as error:
        raise KeyFileError(f"{error.filename} cannot be written ({error.strerror}); name another file") from error
    return public


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key of a file. Raises KeyFileError."""
    from cryptography.hazmat.primitives import serialization

    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} is not a private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is a key of another kind; expected Ed25519, as `sgljit-remote key new` makes it")
    return key


def public_keys(places: Sequence[Path]) -> tuple[Ed25519PublicKey, ...]:
    """The keys of files, and of the files ``*.pub`` of directories. Raises KeyFileError, also where there is none."""
    keys = [_public_key(file) for place in places for file in _files(place)]
    if not keys:
        named = ", ".join(map(str, places))
        raise KeyFileError(f"SGLJIT_TRUSTED_KEYS names {named}, where there is no key; expected files *.pub")
    return tuple(keys)


def _files(place: Path) -> Iterator[Path]:
    return iter(sorted(place.glob("*.pub")) if place.is_dir() else [place])


def _public_key(path: Path) -> Ed25519PublicKey:
    content = _read(path)
    if plain := _PEM.fullmatch(content):  # the one form that Ed25519 has
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(plain[1])[-32:])
    from cryptography.hazmat.primitives import serialization  # takes 4 ms to import

    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} is not a public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path} is a key of another kind; expected Ed25519, as `sgljit-remote key new` makes it")
    return key


def _read(path: Path) -> bytes:
    try:
        real = path.resolve(strict=True)
        roots.check(real.parent)
        with real.open("rb") as file:
            roots.check_file(real, os.fstat(file.fileno()))
            return file.read(_LARGEST)
    except UntrustedCacheError as error:
        raise KeyFileError(f"the key {path} is not used: {error}") from error
    except OSError as error:
        raise KeyFileError(f"the key {path} cannot be read ({error.strerror})") from error
