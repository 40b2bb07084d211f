"""The checks of one op, by name. Each raises Fault, or NotApplicable where it has nothing to look at."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isnan, nan
from typing import Any

import torch

from sgljit_core.errors import SgljitError
from sgljit_engines.agreement import map_tensors, same_bits

from . import layouts as laid_out, wrong_calls
from .memory import NANS, OTHER, Guarded, memory_of, tensors_of
from .subject import Arguments, Fault, NotApplicable, Subject, compared, described, is_refusal
from .wrong_calls import plain


def signatures(subject: Subject) -> None:
    """Reference and samples take what the op takes."""
    names = list(subject.signature.parameters)
    if subject.takes_tensors:
        taken = list(inspect.signature(subject.reference).parameters)
        if taken != names:
            raise Fault(f"the reference takes {', '.join(taken)}; the op takes {', '.join(names)}")
        for name, parameter in inspect.signature(subject.reference).parameters.items():
            own = subject.signature.parameters[name].default
            if parameter.empty not in (own, parameter.default) and own != parameter.default:
                raise Fault(f"{name} is {own!r} by default, and {parameter.default!r} by default of the reference")
    _ = subject.samples


def results(subject: Subject) -> None:
    """The results are the reference's, also where what is written was NaN before; nothing else is written."""
    for sample in subject.checked:
        subject.judge(sample)
    for sample in subject.picked:
        subject.judge(sample, "what it writes to made NaN", poison=True)
        integers = {n: v for n, v in plain(sample) if n in subject.op.mutates and v.dtype in laid_out.INTEGERS}
        after = subject.expected(sample)[1] if integers else {}
        others = {n: ~v for n, v in integers.items() if not same_bits(v, after[n])}  # a flag that it waits for stays
        if others and same_bits([*after.values()], [*subject.expected({**sample, **others})[1].values()]):  # not read
            subject.judge({**sample, **others}, f"other integers in {', '.join(others)}", may_refuse=True)


def _require_comparison(compared: Iterable[bool]) -> None:
    """Raise NotApplicable where no call was compared."""
    if not any([*compared]):  # of all, as each may have a fault
        raise NotApplicable("the op and its reference take no such call: nothing was compared")


def precision(subject: Subject) -> None:
    """A result of 16 or 8 bits is rounded once, at the end, or as often as the reference says."""
    roundings, is_wide = int(getattr(subject.reference, "roundings", 1)), False
    for sample in subject.picked:
        guarded = Guarded(sample)
        wanted = subject.expected(guarded.arguments)
        for name, got, right in compared(guarded.arguments, subject.call(guarded.arguments), wanted):
            is_wide = is_wide or getattr(right, "dtype", None) == torch.float64
            if text := _is_rounded_more_often(got, right, roundings):
                raise Fault(
                    f"{described(sample)}: {name} {text}. Something is rounded on the way: compute in float32, or, "
                    f"if it has to be, say so: {subject.reference.__name__}.roundings = 2 beside the reference"
                )
    if not is_wide:
        raise NotApplicable("the reference makes nothing in float64, or does not take it: nothing was compared")


def _is_rounded_more_often(got: Any, wanted: Any, roundings: int) -> str | None:
    """How a result of 16 or 8 bits differs from one that is rounded ``roundings`` times, in words; None if it does not.

    The budget of an element is half a unit in the last place of its dtype for each rounding, and what float32 loses: in
    a sum that cancels that is many units, so one element of 20 may be over.

    Args:
        wanted: the reference's result in float64; any other dtype is not looked at.
    """
    if not (isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor)) or got.shape != wanted.shape:
        return None
    if wanted.dtype != torch.float64 or not got.is_floating_point() or got.itemsize > 2:
        return None
    limits = torch.finfo(got.dtype)
    got, wanted = (one.detach().cpu().double() for one in (got, wanted))
    usable = got.isfinite() & wanted.isfinite() & (wanted.abs() <= limits.max)
    if not usable.any():
        return None
    got, wanted = got[usable], wanted[usable]
    unit = torch.exp2(torch.floor(torch.log2(wanted.abs().clamp_min(limits.smallest_normal)))) * limits.eps
    units = ((got - wanted).abs() - float(wanted.abs().mean()) * 2**-22) / unit
    over = int((units > roundings / 2 + 1 / 16).sum())
    if over <= 2 + got.numel() // 20:
        return None
    at = int(units.argmax())
    told = f"has {over} of {got.numel()} elements that are more than {roundings / 2:g} units in the last place"
    return f"{told} from the reference in float64, such as {got[at].item()} for {wanted[at].item()}"


