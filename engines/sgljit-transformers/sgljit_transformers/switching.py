"""How does a model change to sgljit's ops, and back?

Each layer that computes what an op does gets another ``forward``, as an attribute of that one layer, and no other model
changes. The layer keeps its former ``forward`` beside it, and ``disable`` puts that back.

The ``kernels`` package does the same to the layers that its ``kernelize`` finds, and transformers calls that on a whole
model (``use_kernels = True``), and again with each change between training and inference. It gives a layer without a
kernel its class's own ``forward``. So the class of an enabled layer gets a condition, which is what ``kernelize`` asks
whether it may replace a layer: it may not while the layer is ours. The condition stays, and lets all other layers pass.
Rejected: putting the ops in by ``kernelize``, which logs lines for each layer with the root logger.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from types import MethodType
from typing import Any

from torch import nn

from sgljit_core import stats
from sgljit_core.errors import CaptureError
from sgljit_engines import Use

from .adapter import ADAPTER
from .errors import AlreadyEnabledError, ForeignForwardError, NotEnabledError, UnsupportedModelError
from .layers import Computation, match
from .rotations import Rotation, rotated
from .seams import Forward
from .trials import tried

__all__ = ["disable", "enable", "enabled"]

_OURS = "sgljit_replaced"  # the attribute of a layer that holds its _Replaced
_lock = threading.RLock()
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class _Replaced:
    """The op that a layer runs on, and what the layer had.

    Attributes:
        use: the op, and where its layers are counted; a copy of a layer has its own, as no report counts it.
        forward: the ``forward`` that it was given.
        before: its attribute ``forward`` before; None for a layer without such an attribute, which is the rule.
    """

    def __init__(self, use: Use, forward: object, before: Any) -> None:
        self.use, self.forward, self.before = use, forward, before


class _Condition:
    """``kernelize`` asks it about each layer of a class: ours stay, and the class's own condition decides on others."""

    def __init__(self, own: Callable[[nn.Module], bool] | None) -> None:
        self.own = own

    def __call__(self, layer: nn.Module) -> bool:
        return not _is_ours(layer) and (self.own is None or self.own(layer))


def enable(model: nn.Module, *, ops: str = "on", in_graphs: bool = False) -> dict[str, str]:
    """Let the layers of a model run on sgljit's ops, wherever no gradient is wanted.

    >>> enable(model)
    {'model.layers.0.input_layernorm': 'rmsnorm', ...}

    A layer is replaced if it computes what an op does (it is tried on a few numbers), and if the op works for its size
    and dtype on its device: what must be compiled is compiled now. The rest of the model stays as it is, and so does
    everything about a layer but its ``forward``. In training, with gradients enabled, or with an input that the op does
    not take, a replaced layer runs its own code. A layer that rotates queries and keys has the functions of its module
    as they are now. The model may be moved to another device or dtype afterwards: what
    must be compiled for it is compiled at the first call there.

    Call it before ``torch.compile`` and before threads use the model.

    Args:
        model: a model of transformers, or any module. Its parameters may be on any device.
        ops: the ops to use, as ``SGLJIT_ENGINES`` names them: "on", "off", or a list of families and ops such as
            "norm,-norm.gemma_rmsnorm". An op is used if both allow it. A family of which nothing is used is not
            imported.
        in_graphs: keep the ops in graphs of ``torch.compile``, too. By default a layer is its own code there: the
            compiler fuses it with what is around it, and an op that stands alone costs more than it saves. Rotations,
            experts and routers are always the model's own there.

    Returns:
        The op of each replaced layer, by the layer's name. Empty if nothing was done; a log line says why.

    Raises:
        AlreadyEnabledError: the model is enabled, or a part of it is.
        UnsupportedModelError, ForeignForwardError, sgljit_engines.errors.UnsupportedEngineError: with
            ``SGLJIT_ENGINES=strict``, where a warning would say that nothing, or not all, is replaced.
        sgljit_core.errors.ConfigError: ``ops`` or ``SGLJIT_ENGINES`` names what no adapter has.
        TypeError: it is no module.
    """
    _check_module(model)
    with _lock:
        if model in _models or any(map(_is_ours, model.modules())):
            raise AlreadyEnabledError(
                f"{_name(model)} is enabled, or holds a part that is; call sgljit_transformers.disable() with the same "
                f"model first"
            )
        wanted = ADAPTER.start(ops)
        done = _replace(model, wanted, in_graphs) if wanted else {}
        _models.add(model)
    return done


