"""How does a graph that was compiled with another release of an op miss the caches of torch.compile?

torch.compile keeps compiled graphs on disk, and finds them by the names of their ops. A graph relies on more than
the name: on the schema, and on what the fake says of the result. So both are in the name, as a digest: it is the
overload's name, ``torch.ops.sgljit_norm.rmsnorm.v_0123456789ab``. A release that changes either has another op.
architecture.md has what was rejected ("Decisions").
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .schema import Declaration


def overload_name(declaration: Declaration, package: str) -> str:
    """The name of an op's overloads: it depends on everything that a graph with the op relies on.

    An op that only writes has no fake in graphs: its name is the same in all releases with the same schema. An op that
    returns something has another name in each ``__version__`` of the plugin's package, as its fake may call functions
    of other files. The text of the fake's own file counts, too.
    """
    parts = [form.name + schema for form, schema in zip(declaration.forms, declaration.schemas, strict=True)]
    if not declaration.only_writes:
        parts.append(getattr(sys.modules.get(package.partition(".")[0]), "__version__", ""))
        parts.append("" if declaration.fake is None else _text_of(declaration.fake))
    return "v_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _text_of(fake: Callable[..., Any]) -> str:
    """Its name, and the text of its file if that is Python."""
    while isinstance(fake, functools.partial):
        fake = fake.func
    name = f"{getattr(fake, '__module__', '')}.{getattr(fake, '__qualname__', type(fake).__qualname__)}"
    file = getattr(getattr(fake, "__code__", None), "co_filename", None)
    if file is None or not Path(file).is_file():
        return name
    return f"{name} {Path(file).read_text(encoding='utf-8', errors='replace')}"