def nans(subject: Subject) -> None:
    """NaN, infinities, and 100, whose exponential overflows, give the reference's result, or a ValueError."""
    why = getattr(subject.reference, "drops_nan", None)
    if why is not None and not (isinstance(why, str) and why.strip()):
        raise Fault(f"{subject.reference.__name__}.drops_nan is {why!r}, and must say why the op does not keep NaN")
    calls: list[dict[float, float]] = [{0: nan, 1: inf}, {0: -inf, 1: nan}, {0.5: nan}, {0: 100}]  # by place
    judged = []
    for sample in subject.picked:
        saturates = any(one.itemsize == 1 and one.dtype != torch.bool for _, one in tensors_of(sample))
        for number, (name, tensor) in enumerate(tensors_of(sample)):
            is_taken = memory_of(tensor) is tensor and tensor.is_floating_point() and tensor.numel() > 0
            for call in calls if is_taken and _is_read(subject, sample, name) else ():
                values = {at: v for at, v in call.items() if (why is None if isnan(v) else not saturates)}
                changed = Guarded(sample).arguments
                for place, value in values.items():
                    at = tuple(int((size - 1) * place) for size in tensor.shape)
                    list(tensors_of(changed))[number][1][at].copy_(torch.tensor(value))
                text = f"elements of {name} made {[*values.values()]}"
                judged.append(subject.judge(changed, text, may_refuse=True))
    if why is not None:
        raise NotApplicable(f"NaN is not passed: {why}")
    _require_comparison(judged)


def reads(subject: Subject) -> None:
    """The results do not depend on what lies around the tensors."""
    _require_equal_bits(subject, OTHER, "with other bytes around it")


def repeats(subject: Subject) -> None:
    """Two calls give the same bits."""
    _require_equal_bits(subject, NANS, "in a second call")


def fresh_values(subject: Subject) -> None:
    """A call on the same memory with other values gives the results of these."""
    for sample in subject.picked:
        guarded = Guarded(sample)
        first = subject.call(guarded.arguments)
        guarded.reset()
        _roll(guarded)
        wanted, kept = subject.expected(guarded.arguments), map_tensors(torch.clone, first)
        result = subject.call(guarded.arguments)
        subject.compare(guarded, result, wanted, f"with other values in the same memory: {described(sample)}")
        given = [tensor.data_ptr() for _, tensor in tensors_of(guarded.arguments)]
        if not same_bits(first, kept) and all(one.data_ptr() not in given for _, one in tensors_of({"": first})):
            raise Fault(f"a second call overwrites the result of the first: {described(sample)}")


def layouts(subject: Subject) -> None:
    """A tensor in another layout gives the same result, or a ValueError."""
    _require_comparison(
        subject.judge(arguments, text, may_refuse=True)
        for sample in subject.picked
        for text, arguments in laid_out.layouts(sample, subject.op.mutates)
    )


def sizes(subject: Subject) -> None:
    """No row, one row, and sizes around the powers of two give the reference's results, or a ValueError."""
    calls = laid_out.sizes(subject.picked)
    _require_comparison(subject.judge(arguments, text, poison=True, may_refuse=True) for text, arguments in calls)


def own_work(subject: Subject) -> None:
    """The op does not call its reference."""
    code, called = inspect.unwrap(subject.reference).__code__, []

    def note(frame: Any, _event: str, _argument: Any) -> None:
        if frame.f_code is code:
            called.append(True)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        subject.call(Guarded(subject.picked[0]).arguments)
    finally:
        sys.setprofile(before)
    if called:
        raise Fault("the op calls its own reference: what is compared is the reference with itself")


def returns(subject: Subject) -> None:
    """An op returns what it says, and its fake makes the same without computing."""
    annotation = inspect.signature(subject.op.function, eval_str=True).return_annotation
    wanted = type(None) if annotation is None else typing.get_origin(annotation) or annotation
    for sample in subject.picked:
        result = subject.call(Guarded(sample).arguments)
        if isinstance(wanted, type) and not isinstance(result, wanted):
            raise Fault(f"it says that it returns {wanted.__name__}, and returns a {type(result).__name__}")
    for overload, _, arguments in _library_calls(subject):
        real = overload(**arguments)
        fake = overload(**{name: map_tensors(lambda one: one.to("meta"), value) for name, value in arguments.items()})
        if _look(real) != _look(fake):
            raise Fault(f"the fake gives {_look(fake)}, and a call {_look(real)}: {described(arguments)}")


