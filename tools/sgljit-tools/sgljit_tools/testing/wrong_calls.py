"""Calls unlike the samples: an op must refuse each, or give its reference's result.

One tensor has another dtype, device, size or rank, or a number is another; an output shares memory with another tensor;
an index is out of range; rows are so far apart that an offset passes 2**31; threads share a small input.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from sgljit_core.errors import SgljitError, TensorMatchError
from sgljit_core.families import loading
from sgljit_engines.agreement import map_tensors
from sgljit_tools.recording.process import CrashedError, Worker
from sgljit_tools.recording.tensors import NO_RESERVE, Shaped

from .layouts import INTEGERS
from .memory import Guarded, memory_of, tensors_of
from .subject import Arguments, Fault, NotApplicable, Subject, conditions, described, differing, is_refusal

FLOATS = (torch.float16, torch.bfloat16, torch.float32)

# Other widths, the same width and another kind; a host part compiles for each that it takes, so these are few.
_OTHERS = {
    torch.float16: (torch.bfloat16, torch.float32),
    torch.bfloat16: (torch.float16, torch.float32),
    torch.float32: (torch.int32, torch.float64, torch.float16),
    torch.float64: (torch.int64, torch.float32),
    torch.int32: (torch.float32, torch.int64),
    torch.int64: (torch.float64, torch.int32),
}
# The other value of a float is of its order, and never too small to matter.
_NUMBERS: dict[type, Callable[[Any], Any]] = {float: lambda v: [round(v / 2 + 0.11, 9)], int: lambda v: [v + 1, 0, -1]}
_WIDE = 1 << 16  # bytes around a tensor whose size or dtype an op may take for another
_FAR = (1 << 30) + 64  # elements between rows: the third begins behind 2**31
_SPLITTING = Worker(SGLJIT_SPLIT_ALWAYS="1")  # starts with its first call
_FEWEST = 4  # samples that are changed in every way, where there are as many


def arguments(subject: Subject) -> None:
    """A tensor of another dtype, size, rank or device, or another number, is refused or gives the right result."""
    for sample in _few(subject):
        for name, value in ((n, v) for n, v in sample.items() if type(v) in _NUMBERS and n not in subject.as_sampled):
            for number in _NUMBERS[type(value)](value):
                _judge(subject, f"{name} made {number}", {**sample, name: number})
        for name, tensor in plain(sample):
            for text, changed in _changes(tensor):
                # Rows may have any number of dimensions before them, which no reference needs to take.
                alike = sample if changed.numel() == tensor.numel() and changed.dtype == tensor.dtype else None
                _judge(subject, f"{name} with {text}", {**sample, name: changed}, alike)
            if subject.device.type == "cpu" and len(plain(sample)) > 1:
                _refuses_other_device(subject, sample, name)


def overlaps(subject: Subject) -> None:
    """An output that shares memory with another tensor is refused, or gives the result of separate tensors."""
    found = False
    for sample in _without_addresses(subject):
        tensors = [pair for pair in plain(sample) if pair[1].is_contiguous()]
        for name, written in (pair for pair in tensors if pair[0] in subject.op.mutates):
            if written.dim() > 1 and len(written) > 1 and written[0].numel() > 1:
                found = True
                _require_refusal(subject, name, {**sample, name: written[:1].clone().expand_as(written)})
            for other, read in (pair for pair in tensors if pair[0] != name and pair[1].dtype == written.dtype):
                for shift in dict.fromkeys((1, read.shape[-1], -1, -read.shape[-1])):
                    if abs(shift) < read.numel():
                        found = True
                        one, two = _sharing(read, written, shift)
                        side = "behind" if shift > 0 else "before"
                        text = f"{name} begins {abs(shift)} elements {side} {other}, in its memory"
                        _judge(subject, text, {**sample, other: one, name: two})
    _require(found, "no tensor that is written has the dtype of another")


def indices(subject: Subject) -> None:
    """An index out of range is refused, or gives the reference's result."""
    _require(subject.device.type == "cpu", "on CUDA an index is checked only with SGLJIT_CHECK_INDICES=1")
    found = False
    for sample in _without_addresses(subject):
        sizes = [size for _, tensor in tensors_of(sample) for size in tensor.shape]
        for name, index in plain(sample):
            if index.dtype not in INTEGERS or name in subject.op.mutates or index.numel() == 0:
                continue
            found = True
            for value in (max(sizes), -1):
                changed = index.clone(memory_format=torch.contiguous_format)
                changed.view(-1)[-1] = value
                _judge(subject, f"the last element of {name} made {value}", {**sample, name: changed})
    _require(found, "no int32 or int64 tensor is read")


def far_rows(subject: Subject) -> None:
    """Rows whose offsets pass 2**31 elements give the reference's result: no product of row and stride is an int32.

    The addresses between the rows are reserved, and have no memory.
    """
    _require(subject.device.type == "cpu", "it reserves addresses of the host")
    found = False
    for sample in _without_addresses(subject):
        tall = [name for name, tensor in plain(sample) if tensor.dim() > 1 and len(tensor) > 2 and tensor.numel()]
        for names in dict.fromkeys((name,) for name in tall) if len(tall) < 2 else [*((n,) for n in tall), tuple(tall)]:
            found = True
            _judge_far(subject, sample, names)
    _require(found, "no sample has a tensor of 3 rows")