def disable(model: nn.Module) -> None:
    """Give each layer of an enabled model its own ``forward`` back: the same object, or none where it had none.

    Args:
        model: what ``enable`` was called with, or a copy of that.

    Raises:
        NotEnabledError: the model is not enabled.
        ForeignForwardError: since ``enable``, something else has replaced a layer's ``forward``. Nothing changes.
        TypeError: it is no module.
    """
    _check_module(model)
    with _lock:
        layers = {name: layer for name, layer in model.named_modules() if _is_ours(layer)}
        if model not in _models and not layers:
            raise NotEnabledError(f"{_name(model)} is not enabled; call sgljit_transformers.enable(model) first")
        for name, layer in layers.items():
            if vars(layer).get("forward") != getattr(layer, _OURS).forward and not _is_own(layer):
                raise ForeignForwardError(
                    f"{_name(model)}: since enable(), something else has replaced the forward of {name or 'the model'} "
                    f"({_text(vars(layer).get('forward'))}); take that away first, then call disable() again"
                )
        for layer in layers.values():
            _restore(layer)
        for part in model.modules():  # each may have been enabled by itself
            _models.discard(part)


@contextlib.contextmanager
def enabled(model: nn.Module, *, ops: str = "on", in_graphs: bool = False) -> Iterator[nn.Module]:
    """``enable`` for the length of a ``with`` block.

    >>> with enabled(model):
    ...     model.generate(**inputs)

    Raises:
        AlreadyEnabledError and the others of ``enable``, and at the end those of ``disable``.
    """
    enable(model, ops=ops, in_graphs=in_graphs)
    try:
        yield model
    finally:
        disable(model)


def _replace(model: nn.Module, wanted: frozenset[str], in_graphs: bool) -> dict[str, str]:
    """Replace what can be replaced, and log which layers run on which op. If it raises, nothing is replaced."""
    start = stats()
    found = {name: (layer, of) for name, layer in model.named_modules() if (of := match(layer)) is not None}
    foreign = {name: layer for name, (layer, _) in found.items() if not _is_own(layer)}
    if not found:
        _warn(UnsupportedModelError, f"{_name(model)} has no layer that computes what an op does: it stays as it is")
    if foreign:
        name, layer = next(iter(foreign.items()))
        text = (
            f"{_name(model)}: {len(foreign)} layers keep the forward that something else has given them, such as "
            f"{name} ({_text(vars(layer)['forward'])}). Two adapters cannot replace one layer: take that away first"
        )
        _warn(ForeignForwardError, text)
    done: dict[str, str] = {}
    answers: dict[Hashable, bool] = {}
    forwards: dict[Hashable, Forward] = {}
    angles = _angles(model)
    try:
        for name, (layer, of) in found.items():
            kind = _kind(layer, of)
            if missing := sorted({of.op, *of.needs} - wanted, key=of.op.__ne__):
                use = ADAPTER.use(of.op, kind)
                if use.layers:  # another model runs the op
                    use = ADAPTER.use(of.op, (*kind, f"of {_name(model)}"))
                use.why = ADAPTER.why_not(missing[0])
                if missing[0] != of.op:
                    use.why = f"it needs {missing[0]}: {use.why}"
            elif name in foreign:
                ADAPTER.use(of.op, (*kind, name)).why = f"{_text(vars(layer)['forward'])} is its forward"
            elif isinstance(of, Rotation) and of.takes_parts and angles and rotated(layer) not in {None, *angles}:
                ADAPTER.use(of.op, (*kind, "in parts")).why = "it rotates a part of each head"
            elif ADAPTER.attempt_once(of.op, functools.partial(of.attempt, layer), answers, kind):
                use = ADAPTER.use(of.op, kind)
                if tried(of.weight(layer)) is None:
                    use.variants.clear()
                # Two classes may have one name, and one class layers with several classes of activations.
                key = of, kind, type(layer).forward, type(getattr(layer, "act_fn", None))
                if key not in forwards:
                    forwards[key] = of.forward(layer, in_graphs, _give_up, use)
                _put_in(layer, use, forwards[key])
                done[name] = of.op
    except BaseException:
        for name in done:
            _restore(found[name][0])
        raise
    counts = Counter((type(found[name][0]).__name__, op) for name, op in done.items())
    text = ", ".join(f"{count} {layer} on {op}" for (layer, op), count in counts.items()) or "no layer is replaced"
    own = Counter(type(layer).__name__ for name, (layer, _) in found.items() if name not in done)
    text += "".join(f", {count} {layer} on their own code" for layer, count in own.items())
    if (seconds := stats().seconds - start.seconds) > 0:
        text += f"; compiled in {seconds:.1f} s"
    where = f"with {ADAPTER.versions()}, {_name(model)} on {_devices(model)}"
    ADAPTER.say(logging.INFO, "engine_model", f"{where}: {text}", layers=done)
    return done