def opcheck(subject: Subject) -> None:
    """``torch.library.opcheck`` finds nothing."""
    utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    # opcheck calls with copies, and a copy of page-locked memory is pageable: no kernel reads that.
    calls = [c for c in _library_calls(subject) if not any(tensor.is_pinned() for _, tensor in tensors_of(c[2]))]
    if not calls:
        raise NotApplicable("opcheck copies page-locked tensors into pageable memory, which no kernel reads")
    for overload, _, arguments in calls:
        # PyTorch 2.13 computes a negative size from the strides of an empty view, where it copies one for a graph.
        passed = {
            name: map_tensors(lambda one: one if one.numel() > 0 else one.new_empty(one.shape), value)
            for name, value in arguments.items()
        }
        # To compare with the schema it multiplies what the op wrote, which torch cannot for float8.
        is_float8 = any(tensor.itemsize == 1 and tensor.is_floating_point() for _, tensor in tensors_of(arguments))
        try:
            torch.library.opcheck(overload, (), passed, test_utils=utils[is_float8:])
        except Exception as error:
            raise Fault(f"{overload}: {type(error).__name__}: {error}") from error


def compile_(subject: Subject) -> None:
    """A graph of inductor with dynamic sizes gives the bits of an eager call.

    No two tensors share memory: of such that are written, inductor makes wrong copies by itself (PyTorch 2.13).
    """
    torch.compiler.reset()
    calls: dict[Any, Any] = {}
    for sample in subject.picked[:2]:
        eager, traced = ({n: Guarded({n: v}).arguments[n] for n, v in sample.items()} for _ in range(2))
        tensors = [name for name, value in sample.items() if isinstance(value, torch.Tensor)]
        rest = {name: value for name, value in sample.items() if name not in tensors}

        def call(*given: torch.Tensor, _names: list[str] = tensors, _rest: Arguments = rest) -> Any:
            return subject.op.function(**dict(zip(_names, given, strict=True)), **_rest)

        key = (tuple(tensors), repr(rest))
        # A graph that is kept on disk may be of an earlier version of the op.
        options: dict[str, Any] = {"fx_graph_cache": False}
        calls[key] = calls.get(key) or torch.compile(call, fullgraph=True, dynamic=True, options=options)
        wanted = subject.call(eager)
        result = calls[key](*(traced[name] for name in tensors))
        if subject.device.type == "cuda":
            torch.cuda.synchronize()
        written = [name for name in subject.op.mutates if name in tensors]
        if not same_bits([result, *map(traced.get, written)], [wanted, *map(eager.get, written)]):
            raise Fault(f"torch.compile gives other bits than an eager call: {described(sample)}")


def stream(subject: Subject) -> None:
    """On a stream with work in front, the op waits for that work: it runs on the current stream."""
    side = torch.cuda.Stream()
    slow = torch.ones(4096, 4096, device=subject.device)
    for sample in subject.picked:
        guarded = Guarded(sample)
        wanted = subject.expected(guarded.arguments)
        subject.call(guarded.arguments)  # what is compiled is compiled now
        guarded.poison(sample)  # until reset
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for _ in range(40):
                slow = slow @ slow
            guarded.reset()
            result = subject.op.function(**guarded.arguments)
        torch.cuda.synchronize()
        subject.compare(guarded, result, wanted, f"on a stream with work in front: {described(sample)}")


def graph(subject: Subject) -> None:
    """A CUDA graph with the op in it, replayed with other values, gives the results of these."""
    for sample in subject.picked:
        guarded = Guarded(sample)
        subject.call(guarded.arguments)
        captured, refusal, result = torch.cuda.CUDAGraph(), None, None
        try:
            with torch.cuda.graph(captured):
                try:
                    result = subject.op.function(**guarded.arguments)
                except (ValueError, SgljitError) as error:
                    refusal = error
        except RuntimeError as error:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):  # else PyTorch's generator takes the capture for unfinished
                torch.ones(1, device="cuda")
            raise Fault(f"it cannot be captured in a CUDA graph: {error}: {described(sample)}") from error
        if refusal is not None:
            if is_refusal(refusal) or isinstance(refusal, SgljitError):
                continue
            raise Fault(f"captured in a CUDA graph, it raises {refusal}: {described(sample)}") from refusal
        guarded.reset()
        _roll(guarded)
        wanted = subject.expected(guarded.arguments)
        captured.replay()
        torch.cuda.synchronize()
        subject.compare(guarded, result, wanted, f"replayed with other values: {described(sample)}")


