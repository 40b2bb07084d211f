"""Which kernel runs for each kind of layer in this process, and why not ours?"""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from sgljit_core import stats

if TYPE_CHECKING:
    from sgljit_core.builds.record import Stats

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
        layers: the layers on the op now; 0 where the adapter does not see layers.
        calls, own_calls: calls of the op, and of the engine's own code in its place, which only an adapter that sees
            layers counts. Calls in compiled graphs and replays of CUDA graphs are not counted.
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
        counts = f"; calls {self.calls}" if self.calls else ""
        if self.layers:
            counts = f"; layers {self.layers}, calls {self.calls}, of its own code {self.own_calls}"
        counts += f"; compared {self.compared}, at worst {self.worst:.2f} of its bound" if self.compared else ""
        counts += f"; built in {self.seconds:.2f} s" if self.seconds else ""
        text = f"{self.adapter}: {self.part} ({self.kind}) runs on {runs}{counts}"
        named = [f"    {name}, {source}" for name, source in self.variants.items()]
        return "\n".join([textwrap.fill(text, 80, subsequent_indent="    "), *named])


class Report(list[Use]):
    """Uses; as text, each in lines of at most 80 characters, and in a line of its own each variant.

    Attributes:
        others: as ``Use.variants``, those that later calls loaded, such as for another number of rows.
    """

    others: dict[str, str]

    def __str__(self) -> str:
        others = [f"loaded by a later call: {name}, {source}" for name, source in self.others.items()]
        return "\n".join([*map(str, self), *others])


USES: dict[tuple[str, ...], Use] = {}  # by adapter, op and kind


def report() -> Report:
    """The kernel of each kind of layer that adapters have seen in this process: a list of ``Use``, readable as text."""
    found = Report(dataclasses.replace(use, variants=dict(use.variants)) for use in list(USES.values()))
    found.others = variants(stats(), {name for use in found for name in use.variants})
    return found


def variants(now: Stats, known: Collection[str] = (), family: str = "") -> dict[str, str]:
    """The variants in the counts of the core, of one family or all, without the known names: where each came from."""
    return {
        name: _SOURCES.get(tier, tier)
        for name, (build, tier) in now.loads.items()
        if name not in known and build.family and family in ("", build.family) and not build.host_part
    }


def summary(adapter: str) -> str:
    """What runs on the ops of an adapter in this process, in one line."""
    uses = [use for use in list(USES.values()) if use.adapter == adapter]
    texts = []
    for op, part in {use.op: use.part for use in uses if not use.why}.items():
        names = {"layers": "layers", "calls": "calls", "own_calls": "calls of its own code"}
        sums = {name: sum(getattr(use, key) for use in uses if use.op == op) for key, name in names.items()}
        texts.append(f"{part} runs on {op}{_listed(sums, ' (', ')')}")
    sources = Counter({name: source for use in uses for name, source in use.variants.items()}.values())
    built = f"built in {seconds:.1f} s" if (seconds := sum(use.seconds for use in uses)) else ""
    whys = {(use.part, use.op, textwrap.shorten(use.why, 120)): None for use in uses if use.why}
    own = [f"{part} runs on the engine's own code, not {op}: {why}" for part, op, why in whys]
    return "; ".join(filter(None, [*texts, _listed(sources, "variants: "), built, *own]))


def _listed(counts: Mapping[str, int], before: str, after: str = "") -> str:
    text = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return text and before + text + after
