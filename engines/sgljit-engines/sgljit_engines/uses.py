"""Which kernel runs for each kind of layer in this process, and why not ours?"""

from __future__ import annotations

import dataclasses
import textwrap


@dataclasses.dataclass
class Use:
    """The kernel of a kind of layer.

    Attributes:
        adapter: the distribution of the adapter.
        part: what of the engine it is, such as "RMSNorm".
        kind: its class, size, dtype and device, those that the adapter names.
        op: the op for it.
        why: why the engine's own code runs instead; "" where the op runs.
        source: where the op's code was found: "compiled", a tier of ``sgljit_core.stats``, "" for code that was loaded.
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
    source: str = ""
    seconds: float = 0.0
    layers: int = 0
    calls: int = 0
    own_calls: int = 0
    compared: int = 0
    worst: float = 0.0

    def __str__(self) -> str:
        runs = f"the engine's own code, not {self.op}: {self.why}" if self.why else self.op
        source = f" ({self.source}, {self.seconds:.2f} s)" if self.source else ""
        counts = f"; calls {self.calls}" if self.calls else ""
        if self.layers:
            counts = f"; layers {self.layers}, calls {self.calls}, of its own code {self.own_calls}"
        counts += f"; compared {self.compared}, at worst {self.worst:.2f} of its bound" if self.compared else ""
        text = f"{self.adapter}: {self.part} ({self.kind}) runs on {runs}{source}{counts}"
        return textwrap.fill(text, 80, subsequent_indent="    ")


class Report(list[Use]):
    """Uses; as text, each in lines of at most 80 characters."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


USES: dict[tuple[str, ...], Use] = {}  # by adapter, op and kind


def report() -> Report:
    """The kernel of each kind of layer that adapters have seen in this process: a list of ``Use``, readable as text."""
    return Report(map(dataclasses.replace, USES.values()))
