"""Which errors are raised? Each class of the ``errors`` modules, with what the page's table says to do."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import sgljit_engines.errors
import sgljit_remote.errors
import sgljit_tools.errors
from sgljit_core import errors

TABLE = (Path(__file__).resolve().parents[1] / "reference/errors.md").read_text(encoding="utf-8")
MODULES = (errors, sgljit_engines.errors, sgljit_remote.errors, sgljit_tools.errors)
KINDS = {name: getattr(module, name) for module in MODULES for name in module.__all__}


def _section(name: str) -> str:
    kind = KINDS[name]
    bases = [base for base in kind.__mro__[1:] if base not in (Exception, BaseException, object)]
    parts = [f"## {name}", inspect.cleandoc(kind.__doc__ or "").replace("``", "`")]
    if kind.__module__ != errors.__name__:
        parts.append(f"In `{kind.__module__}`.")
    if bases:
        parts.append(f"Caught as {', '.join(f'`{base.__name__}`' for base in bases)} as well.")
    own = kind.__dict__.get("__init__")
    data = re.findall(r"self\.([a-z]\w*) =", inspect.getsource(own)) if own else []
    if data:
        parts.append(f"Attributes: {', '.join(f'`{attribute}`' for attribute in data)}.")
    remedy = re.search(rf"^\| `{name}` \| .* \| (.*) \|$", TABLE, re.MULTILINE)
    if remedy:
        parts.append(f"**What to do:** {remedy[1]}.")
    return "\n\n".join(parts)


def markdown() -> str:
    """A section for each class, the base first."""
    names = sorted(KINDS, key=lambda name: (name != "SgljitError", name))
    return "\n\n".join(map(_section, names)) + "\n"
