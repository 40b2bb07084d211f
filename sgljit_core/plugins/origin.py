"""Where does a family or an op come from? For errors: a distribution is looked up when its name is printed."""

from __future__ import annotations

from dataclasses import dataclass

KERNELS = "sgljit.kernels"  # the entry points of kernel families
NAMES_OF_PYTORCH = frozenset({"name"})  # attributes of each namespace of torch.ops: no op can have these names


@dataclass(frozen=True)
class Origin:
    """A family, or an op of it, as errors name it: with its distribution, version and file.

    Attributes:
        family: the family's name.
        op: the op's name; empty for the family itself.
        place: the file and line of the declaration, where they are known.
    """

    family: str
    op: str = ""
    place: str = ""

    def __str__(self) -> str:
        named = f"op {self.family}.{self.op}" if self.op else f"family {self.family}"
        known = ", ".join(filter(None, (_distribution(self.family), self.place)))
        return f"{named} ({known})" if known else named


def _distribution(family: str) -> str:
    """The name and version of the distribution whose entry point names a family; empty where there is none."""
    import importlib_metadata

    for distribution in importlib_metadata.distributions():
        points = distribution.entry_points.select(group=KERNELS)
        if any(point.name.replace("-", "_") == family for point in points):
            return f"{distribution.metadata['Name']} {distribution.version}"
    return ""
