"""Which difference of two signatures an error names."""

from __future__ import annotations

import pytest

from sgljit_core.errors import SignatureError
from sgljit_core.load import signatures

INT, INT_FLOAT = (f"N3sgl9signatureIFv{parameters}EEE" for parameters in ("i", "if"))


@pytest.mark.parametrize(
    ("declared", "own", "text"),
    [
        (INT_FLOAT, INT, "it has no parameter 2, and the host part has parameter 2: float"),
        (INT, INT_FLOAT, "it has parameter 2: float, and the host part has no parameter 2"),
        ("unreadable", "other", "it has other, and the host part has unreadable"),
    ],
)
def test_the_first_difference_is_named(declared, own, text):
    with pytest.raises(SignatureError, match=f"the kernel k does not take what the host part passes: {text}. Declare"):
        signatures.check("the kernel k", declared, own)


def test_equal_signatures_pass():
    signatures.check("the kernel k", f"_Z{INT}", INT)