def samples(subject: Subject) -> None:
    """The samples are on the device that they are asked for, and bring each floating dtype and more than one value."""
    if not _follow_the_device(subject.op.samples):
        raise Fault("samples yields tensors of the CPU for every device: pass the device to all that makes a tensor")
    for name, one in ((n, p) for n, p in subject.signature.parameters.items() if n not in subject.as_sampled):
        passed = [sample.get(name, one.default) for sample in subject.samples]
        is_optional = one.default is None and "Tensor" in str(one.annotation)
        kinds = {value if isinstance(value, int) else value is None for value in passed}
        if (is_optional or isinstance(passed[0], int)) and len(kinds) < 2:
            told = passed[0] if isinstance(passed[0], int | None) else "a tensor"
            raise Fault(f"{name} is {told} in every sample: what the op does otherwise is compared with nothing")
    dtypes = {tensor.dtype for sample in subject.samples for _, tensor in tensors_of(sample) if tensor.dtype in FLOATS}
    sample = _without_addresses(subject)[0]
    own = {tensor.dtype for _, tensor in tensors_of(sample) if tensor.dtype in FLOATS}
    for dtype in (one for one in FLOATS if len(own) == 1 and one not in dtypes):  # tensors of several keep theirs
        changed = {n: map_tensors(lambda t: t.to(dtype) if t.dtype in FLOATS else t, v) for n, v in sample.items()}  # noqa: B023 - called at once
        if _judge(subject, f"all in {_name(dtype)}", changed) and len(dtypes) == 1:
            raise Fault(f"every sample is {_name(*dtypes)}, and the op takes {_name(dtype)}: bring it, or refuse it")
    if told := "; ".join(f"{name} is as in the samples: {why}" for name, why in subject.as_sampled.items()):
        raise NotApplicable(told)


def _follow_the_device(samples: Callable[..., Any]) -> bool:
    """Whether some tensors of the samples are on the device that is asked for: a meta device, which is always there."""
    try:
        made = [tensor for sample in samples(torch.device("meta")) for _, tensor in tensors_of(sample)]
    except Exception:  # noqa: BLE001 - they read what they made, so it was there
        return True
    return not made or any(tensor.is_meta for tensor in made)


def threads(subject: Subject) -> None:
    """Threads that share each sample give the reference's results: none skips the end of its range."""
    _require(subject.device.type == "cpu" and bool(subject.checked), "threads of the host share the work on the CPU")
    try:
        _SPLITTING.run(functools.partial(_judge_split, subject.op.family, subject.op.name))
    except CrashedError as error:
        raise Fault(f"with the sample split over 3 threads: {error}") from error


def _judge_split(family: str, name: str) -> None:
    """In a process that splits: compare every sample."""
    subject = Subject(loading.load(family).declared()[name], torch.device("cpu"))
    with conditions():
        for sample in subject.checked:
            subject.judge(sample, "split over 3 threads (SGLJIT_SPLIT_ALWAYS=1)", poison=True)


def _judge(subject: Subject, text: str, changed: Arguments, alike: Arguments | None = None) -> bool:
    """Whether a call was answered; Fault if it is neither refused before a write, nor answered as by the reference.

    Where the reference does not take it, the result of ``alike``, a call with the same elements, counts.
    """
    guarded = Guarded(changed, guard=_WIDE)
    told = f"{text}: {described(guarded.arguments)}"
    wanted, why = None, ""
    try:
        wanted = subject.expected(guarded.arguments)
    except Fault:
        raise
    except Exception as error:  # noqa: BLE001 - what it does not take, the op must refuse
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        result = subject.call(guarded.arguments)
    except Exception as error:
        if isinstance(error, SgljitError) and not is_refusal(error):
            raise Fault(f"{told}: it is not refused, and fails later: {type(error).__name__}: {error}") from error
        if damage := guarded.damage(()):
            raise Fault(f"{told}: refused, and yet {damage}") from error
        return False
    if wanted is None and alike is not None:
        made, results = subject.expected(alike)
        shaped = {n: v.reshape(guarded.arguments[n].shape) if torch.is_tensor(v) else v for n, v in results.items()}
        wanted = made, shaped
    if wanted is None:
        raise Fault(f"{told}: the op takes it, and the reference raises {why}")
    subject.compare(guarded, result, wanted, told)
    return True


