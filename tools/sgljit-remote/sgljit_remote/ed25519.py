"""Has a key signed a text? OpenSSL says so: the one that this process has loaded for ``hashlib``, else cryptography's.

To import cryptography takes 5 ms of CPU time, of which most is the load of an OpenSSL of its own: a third of what a
first artifact takes. Rejected: PyNaCl takes 3.5 ms, and is one more package. Where OpenSSL has another name or is part
of the interpreter, and where it says anything but yes or no, cryptography is asked.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

KEY_BYTES = 32
_LIBRARY = "libcrypto.so.3"
_ED25519 = 1087  # EVP_PKEY_ED25519
_YES, _NO = 1, 0


def has_signed(key: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature over a text is one of a public key of 32 bytes. Raises ValueError: it is no such key."""
    if len(key) == KEY_BYTES and (verify := _loaded()) is not None:
        answer = verify(key, signature, text)
        if answer in (_YES, _NO):
            return answer == _YES
    return _by_cryptography(key, signature, text)


def _by_cryptography(key: bytes, signature: bytes, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except InvalidSignature:
        return False
    return True


@functools.cache
def _loaded() -> Callable[[bytes, bytes, bytes], int | None] | None:
    """The question to the OpenSSL that is loaded; None where there is none of this name."""
    try:
        library = ctypes.CDLL(_LIBRARY, os.RTLD_NOLOAD)
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        functions = {
            "EVP_PKEY_new_raw_public_key": (pointer, number, pointer, ctypes.c_char_p, size),
            "EVP_PKEY_free": (None, pointer),
            "EVP_MD_CTX_new": (pointer,),
            "EVP_MD_CTX_free": (None, pointer),
            "EVP_DigestVerifyInit": (number, pointer, pointer, pointer, pointer, pointer),
            "EVP_DigestVerify": (number, pointer, ctypes.c_char_p, size, ctypes.c_char_p, size),
            "ERR_clear_error": (None,),
        }
        for name, (result, *parameters) in functions.items():
            getattr(library, name).restype = result
            getattr(library, name).argtypes = parameters
    except (OSError, AttributeError):
        return None
    return functools.partial(_asked, library)


def _asked(library: ctypes.CDLL, key: bytes, signature: bytes, text: bytes) -> int | None:
    """1 for yes, 0 for no; anything else is no answer."""
    public = library.EVP_PKEY_new_raw_public_key(_ED25519, None, key, len(key))
    context = library.EVP_MD_CTX_new()
    try:
        if not (public and context) or library.EVP_DigestVerifyInit(context, None, None, None, public) != 1:
            return None
        answer: int = library.EVP_DigestVerify(context, signature, len(signature), text, len(text))
        return answer
    finally:
        library.EVP_MD_CTX_free(context)
        library.EVP_PKEY_free(public)
        library.ERR_clear_error()  # what is left in this thread's queue would be taken for an error of a TLS connection
