"""Which environment variables does the core read? From the settings of ``sgljit_core.config``."""

from __future__ import annotations

import re

from sgljit_core import config


def variables() -> dict[str, str]:
    """What each variable sets, as ``config.Settings`` documents it; a setting that has two variables names both."""
    text = config.Settings.__doc__ or ""
    found = {}
    for setting in re.findall(r"^        \w+: (.+(?:\n            .+)*)", text, re.MULTILINE):
        told = " ".join(setting.split())
        names = re.match(r"``(\w+)``(?:, else ``(\w+)``)?: (.*)", told)
        if names is None:
            continue
        meaning = names[3].replace("``", "`")
        found[names[1]] = meaning[0].upper() + meaning[1:]
        if names[2]:
            found[names[2]] = f"The same, where `{names[1]}` is not set."
    return found


def markdown() -> str:
    """A table of them."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in variables().items()]
    return "\n".join(["| variable | what it sets |", "|---|---|", *rows]) + "\n"
