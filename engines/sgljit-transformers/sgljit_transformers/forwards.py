"""What runs in the place of a layer's ``forward``?

It is the code between a model and a kernel, called for every norm and every MLP of every token. So it asks only what a
sound result needs, and each question costs less than a tenth of a microsecond. An op refuses a wrong dtype or a
gradient by itself; these are asked first because a refusal is slow, and because a compiled graph has no way back from
one.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_core.errors import InferenceOnlyError, SgljitError, TensorMatchError
from sgljit_engines import Use
from sgljit_engines.errors import InexactError

from .adapter import ADAPTER
from .layers import Computation, Norm, Rotation

__all__ = ["forward_of"]

_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
_NOT_TAKEN = (TensorMatchError, InferenceOnlyError, IndexError)  # an op does not take such a tensor
_NO_RULE = (RuntimeError, ValueError)  # such as torch.vmap, for which ops have no rule
_GRADIENTS = (
    "has a model in eval() that is called while gradients are enabled: its layers run their own code, as the ops are "
    "for inference. Call it inside of torch.inference_mode(), or torch.no_grad()"
)

Op = Callable[..., torch.Tensor | None]
Forward = Callable[..., Any]
GiveUp = Callable[[nn.Module | None, str, Exception], None]


def forward_of(of: Computation, layer: Any, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
    """The function that takes the place of a layer's ``forward``.

    Args:
        of: what the layer computes.
        layer: one of those that it is for, whose own code ``SGLJIT_SHADOW`` compares with.
        in_graphs: whether the op stays in graphs of torch.compile. Else the layer's own code does, which the compiler
            fuses with what is around it; an op that stands alone there costs more than it saves. A rotation is always
            the layer's own there.
        give_up: called with the layer, the op and the error where an op cannot be built, and without a layer where it
            disagrees with the layers' own code.
        use: where calls are counted, but for those in compiled graphs.
    """
    op = getattr(ops[of.family], of.op)
    if isinstance(of, Rotation):
        return _rotating(op, of.name, type(layer).forward, give_up, use)
    if ADAPTER.exact:
        weight = layer.gate_proj.weight
        op = _exact(op, weight.dtype, weight.device.type)
    lose = functools.partial(give_up, None)
    if isinstance(of, Norm):
        forward = _norm(op, of.eps_name, in_graphs, give_up, use)
        return _compared(of.op, forward, lose) if ADAPTER.shadow else forward
    if ADAPTER.shadow:
        op = _compared_activation(op, layer.act_fn, lose)
    return _gated_mlp(of.op, op, type(layer.act_fn), in_graphs, give_up, use)


def prove(of: Computation, layer: Any, weight: torch.Tensor | None) -> None:
    """Prove that an op gives the bits of a layer's own code, in the dtype and on the device of its weight.

    Raises:
        sgljit_engines.errors.InexactError: that cannot be shown.
    """
    if weight is None:
        raise InexactError("the dtype of its projections is not known, as they are quantised")
    from sgljit_activation import bits  # of a family that is in use now

    op, activation = getattr(ops[of.family], of.op), layer.act_fn

    def ours(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return op(gate, None, up, round_first=True)  # type: ignore[no-any-return]

    with torch.no_grad():
        found = bits.difference(ours, lambda gate, up: activation(gate) * up, weight.dtype, weight.device)
    if found is not None:
        raise InexactError(found)


def _exact(op: Op, dtype: torch.dtype, device: str) -> Op:
    """An activation with the bits of a layer's own code, and of no other dtype and device than it was proven for."""

    def exact(gate: torch.Tensor, out: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
        if gate.dtype != dtype or gate.device.type != device:
            raise InexactError(f"its bits are known to be the layer's own in {dtype} on {device} alone")
        return op(gate, out, up, round_first=True)

    exact.__name__ = op.__name__
    return exact


def _compared(op: str, forward: Forward, lose: Callable[[str, Exception], None]) -> Forward:
    """A ``forward`` of which ``SGLJIT_SHADOW`` compares some calls."""

    def seam(_theirs: Forward, self: Any, hidden_states: torch.Tensor) -> Any:
        return forward(self, hidden_states)

    shadow: Any = ADAPTER.shadowed(op, seam, lose=lose)
    is_compiling, numbers, lost = torch.compiler.is_compiling, shadow.numbers, shadow.lost

    def compared(self: Any, hidden_states: torch.Tensor) -> Any:
        if is_compiling() or ((number := next(numbers)) < shadow.due and not lost):
            return forward(self, hidden_states)
        return shadow.compared(number, type(self).forward, self, hidden_states)

    return compared


def _compared_activation(op: Op, activation: Any, lose: Callable[[str, Exception], None]) -> Op:
    """An op of which ``SGLJIT_SHADOW`` compares some calls. An activation holds nothing: any layer's will do."""

    def theirs(gate: torch.Tensor, _out: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return activation(gate) * up  # type: ignore[no-any-return]

    def seam(_theirs: Op, gate: torch.Tensor, out: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
        return op(gate, out, up)

    return functools.partial(ADAPTER.shadowed(op.__name__, seam, lose=lose), theirs)


def _own(layer: nn.Module, use: Use, *args: Any, **kwargs: Any) -> Any:
    """The layer's own code. If gradients alone are the reason, one warning says so: few models in eval() want them."""
    if not torch.compiler.is_compiling():
        use.own_calls += 1
        ADAPTER.own_runs[use.op] += 1
        if not layer.training and torch.is_grad_enabled():
            ADAPTER.say_once(logging.WARNING, "engine_gradients", _GRADIENTS)
    return type(layer).forward(layer, *args, **kwargs)


def _norm(op: Op, eps_name: str, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.weight
        dtype = hidden_states.dtype
        if (
            is_grad_enabled()
            or self.training
            or (not in_graphs and is_compiling())
            or type(hidden_states) is not plain
            or dtype is not weight.dtype
            or dtype not in _DTYPES
        ):
            return _own(self, use, hidden_states)
        try:
            x = hidden_states
            if not x.is_contiguous():
                x = x.flatten(0, -2)  # a copy only where tokens are at more than one stride
                if x.stride(-1) != 1:
                    return _own(self, use, hidden_states)
            out = empty_like(x)
            op(x, weight, out, getattr(self, eps_name))
        except _NOT_TAKEN:
            return _own(self, use, hidden_states)
        except (SgljitError, OSError) as error:
            give_up(self, op.__name__, error)
            return _own(self, use, hidden_states)
        except _NO_RULE:
            return _own(self, use, hidden_states)
        if not in_graphs or not is_compiling():
            use.calls += 1
        return out if x is hidden_states else out.view(hidden_states.shape)

    return forward


def _gated_mlp(name: str, op: Op, activation: type, in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        if is_grad_enabled() or self.training or (not in_graphs and is_compiling()):
            return _own(self, use, hidden_states)
        gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        if (
            type(self.act_fn) is activation  # the layer may have got another one since
            and type(gate) is plain
            and type(up) is plain
            and gate.dtype is up.dtype
            and gate.dtype in _DTYPES
            and gate.is_contiguous()
            and up.is_contiguous()
        ):
            try:
                activated = op(gate, empty_like(gate), up)
            except _NOT_TAKEN:
                pass
            except (SgljitError, OSError) as error:
                give_up(self, name, error)
            except _NO_RULE:
                pass
            else:
                if not in_graphs or not is_compiling():
                    use.calls += 1
                return self.down_proj(activated)
        if not is_compiling():
            use.own_calls += 1
            ADAPTER.own_runs[use.op] += 1
        return self.down_proj(self.act_fn(gate) * up)

    return forward


def _rotating(op: Op, name: str, own: Any, give_up: GiveUp, use: Use) -> Forward:
    """A layer's ``forward`` that finds the op where it names its module's function. The module stays as it is."""
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return own.__globals__[name](*args, **kwargs)

    def count() -> None:
        use.own_calls += 1
        ADAPTER.own_runs[use.op] += 1

    def seam(theirs: Forward, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        if (
            type(q) is type(k) is type(cos) is type(sin) is plain
            and q.dtype is k.dtype is cos.dtype is sin.dtype  # a function promotes others
            and q.dtype in _DTYPES
            and q.shape[-1] == cos.shape[-1]  # a function may rotate a part of each head
        ):
            try:
                batch, _, tokens, _ = q.shape
                if tokens > 1 and batch > len(cos) == len(sin) == 1:  # else a launch for each sequence
                    angles = [x.expand(batch, -1, -1).contiguous() for x in (cos, sin)]
                else:
                    angles = [cos, sin]
                rotated = empty_like(q), empty_like(k)
                op(q, k, *angles, *rotated)
            except _NOT_TAKEN:
                pass
            except (SgljitError, OSError) as error:
                give_up(None, op.__name__, error)
            except _NO_RULE:
                pass
            else:
                use.calls += 1
                return rotated
        count()
        return theirs(q, k, cos, sin)

    ours = ADAPTER.shadowed(op.__name__, seam, lose=functools.partial(give_up, None))

    def rotate(q: Any, k: Any, cos: Any, sin: Any, *others: Any, **options: Any) -> Any:
        if others or (options and options != {"unsqueeze_dim": 1}):  # heads elsewhere, or what this model has beside
            count()
            return theirs(q, k, cos, sin, *others, **options)
        return ours(theirs, q, k, cos, sin)

    code = FunctionType(
        own.__code__, {**own.__globals__, name: rotate}, own.__name__, own.__defaults__, own.__closure__
    )
    code.__kwdefaults__ = own.__kwdefaults__

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_grad_enabled() or self.training or is_compiling():
            return _own(self, use, *args, **kwargs)
        return code(self, *args, **kwargs)

    return forward
