"""Which kernel runs for each kind of layer in this process, and why not ours?"""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from sgljit_core import stats

_SOURCES = {"made": "compiled here", "cache": "from disk", "carried": "carried by a wheel", "remote": "from a remote"}


@dataclasses.dataclass
class Use:
    """The kernel of a kind of layer.

    Attributes:
        adapter: the distribution of the adapter.
        part: what of the engine it is, such as "RMSNorm".
        kind: its class, size, dtype and device, those that the adapter names.
        op: the op for it.
        why: why the engine's own code runs instead; "" where the op runs.
        variants: the names of the variants that run, each with where it came from: "compiled here", "from disk",
            "carried by a wheel", "from a remote", "prebuilt" or "plugin". Empty where it is one of several that were
            loaded before.
        seconds: the time of the builds for it, with its family's host part if it is the first of that.
        layers: the layers that the op is for; 0 where the adapter does not see layers.
        calls, own_calls: calls of the op, and of the engine's own code in its place where the adapter counts them.
            Calls in compiled graphs and replays of CUDA graphs are not counted.
        compared, worst: calls that ``SGLJIT_SHADOW`` compared with the engine's own code, and their largest difference
            as a share of the op's bound.
    """

    adapter: str
    part: str
    kind: str
    op: str
    why: str = ""
    variants: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    layers: int = 0
    calls: int = 0
    own_calls: int = 0
    compared: int = 0
    worst: float = 0.0

    def __str__(self) -> str:
        runs = f"the engine's own code, not {self.op}: {self.why}" if self.why else self.op
        more = f"; compared {self.compared}, at worst {self.worst:.2f} of its bound" if self.compared else ""
        more += f"; built in {self.seconds:.2f} s" if self.seconds and not self.why else ""
        text = f"{self.adapter}: {self.part} ({self.kind}) runs on {runs}{_counted([self])}{more}"
        named = [f"    {name}, {source}" for name, source in self.variants.items()]
        return "\n".join([textwrap.fill(text, 80, subsequent_indent="    "), *named])


class Report(list[Use]):
    """Uses; as text, each in lines of at most 80 characters, and in a line of its own each variant.

    Attributes:
        others: as ``Use.variants``, those that later calls loaded, such as for another number of rows.
    """

    others: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        others = [f"loaded by a later call: {name}, {source}" for name, source in self.others.items()]
        return "\n".join([*map(str, self), *others])


USES: dict[tuple[str, ...], Use] = {}  # by adapter, op and kind


def report() -> Report:
    """The kernel of each kind of layer that adapters have seen in this process: a list of ``Use``, readable as text."""
    found = Report(dataclasses.replace(use, variants=dict(use.variants)) for use in list(USES.values()))
    found.others = variants(stats().loads, {name for use in found for name in use.variants})
    return found


def variants(loads: Mapping[str, Any], known: Collection[str] = (), family: str = "") -> dict[str, str]:
    """Where the variants among the core's ``loads`` came from, without the known names: those of a family, or all."""
    return {
        name: _SOURCES.get(tier, tier)
        for name, (build, tier) in loads.items()
        if name not in known and build.family and family in ("", build.family) and not build.host_part
    }


def summary(adapter: str) -> str:
    """The engine's parts that run on an adapter's ops in this process, and why others do not, in one line."""
    uses = [use for use in list(USES.values()) if use.adapter == adapter]
    parts = {use.op: use.part for use in uses if not use.why}
    texts = [f"{parts[op]} runs on {op}{_counted([use for use in uses if use.op == op])}" for op in parts]
    sources = Counter({name: source for use in uses for name, source in tuple(use.variants.items())}.values())
    if sources:
        texts.append("variants: " + ", ".join(f"{number} {source}" for source, number in sources.items()))
    if seconds := sum(use.seconds for use in uses if not use.why):
        texts.append(f"built in {seconds:.1f} s")
    for why in {use.why: None for use in uses if use.why}:
        names = ", ".join({use.op: None for use in uses if use.why == why})
        texts.append(f"the engine's own code runs in place of {names}: {textwrap.shorten(why, 120)}")
    return "; ".join(texts)


def _counted(uses: list[Use]) -> str:
    names = {"layers": "layer{}", "calls": "call{}", "own_calls": "call{} of its own code"}
    sums = {name: sum(getattr(use, key) for use in uses) for key, name in names.items()}
    counts = [f"{number} {name.format('s' * (number > 1))}" for name, number in sums.items() if number]
    return f" ({', '.join(counts)})" if counts else ""
