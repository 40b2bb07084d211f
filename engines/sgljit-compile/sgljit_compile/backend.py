"""What does ``torch.compile(model, backend="sgljit")`` do with a graph?

It gives the graph to inductor, with one pass more. The pass works on inductor's ATen graph, not on the graph of dynamo,
for three reasons. It is canonical: ``x.pow(2)``, ``x * x`` and ``torch.square`` are few forms there, and dtype
conversions stand where they happen. It has no writes: an ``index_copy_`` into a cache is a value that later readers
take, so that the order of reads and writes cannot be mistaken, and inputs that share memory have been sorted out. And
gradients are known: a graph of a training step is no inference graph, and stays as it is.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from . import attention, inductor, measured
from .adapter import ADAPTER
from .ops import FAILED, TRIALS, functions, identity, lines, loads
from .records import GRAPHS, Graph
from .rewriting import rewrite

__all__ = ["sgljit"]

_CACHED = (
    "a graph from torch's caches, with the ops that were put in when it was first compiled "
    "(TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles it anew)"
)
_GRADIENTS = "a graph with gradients stays the compiler's; call the model inside of torch.no_grad()"
_ROUNDING = "emulate_precision_casts asks for roundings that a fused op does not make: nothing is put in"
_JOINED = "post_grad_fusion_options moves results of matrix products, which the ops overwrite: nothing is put in"
_OFF = "nothing is used: it is switched off, or no op of ours works here; the log says which"
_UNMEASURED = (
    f"nothing is used on this device: the ops were measured as faster on compute capability {measured.CHIP[0]}."
    f"{measured.CHIP[1]} alone; options={{'chains': 'on'}} uses them on others and on the CPU, too"
)


def sgljit(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend ``sgljit`` of torch.compile: inductor, with chains of a decoder layer on ops of ours.

    Args:
        module, inputs: what torch.compile gives to a backend.
        mode: of torch.compile, such as "reduce-overhead".
        options: of inductor, and two more. ``chains``: which ops to use, as ``SGLJIT_ENGINES`` names them; without it
            they are used where they were measured as faster, and what it names is used on any device and shape.
            ``mode``: as the argument, since torch.compile takes no mode beside options.

    Raises:
        sgljit_core.errors.ConfigError: ``chains`` or ``SGLJIT_ENGINES`` names what no adapter has.
    """
    own = {"mode": mode, "chains": None}
    own |= {name: given for name, given in (options or {}).items() if name in own}
    chosen = {
        **inductor.mode_options(own["mode"]),
        **{n.replace("-", "_"): x for n, x in (options or {}).items() if n not in own},
    }
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    record = Graph(", ".join(sorted({device.type for device in devices})), only_measured=own["chains"] is None)
    ops = _ops(own["chains"], devices)
    if not ops:
        is_asked = own["chains"] is not None or any(map(measured.is_measured, devices))
        record.note = _OFF if is_asked else _UNMEASURED
    elif inductor.wants_gradients(inputs):
        record.note, ops = _GRADIENTS, {}
    elif inductor.keeps_roundings(chosen):
        record.note, ops = _ROUNDING, {}
    elif inductor.joins_products(chosen):
        record.note, ops = _JOINED, {}
    else:
        record.note = _CACHED
    has_regions = any(isinstance(child, fx.GraphModule) for child in module.children())
    rewriting = functools.partial(_rewrite, record, has_regions) if ops else None
    depends = f"{record.only_measured} {attention.switches()}"
    make = functools.partial(_compiled, module, inputs, chosen, rewriting, depends)
    compiled = make(ops)
    while record.note == _CACHED and not FAILED.isdisjoint(ops):
        # Their kernels were lost since the graph got into torch's caches. A warning has said why.
        ops = {op: types for op, types in ops.items() if op not in FAILED}
        compiled = make(ops)
    GRAPHS.append(record)
    ADAPTER.say(logging.INFO, "engine_graph", f"with {ADAPTER.versions()}: {record}")
    return compiled


_backend: Any = sgljit
_backend.reset = inductor.reset  # torch.compiler.reset() calls it


def _compiled(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    chosen: Mapping[str, Any],
    rewriting: Callable[..., None] | None,
    depends: str,
    ops: Mapping[str, frozenset[str]],
) -> Callable[..., Any]:
    """The code of a graph with some ops, or that which torch's caches have."""
    TRIALS.clear()
    FAILED.clear()
    rewrite = None if rewriting is None else functools.partial(rewriting, ops)
    return inductor.compile_graph(module, inputs, chosen, rewrite, f"{identity(ops)} {depends}", functions(ops), lines)


def _ops(chains: str | None, devices: Iterable[torch.device]) -> dict[str, frozenset[str]]:
    """The ops to use, each with the types of devices to use it on."""
    ops = ADAPTER.start("on" if chains is None else chains)
    asked = (device for device in devices if chains is not None or measured.is_measured(device))
    types = frozenset({"cpu", "cuda"}.intersection(device.type for device in asked))
    return loads(dict.fromkeys(sorted(ops), types) if types else {})


def _rewrite(record: Graph, has_regions: bool, ops: Mapping[str, frozenset[str]], graph: fx.Graph) -> None:
    record.note = ""
    rewrite(graph, ops, record, has_regions)
