"""Where does a family or an op come from? For errors: a distribution is looked up when its name is printed."""

from __future__ import annotations

from typing import NamedTuple

NAMES_OF_PYTORCH = frozenset({"name"})  # attributes of each namespace of torch.ops: no op can have these names


class Origin(NamedTuple):
    """A family, or an op of it, as errors name it: with its distribution, version and place (file and line)."""

    family: str
    op: str = ""
    place: str = ""

    def __str__(self) -> str:
        named = f"op {self.family}.{self.op}" if self.op else f"family {self.family}"
        known = ", ".join(filter(None, (plugin_of(self.family), self.place)))
        return f"{named} ({known})" if known else named


def plugin_of(family: str) -> str:
    """The distribution and version that ship a family, for messages; "" where it is not known."""
    from . import discovery  # imports importlib_metadata, which takes longer than a hit

    claims = discovery.installed().get(family, ())
    return str(claims[0]) if len(claims) == 1 else ""
