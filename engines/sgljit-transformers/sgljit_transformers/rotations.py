"""Which layers rotate queries and keys, and how do they do so by an op?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn

from sgljit_core import ops
from sgljit_engines import Use
from sgljit_engines.kernels import try_rows

from . import attention
from .adapter import ADAPTER
from .seams import DTYPES, Forward, GiveUp, Op, by_ops, count_own, own_code
from .trials import of_config, plain, tried

__all__ = ["Rotation", "match"]

_ROTATED = ("q", "k", "cos", "sin")


@dataclass(frozen=True)
class Rotation:
    """A layer that rotates queries and keys by a function of its module, which its ``forward`` calls.

    Attributes:
        name: the function's global name there. It takes (q, k, cos, sin) and returns both rotated.
        takes_parts: whether the function rotates the first elements of heads alone, where there are fewer angles: only
            the model knows whether there are.
        halves: whether it takes cosines and sines of half a head, one for each pair.
        attention: the global name of the function by which its ``forward`` attends with sinks; "" if it does not.
    """

    name: str
    takes_parts: bool = False
    halves: bool = False
    attention: str = ""
    op = "apply_rotary_pos_emb"
    family = "rope"
    needs = frozenset[str]()

    def weight(self, layer: Any) -> torch.Tensor | None:
        return plain(next(layer.parameters(), None))

    def kind(self, layer: Any) -> tuple[object, ...]:
        return () if self.weight(layer) is None else (rotated(layer),)

    def attempt(self, layer: Any) -> None:
        weight, size = tried(self.weight(layer)), rotated(layer)
        if weight is None or not size or not weight.dtype.is_floating_point:
            return
        op = getattr(ops[self.family], self.op)
        queries = of_config(layer, "num_attention_heads", 2)
        heads = queries, of_config(layer, "num_key_value_heads", queries)

        def rotate(tokens: int) -> None:
            angles = weight.new_ones(1, tokens, size // 2 if self.halves else size)
            q, k = (weight.new_ones(1, tokens, count, size).transpose(1, 2) for count in heads)
            op(q, k, angles, angles, torch.empty_like(q), torch.empty_like(k))

        try_rows(rotate, sum(heads) * size, weight.device.type)

    def forward(self, layer: Any, _in_graphs: bool, give_up: GiveUp, use: Use) -> Forward:
        op = getattr(ops[self.family], self.op)
        return _rotating(op, self, type(layer).forward, give_up, use)


def rotated(layer: nn.Module) -> int | None:
    """The rotated elements of a head, by the names that models have for them."""
    sizes = (getattr(layer, name, None) for name in ("qk_rope_head_dim", "head_dim", "head_size"))
    return next((size for size in sizes if isinstance(size, int)), None)


def match(layer: nn.Module) -> Rotation | None:
    """Only a ``forward`` that names one function of (q, k, cos, sin) is looked at more closely."""
    forward = type(layer).forward
    if not isinstance(forward, FunctionType):
        return None
    named = {name: forward.__globals__.get(name) for name in forward.__code__.co_names}
    functions = {name: one for name, one in named.items() if callable(one) and _begins_with(one, _ROTATED)}
    if len(functions) != 1:  # of two, only the config knows which runs
        return None
    ((name, function),) = functions.items()
    for halves in (False, True):
        if _rotates(function, halves=halves):
            return Rotation(name, _rotates(function, rotated=4, halves=halves), halves, attention.match(layer))
    return None


def _begins_with(function: Callable[..., object], names: tuple[str, ...]) -> bool:
    """Whether these are the first parameters of a function, or of one that the package ``kernels`` made a layer of."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = [name for name in inspect.signature(called).parameters if name != "self"]
    except (TypeError, ValueError):  # what is not written in Python may have none
        return False
    return tuple(parameters[: len(names)]) == names


def _rotates(function: Callable[..., Any], rotated: int = 8, halves: bool = False) -> bool:
    """Whether a function computes what the op does, of the first elements of heads of [batch, heads, tokens, 8]."""
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        # If there are two halves of cosines and sines, they differ. The tokens of a batch have angles of their own.
        q, k = (torch.randn(2, heads, 3, 8, generator=generator).to(dtype) for heads in (4, 2))
        size = rotated // 2 if halves else rotated
        cos, sin = (torch.randn(2, 3, size, generator=generator).to(dtype) for _ in range(2))
        try:
            with torch.no_grad():
                results = tuple(function(q, k, cos, sin))
            pairs = list(zip(results, (q, k), strict=True))
        except Exception:  # noqa: BLE001 - a stranger's function: whatever it cannot do, it is not replaced
            return False
        wide_cos, wide_sin = (angles.double()[:, None].repeat(1, 1, 1, rotated // size) for angles in (cos, sin))
        for result, x in pairs:
            wide, half = x.double()[..., :rotated], rotated // 2
            turned = torch.cat((-wide[..., half:], wide[..., :half]), -1)
            wanted = wide * wide_cos + turned * wide_sin
            wanted = torch.cat((wanted, x.double()[..., rotated:]), -1)
            tolerance = 4 * torch.finfo(dtype).eps * float(wanted.abs().max())
            if not isinstance(result, torch.Tensor) or result.dtype != dtype or result.shape != x.shape or result is x:
                return False
            if not ((result.double() - wanted).abs() <= tolerance).all():
                return False
    return True


def _rotating(op: Op, of: Rotation, own: Any, give_up: GiveUp, use: Use) -> Forward:
    """A layer's ``forward`` that finds the op where it names its module's function. The module stays as it is.

    If it attends with sinks, it finds what does so by fewer calls, too.
    """
    is_grad_enabled, plain, empty_like = torch.is_grad_enabled, torch.Tensor, torch.empty_like
    is_compiling = torch.compiler.is_compiling
    name, of_an_angle = of.name, 2 if of.halves else 1

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return own.__globals__[name](*args, **kwargs)

    def compute(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, _, tokens, _ = q.shape
        if tokens > 1 and batch > len(cos) == len(sin) == 1:  # else a launch for each sequence
            cos, sin = (x.expand(batch, -1, -1).contiguous() for x in (cos, sin))
        results = empty_like(q), empty_like(k)
        op(q, k, cos, sin, *results)
        return results

    def seam(theirs: Forward, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        if (
            type(q) is type(k) is type(cos) is type(sin) is plain
            and q.dtype is k.dtype is cos.dtype is sin.dtype  # a function promotes others
            and q.dtype in DTYPES
            and q.shape[-1] == cos.shape[-1] * of_an_angle  # a function may rotate a part of each head
        ):
            result = by_ops(give_up, use, None, compute, q, k, cos, sin)
        else:
            result = None
            count_own(use)
        return theirs(q, k, cos, sin) if result is None else result

    ours = ADAPTER.shadowed(op.__name__, seam, lose=functools.partial(give_up, None))

    def rotate(q: Any, k: Any, cos: Any, sin: Any, *others: Any, **options: Any) -> Any:
        if others or (options and options != {"unsqueeze_dim": 1}):  # heads elsewhere, or what this model has beside
            count_own(use)
            return theirs(q, k, cos, sin, *others, **options)
        return ours(theirs, q, k, cos, sin)

    names = {**own.__globals__, name: rotate}
    if of.attention:
        names[of.attention] = attention.attending(names[of.attention])
    code = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    code.__kwdefaults__ = own.__kwdefaults__

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_grad_enabled() or self.training or is_compiling():
            return own_code(self, use, *args, **kwargs)
        return code(self, *args, **kwargs)

    return forward