_ALL = (
    *(signatures, results, own_work, returns, reads, repeats, fresh_values, layouts, sizes),
    *(precision, nans, wrong_calls.threads, wrong_calls.arguments, wrong_calls.overlaps),
    *(wrong_calls.indices, wrong_calls.far_rows, wrong_calls.samples, opcheck, compile_, stream, graph),
)
CHECKS: Mapping[str, Callable[[Subject], None]] = {check.__name__.rstrip("_"): check for check in _ALL}
# Where an author looks for what a check has found, beside the op's declaration.
LOOK_AT: Mapping[str, str] = {
    "signatures": "the parameters of the op and of its reference",
    "arguments": "where the number is used, or the host part's checks of tensors: host::rows, host::TensorMatcher",
    "overlaps": "the host part's check that tensors share no memory: host::rows_meet and host::rows_overlap",
    "indices": "the host part's check of indices: host::indexed, or a loop over them",
    "far_rows": "the types of offsets in the kernel: std::int64_t for a row times a stride",
    "threads": "the body of host::cpu::parallel_for, which gets a begin and an end",
    "precision": "the types of what the kernel computes with",
    "nans": "maxima, minima and comparisons: sgl::max keeps NaN; row.max, fmaxf and std::max lose it. An op that loses "
    'it for a reason says so beside its reference: my_op.drops_nan = "why". For 100, look at exp, which overflows',
    "samples": "the function that yields the samples. Where an argument has no other value, the reference says it: "
    'my_op.as_sampled = {"size": "the kernel has one size"}',
}
ON_CUDA = frozenset({"stream", "graph"})  # the others are for the CPU, too


def _is_read(subject: Subject, sample: Arguments, name: str) -> bool:
    """Whether the result depends on what a tensor holds."""
    poisoned = Guarded(sample)
    poisoned.poison([name])
    held = [list(subject.expected(one.arguments)[1].values()) for one in (Guarded(sample), poisoned)]
    return name not in subject.op.mutates or not same_bits(*held)


def _roll(guarded: Guarded) -> None:
    """Other values: those of each floating tensor, moved by one place."""
    for _, tensor in tensors_of(guarded.arguments):
        if tensor.is_floating_point() and memory_of(tensor) is tensor and 0 not in tensor.stride():
            bits = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
            bits.copy_(bits.clone().flatten().roll(1).view(bits.shape))
    guarded.start()


def _bits(subject: Subject, sample: Arguments, pattern: int) -> list[Any]:
    guarded = Guarded(sample, pattern)
    result = subject.call(guarded.arguments)
    written = (guarded.arguments.get(name) for name in subject.op.mutates)
    copies = [map_tensors(torch.clone, one) for one in (result, *written, *(memory for _, memory in guarded.led_to))]
    guarded.reset()
    return copies


def _require_equal_bits(subject: Subject, pattern: int, when: str) -> None:
    for sample in subject.picked:
        if not same_bits(_bits(subject, sample, NANS), _bits(subject, sample, pattern)):
            raise Fault(f"the results have other bits {when}: {described(sample)}")


def _look(value: Any) -> Any:
    """The properties that a fake must share with a result."""
    if isinstance(value, list | tuple):
        return [_look(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{value.dtype} {list(value.shape)} with strides {list(value.stride())}"


def _library_calls(subject: Subject) -> Iterator[tuple[Any, Any, Arguments]]:
    """Each ``torch.library`` op with the arguments of some samples, by the names of its schema."""
    for overload, variant in zip(subject.op.library.overloads, subject.op.library.forms, strict=True):
        required = [parameter.name for parameter in variant.parameters if parameter.default is parameter.empty]
        for sample in subject.picked[:4]:
            absent = {name for name in set(sample) - set(variant.names) if sample[name] is None}
            copies = Guarded(sample).arguments
            passed = {variant.own_names[name]: value for name, value in copies.items() if name in variant.names}
            is_its = len(passed) + len(absent) == len(sample)
            if is_its and all(passed.get(name) is not None for name in required if name in variant.mutates):
                yield overload, variant, {**dict.fromkeys(required), **passed}
