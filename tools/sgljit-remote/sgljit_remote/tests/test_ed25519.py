"""Signatures are verified by the OpenSSL that is loaded, and by cryptography, with the same answers."""

from __future__ import annotations

import ssl
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sgljit_remote import ed25519

# The third of the test vectors of RFC 8032, section 7.1.
KEY = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
TEXT = bytes.fromhex("af82")
SIGNATURE = bytes.fromhex(
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
)
WAYS = ["openssl", "cryptography"]


@pytest.fixture(params=WAYS)
def has_signed(request, monkeypatch):
    if request.param == "openssl":
        if ed25519._loaded() is None:
            pytest.skip(f"this Python has loaded no libcrypto.so.3: {ssl.OPENSSL_VERSION}")
        monkeypatch.setattr(ed25519, "_by_cryptography", lambda *_: pytest.fail("cryptography was asked"))
    else:
        monkeypatch.setattr(ed25519, "_loaded", lambda: None)
    return ed25519.has_signed


def test_the_vector_of_the_standard_is_signed(has_signed):
    assert has_signed(KEY, SIGNATURE, TEXT) is True


def test_no_altered_byte_passes(has_signed):
    for place in range(len(SIGNATURE)):
        altered = bytearray(SIGNATURE)
        altered[place] ^= 1
        assert has_signed(KEY, bytes(altered), TEXT) is False
    assert has_signed(KEY, SIGNATURE, b"\xaf\x83") is False
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    assert has_signed(other, SIGNATURE, TEXT) is False


@pytest.mark.parametrize("signature", [b"", SIGNATURE[:-1], SIGNATURE + b"\0", bytes(64), b"\xff" * 64])
def test_what_is_no_signature_is_none(has_signed, signature):
    assert has_signed(KEY, signature, TEXT) is False


@pytest.mark.parametrize("text", [b"", b"\0", b"a\0b", bytes(1 << 20)])
def test_any_text_can_be_signed(has_signed, text):
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    assert has_signed(public, private.sign(text), text) is True
    assert has_signed(public, private.sign(text), text + b"\0") is False


@pytest.mark.parametrize("key", [b"", KEY[:-1], KEY + b"\0"])
def test_what_is_no_key_is_an_error(has_signed, key, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ValueError, match="32"):
        ed25519.has_signed(key, SIGNATURE, TEXT)


@pytest.mark.parametrize("answer", [None, -1, 2])
def test_where_openssl_says_neither_yes_nor_no_cryptography_is_asked(monkeypatch, answer):
    monkeypatch.setattr(ed25519, "_loaded", lambda: lambda *_: answer)
    assert ed25519.has_signed(KEY, SIGNATURE, TEXT) is True
    assert ed25519.has_signed(KEY, bytes(64), TEXT) is False


def test_a_library_without_the_functions_is_not_asked(monkeypatch):
    monkeypatch.setattr(ed25519, "_LIBRARY", "libc.so.6")
    ed25519._loaded.cache_clear()
    try:
        assert ed25519._loaded() is None
    finally:
        ed25519._loaded.cache_clear()


def test_a_refusal_leaves_no_error_for_the_next_tls_connection(monkeypatch):
    """OpenSSL keeps errors in a queue of the thread, which Python's ssl reads after a failed call."""
    if ed25519._loaded() is None:
        pytest.skip(f"this Python has loaded no libcrypto.so.3: {ssl.OPENSSL_VERSION}")
    import ctypes
    import os

    library = ctypes.CDLL("libcrypto.so.3", os.RTLD_NOLOAD)
    library.ERR_peek_error.restype = ctypes.c_ulong
    assert ed25519.has_signed(KEY, SIGNATURE[:-1], TEXT) is False
    assert library.ERR_peek_error() == 0


def test_to_verify_imports_no_cryptography(tmp_path):
    if ed25519._loaded() is None:
        pytest.skip(f"this Python has loaded no libcrypto.so.3: {ssl.OPENSSL_VERSION}")
    from sgljit_remote import signing

    public = signing.new_key(tmp_path / "key")
    signed = signing.sign(TEXT, signing.private_key(tmp_path / "key"))
    code = (
        "import hashlib, sys; from pathlib import Path; from sgljit_remote import signing\n"
        f"signing.check({TEXT!r}, {signed!r}, signing.public_keys([Path({str(public)!r})]))\n"
        "print(any(name.startswith('cryptography') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "False\n"
