"""Which chains of each graph of this process run on ops of ours, and why not the others?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["GRAPHS", "Graph", "explain"]


@dataclass
class Graph:
    """A graph that was compiled.

    Attributes:
        device: the type of its device, such as "cuda".
        note: why nothing was looked at, such as a graph that torch's cache had; "" where it was.
        chains: by part, such as "add + norm", how many chains run on an op of ours.
        left: by part and reason, how many stay the compiler's.
        only_measured: whether a chain is left if nobody measured an op for its shape.
    """

    device: str = ""
    note: str = ""
    chains: Counter[str] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    only_measured: bool = False

    def __str__(self) -> str:
        if self.note:
            return self.note
        put = ", ".join(f"{count} x {part}" for part, count in self.chains.items()) or "nothing on ops of ours"
        left = "; ".join(f"{count} x {part} left: {reason}" for (part, reason), count in self.left.items())
        return f"{self.device}: {put}" + (f"; {left}" if left else "")


GRAPHS: list[Graph] = []


def explain() -> list[Graph]:
    r"""The graphs of this process: a ``Graph`` for each graph that torch.compile gave to it, oldest first.

    >>> print(*explain(), sep="\n")
    cuda: 16 x qk-norm + rope + store, 31 x add + norm; 17 x norm left: no addition is right before it
    """
    return list(GRAPHS)
