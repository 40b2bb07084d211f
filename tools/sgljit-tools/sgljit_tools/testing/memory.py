"""Which bytes does a call write, and which does it read?

Its tensors are laid into blocks of memory, with their strides, their alignment, and what they share. The bytes before
them, behind them and between their elements are a known pattern.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from sgljit_engines.agreement import map_tensors, span, tensors_in

GUARD = 1024  # bytes at each end
NANS = 0xFF  # NaN in every floating dtype, -1 in the others
OTHER = 0x3D


def tensors_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among arguments, those in lists too, each with its parameter's name."""
    return ((name, one) for name, value in arguments.items() for one in tensors_in(value))


def memory_of(value: Any) -> Any:
    """The memory that a tensor of addresses leads to, by the ``memory`` that its sample gives it; else the value."""
    while isinstance(value, torch.Tensor) and hasattr(value, "memory"):
        value = value.memory
    return value


def leading_to_copies(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose tensors of addresses lead to copies in host memory, where a reference can follow them."""
    storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}  # tensors that share one still do

    def led_elsewhere(value: Any) -> Any:
        memory = memory_of(value)
        if memory is value:
            return value
        storage = memory.untyped_storage()
        place = memory.device, storage.data_ptr()
        if place not in storages:
            storages[place] = storage.clone().cpu()
        copy = torch.empty(0, dtype=memory.dtype)
        copy.set_(storages[place], memory.storage_offset(), memory.shape, memory.stride())
        distance = storages[place].data_ptr() - storage.data_ptr()
        addresses = (value.view(torch.int64) + distance).view(value.dtype)
        addresses.memory = copy
        return addresses

    return {name: map_tensors(led_elsewhere, value) for name, value in arguments.items()}


class Guarded:
    """The arguments of a call in guarded memory.

    Attributes:
        arguments: the arguments; what addresses lead to stays where it is.
        led_to: the memory that addresses lead to, each with its parameter's name.
    """

    def __init__(self, arguments: Mapping[str, Any], pattern: int = NANS, guard: int = GUARD) -> None:
        groups: dict[Any, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in tensors_of(arguments):
            shares = tensor.numel() > 0 and memory_of(tensor) is tensor
            place = (tensor.device, tensor.untyped_storage().data_ptr()) if shares else id(tensor)
            groups.setdefault(place, []).append((name, tensor))
        self._blocks = [_Block(group, pattern, guard) for group in groups.values()]
        moved = {id(old): new for block in self._blocks for _, old, new, _ in block.moved}
        self.arguments = {n: map_tensors(lambda old: moved[id(old)], value) for n, value in arguments.items()}
        # The memory that addresses lead to is not moved, so it is put back.
        self.led_to = [(name, memory_of(t)) for name, t in tensors_of(arguments) if memory_of(t) is not t]
        self._contents = [memory.clone() for _, memory in self.led_to]

    def poison(self, names: Collection[str]) -> None:
        """Make the floating tensors of these names NaN."""
        for block in self._blocks:
            block.poison(names)

    def start(self) -> None:
        """Note what the memory holds: ``reset`` puts that back, and ``damage`` compares with it."""
        for block in self._blocks:
            block.before = block.bytes.clone()

    def reset(self) -> None:
        """Put everything back."""
        for block in self._blocks:
            block.bytes.copy_(block.before)
        for (_, memory), content in zip(self.led_to, self._contents, strict=True):
            memory.copy_(content)

    def damage(self, mutates: Collection[str]) -> str | None:
        """Which byte a call has written that ``mutates`` does not name, in words; None where there is none."""
        return next((text for text in (block.damage(mutates) for block in self._blocks) if text is not None), None)


class _Block:
    """The tensors that share a storage, in memory of their own."""

    def __init__(self, group: list[tuple[str, torch.Tensor]], pattern: int, guard: int) -> None:
        first = group[0][1]
        storage = first.untyped_storage().data_ptr() if first.numel() else 0
        begin = min(tensor.data_ptr() for _, tensor in group)
        self._size = max(tensor.data_ptr() + span(tensor) for _, tensor in group) - begin
        self._shift = shift = guard + (begin - storage) % 512 if first.numel() else guard
        self.bytes = torch.empty(
            shift + self._size + guard, dtype=torch.uint8, device=first.device, pin_memory=first.is_pinned()
        )
        self.moved: list[tuple[str, torch.Tensor, torch.Tensor, int]] = []  # name, tensor, the one here, its begin
        for name, tensor in group:
            at = shift + (tensor.data_ptr() - begin if tensor.numel() else 0)
            new = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            new.set_(self.bytes.untyped_storage(), at // tensor.itemsize, tensor.shape, tensor.stride())
            if hasattr(tensor, "memory"):
                new.memory = tensor.memory  # type: ignore[attr-defined]
            self.moved.append((name, tensor, new, at))
        self.bytes.fill_(pattern)
        if first.numel():
            source = torch.empty(0, dtype=torch.uint8, device=first.device)
            source.set_(first.untyped_storage(), begin - storage, (self._size,), (1,))
            mine = self._elements({name for name, _ in group})
            inside = slice(shift, shift + self._size)
            self.bytes[inside] = torch.where(mine[inside], source, self.bytes[inside])
        self.before = self.bytes.clone()

    def _elements(self, names: Collection[str]) -> torch.Tensor:
        """Which bytes belong to the elements of these tensors."""
        mask = torch.zeros_like(self.bytes, pin_memory=False)
        for name, _, tensor, begin in self.moved:
            if name not in names or tensor.numel() == 0:
                continue
            dimensions = [pair for pair in zip(tensor.shape, tensor.stride(), strict=True) if pair[1] != 0]
            shape = (*(size for size, _ in dimensions), tensor.itemsize)
            strides = (*(stride * tensor.itemsize for _, stride in dimensions), 1)
            torch.as_strided(mask, shape, strides, begin).fill_(1)
        return mask.bool()

    def poison(self, names: Collection[str]) -> None:
        floating = {name for name, tensor, *_ in self.moved if name in names and tensor.is_floating_point()}
        self.bytes.masked_fill_(self._elements(floating), NANS)

    def damage(self, mutates: Collection[str]) -> str | None:
        wrong = (self.bytes != self.before) & ~self._elements(mutates)
        if not wrong.any():
            return None
        at = int(wrong.nonzero()[0])
        own = list(dict.fromkeys(name for name, *_ in self.moved))
        for name in own:
            if self._elements([name])[at]:
                return f"{name} is written, and mutates does not name it"
        names = " and ".join(own)
        if at < self._shift:
            return f"the call writes {self._shift - at} bytes before {names}"
        if at >= self._shift + self._size:
            return f"the call writes behind {names}, from byte {at - self._shift - self._size} on"
        return f"the call writes between the elements of {names}, at byte {at - self._shift}"
