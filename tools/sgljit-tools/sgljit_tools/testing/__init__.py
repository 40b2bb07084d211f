"""The conformance kit: does every op of a family do what it declares? docs/testing.md lists the checks.

``sgljit test FAMILY``, ``pytest --sgljit-family FAMILY`` and ``check_op`` run the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .subject import Fault, NotApplicable, Subject
    from .suite import build_variant, check_family, check_op
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(
        __name__,
        {
            "subject": ("Fault", "NotApplicable", "Subject"),
            "suite": ("build_variant", "check_family", "check_op"),
        },
    )

__all__ = ["Fault", "NotApplicable", "Subject", "build_variant", "check_family", "check_op"]