def _kind(layer: nn.Module, of: Computation) -> tuple[object, ...]:
    """The op, class, size, dtype and device of a layer: one kernel serves all layers with these."""
    weight = of.weight(layer)
    where: tuple[object, ...] = () if weight is None else (weight.dtype, weight.device)
    return (of.op, type(layer).__name__, *of.kind(layer), *where)


def _angles(model: nn.Module) -> set[int]:
    """For how many elements of a head a model has angles, by the name that models have for their frequencies."""
    return {2 * buffer.numel() for name, buffer in model.named_buffers() if name.endswith("inv_freq")}


def _put_in(layer: nn.Module, use: Use, forward: Forward) -> None:
    bound = MethodType(forward, layer)
    setattr(layer, _OURS, _Replaced(use, bound, vars(layer).get("forward")))
    layer.forward = bound
    use.layers += 1
    cls: Any = type(layer)
    own = getattr(cls, "kernel_condition", None)
    if hasattr(cls, "kernel_layer_name") and not isinstance(own, _Condition):
        cls.kernel_condition = _Condition(own)


def _give_up(layer: nn.Module | None, op: str, error: Exception) -> None:
    """An op failed in a model: one warning, and every layer that runs on it gets its own ``forward`` back.

    A build that the capture of a CUDA graph forbids leaves this call alone to the layer's own code.

    Raises:
        The error itself, with ``SGLJIT_ENGINES=strict``.
    """
    ADAPTER.lose(op, error)
    if isinstance(error, CaptureError):
        return
    with _lock:
        layers = {other for model in _models for other in model.modules()}
        for other in layers if layer is None else layers | {layer}:
            if _is_ours(other) and getattr(other, _OURS).use.op == op:
                _restore(other)


def _restore(layer: nn.Module) -> None:
    replaced: _Replaced = vars(layer).pop(_OURS)
    replaced.use.layers -= 1
    if not replaced.use.layers:
        replaced.use.why = replaced.use.why or "no enabled model has such a layer"
    if vars(layer).get("forward") == replaced.forward or _is_own(layer):
        if replaced.before is None:
            vars(layer).pop("forward", None)
        else:
            layer.forward = replaced.before


def _is_ours(layer: nn.Module) -> bool:
    """Whether a layer runs on an op. One that was pickled does not: it has the mark, and its class's ``forward``."""
    replaced: _Replaced | None = vars(layer).get(_OURS)
    return replaced is not None and getattr(replaced.forward, "__func__", None) is not type(layer).forward


def _is_own(layer: nn.Module) -> bool:
    """Whether a layer's ``forward`` is that of its class."""
    forward = vars(layer).get("forward")
    return forward is None or (isinstance(forward, MethodType) and forward == MethodType(type(layer).forward, layer))


def _warn(error: type[Exception], text: str) -> None:
    """Say it, or with ``SGLJIT_ENGINES=strict`` raise it."""
    if ADAPTER.strict:
        raise error(f"{ADAPTER.distribution}: {text}")
    ADAPTER.say(logging.WARNING, "engine_model", text)


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"sgljit_transformers takes a model, which is a torch.nn.Module; got a {type(model).__name__}")


def _devices(model: nn.Module) -> str:
    return ", ".join(sorted({str(parameter.device) for parameter in model.parameters()}))


def _name(model: nn.Module) -> str:
    return type(model).__name__


def _text(forward: object) -> str:
    module, name = getattr(forward, "__module__", ""), getattr(forward, "__qualname__", type(forward).__name__)
    return f"{module}.{name}" if module else name