def _changes(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor with one property changed, each with a text."""
    dense = tensor.contiguous()
    for dtype in _OTHERS.get(tensor.dtype, (torch.int32, torch.float32)):
        yield f"the dtype {_name(dtype)}", dense.to(dtype)
    for dim, size in enumerate(tensor.shape):
        if size > 1:
            yield f"{size - 1} in place of {size} elements in dimension {dim}", dense.narrow(dim, 0, size - 1).clone()
        if size > 0:
            larger = torch.cat((dense, dense.narrow(dim, 0, 1)), dim)
            yield f"{size + 1} in place of {size} elements in dimension {dim}", larger
    if tensor.numel() > 0:
        yield "one dimension more", dense.unsqueeze(0)
        if tensor.dim() > 1:
            yield "one dimension", dense.flatten()


def _refuses_other_device(subject: Subject, sample: Arguments, name: str) -> None:
    """A tensor that is said to be on a CUDA device is refused beside others on the CPU."""
    guarded = Guarded(sample)
    try:
        shaped = Shaped.of(guarded.arguments[name])
        passed = {**guarded.arguments, name: shaped.handed_over()}
    except Exception:  # noqa: BLE001 - DLPack has no such tensor
        return
    told = f"{name} on a CUDA device, the others on the CPU: {described(sample)}"
    try:
        subject.op.function(**passed)
    except Exception as error:
        # A body in Python takes PyTorch's tensors alone. That there is no GPU is no refusal.
        is_own = isinstance(error, ValueError) and not isinstance(error, SgljitError)
        if is_own or isinstance(error, TensorMatchError | AttributeError | TypeError):
            return
        raise Fault(f"{told}: it is not refused, and fails later: {type(error).__name__}: {error}") from error
    raise Fault(f"{told}: the op takes it")


def _require_refusal(subject: Subject, name: str, changed: Arguments) -> None:
    """Raise Fault where a call writes to a tensor whose rows are one row."""
    guarded = Guarded(changed, guard=_WIDE)
    told = f"{name} with a stride of 0: {described(guarded.arguments)}"
    try:
        subject.call(guarded.arguments)
    except Exception as error:
        if damage := guarded.damage(()):
            raise Fault(f"{told}: refused, and yet {damage}") from error
        return
    # It may be written in another call alone, such as one without ``out``.
    if guarded.damage([one for one in subject.op.mutates if one != name]):
        raise Fault(f"{told}: the op takes it, and its elements overwrite each other")


def _judge_far(subject: Subject, sample: Arguments, names: tuple[str, ...]) -> None:
    """Compare a call whose tensors of these names have rows ``_FAR`` elements apart."""
    near = {name: map_tensors(torch.clone, value) for name, value in sample.items()}
    wanted = subject.expected(near)
    maps, far = [], dict(near)
    for name in names:
        tensor = near[name]
        # A product that wraps around is up to 2**31 below: that is an address of this tensor, too, and no crash.
        span = (2**31 + (len(tensor) - 1) * _FAR + tensor[0].numel()) * tensor.itemsize
        try:
            maps.append(mmap.mmap(-1, span, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE))
        except OSError as error:
            raise NotApplicable(f"{span >> 30} GiB of addresses cannot be reserved: {error}") from error
        whole = torch.frombuffer(maps[-1], dtype=tensor.dtype)
        far[name] = whole.as_strided(tensor.shape, (_FAR, *tensor[0].contiguous().stride()), 2**31)
        far[name].copy_(tensor)
    told = f"{' and '.join(names)} with rows {_FAR} elements apart: {described(far)}"
    try:
        result = subject.call(far)
    except Exception as error:
        if is_refusal(error):
            return
        raise Fault(f"{told}: the op raises {type(error).__name__}: {error}") from error
    if text := differing(far, result, wanted):
        raise Fault(f"{told}: {text}; a product of a row and a stride must be an int64")


def _sharing(read: torch.Tensor, written: torch.Tensor, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both tensors in one buffer, the second ``shift`` elements behind the first, which keeps its values."""
    first, second = max(0, -shift), max(0, shift)
    buffer = read.new_empty(max(first + read.numel(), second + written.numel()))
    one = buffer[first : first + read.numel()].view(read.shape)
    two = buffer[second : second + written.numel()].view(written.shape)
    two.copy_(written)
    one.copy_(read)
    return one, two


def _without_addresses(subject: Subject) -> list[Arguments]:
    """The picked samples without tensors of addresses: a reference that gets others would write anywhere."""
    found = [one for one in subject.picked if all(memory_of(tensor) is tensor for _, tensor in tensors_of(one))]
    _require(bool(found), "every sample has addresses, which a reference may not follow elsewhere")
    return found


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise NotApplicable(otherwise)


def _few(subject: Subject) -> list[Arguments]:
    """A sample of each combination of options, and others where these are few; none of them empty."""
    full = [one for one in _without_addresses(subject) if all(tensor.numel() > 0 for _, tensor in tensors_of(one))]
    options = [tuple((n, v) for n, v in one.items() if v is None or isinstance(v, bool | str)) for one in full]
    kinds = dict(zip(reversed(options), reversed(full), strict=True))
    others = (one for one in full if not any(one is kind for kind in kinds.values()))
    return [*kinds.values(), *others][: max(_FEWEST, len(kinds))]


def plain(sample: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors that are arguments by themselves, and no addresses."""
    return [
        (name, value)
        for name, value in sample.items()
        if isinstance(value, torch.Tensor) and memory_of(value) is value and not value.is_pinned()
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
