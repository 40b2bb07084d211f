"""Which environment variables do the core, the tools and the remote read? From the settings of their modules."""

from __future__ import annotations

import re

import sgljit_remote.config
from sgljit_core import config
from sgljit_tools import observing


def variables() -> dict[str, str]:
    """The meaning of each variable, as the classes ``Settings`` document it."""
    text = "".join(kind.__doc__ or "" for kind in (config.Settings, observing.Settings, sgljit_remote.config.Settings))
    found = {}
    for setting in re.findall(r"^        \w+: (``[A-Z_]+``.+(?:\n            .+)*)", text, re.MULTILINE):
        names, _, meaning = " ".join(setting.split()).replace("``", "`").partition(": ")
        first, *others = names.split(", ")
        found[first] = meaning.rstrip(".")
        for other in others:
            name = other.removeprefix("else ")
            found[name] = meaning.rstrip(".") if name == other else f"the same, where {first} is not set"
    return found


def markdown() -> str:
    """A table of them."""
    rows = [f"| {name} | {meaning} |" for name, meaning in variables().items()]
    return "\n".join(["| variable | what it sets |", "|---|---|", *rows]) + "\n"
