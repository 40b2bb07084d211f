"""Does a tensor have memory?

Some tensors of exactly the type ``torch.Tensor`` have no memory of their own: meta tensors, those of torch.func, and
tensors whose storage was freed. The kernel, or the conversion before it, refuses them. Only then does the op ask
here, by public means: the answers of a storage.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sgljit_core.errors import TensorMatchError

# A tensor that has no storage, no address or symbolic sizes says so in one of these ways; PyTorch's text about a
# symbolic size can itself fail, with a TypeError.
_REFUSALS = (RuntimeError, NotImplementedError, TypeError)

with torch.inference_mode(False):
    # All ops share it, and none looks at it. A first use may be under a default device or on fake tensors, and what
    # torch.empty makes there would keep the ops from running: this function makes a tensor of the CPU anywhere.
    PLAIN = torch.frombuffer(bytearray(1), dtype=torch.uint8)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is something to read, or no element to be read."""
    try:
        tensor.data_ptr()  # it raises, too, where sizes are symbolic
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != 0
    except _REFUSALS:
        return False


def stand_in(function: str, arguments: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether some of the tensors of a call that failed have no memory, so that the dispatcher must decide.

    Raises:
        TypeError: a tensor is not strided.
        TensorMatchError: a tensor is quantised, or a lazy view; some are on meta and others are not.
    """
    tensors = {name: tensor for name, tensor in arguments.items() if tensor is not None}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{function}(): {name} is a tensor of layout {tensor.layout}, and a kernel reads strided "
                f"ones: pass {name}.to_dense()"
            ) from None
        if tensor.is_quantized:
            raise TensorMatchError(
                f"{function}(): {name} is a quantised tensor of dtype {tensor.dtype}, and a kernel reads plain ones: "
                f"pass {name}.dequantize() or {name}.int_repr()"
            ) from None
        for lazy in ("conj", "neg"):
            if getattr(tensor, f"is_{lazy}")():  # a kernel would ignore it; the call's own error is shown, too
                raise TensorMatchError(f"{function}(): {name} is a lazy {lazy} view: pass {name}.resolve_{lazy}()")
    if all(map(has_memory, tensors.values())):
        return False
    # Beside others nothing would be computed for a meta tensor, and outputs would keep what they hold. PyTorch's ops
    # have the same rule and the same exception: a CPU tensor of no dimension goes with any device.
    meta = next((name for name, tensor in tensors.items() if tensor.device.type == "meta"), None)
    for name, tensor in tensors.items() if meta is not None else ():
        is_number = tensor.device.type == "cpu" and tensor.dim() == 0
        if tensor.device.type != "meta" and not is_number:
            raise TensorMatchError(
                f"{function}(): {meta} is a meta tensor and {name} is on {tensor.device}, so nothing can be computed: "
                f"put all tensors on one device, or all on meta"
            ) from None
    return True
