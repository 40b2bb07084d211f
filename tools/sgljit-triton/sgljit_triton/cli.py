"""``sgljit tune``: measure the configurations of a family's autotuned kernels on this machine's GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgljit_core import TOKENS, TensorSpec, ops

from . import tuning

if TYPE_CHECKING:
    import torch

    from sgljit_core import Op

_TOKENS = (1, 16, 128, 1024, 8192)


def tune(
    family: Annotated[str, typer.Argument(help="Such as scaling.")],
    op: Annotated[list[str] | None, typer.Option(help="An op to call; by default all.")] = None,
    tokens: Annotated[list[int] | None, typer.Option(help=f"A number of tokens; by default {_TOKENS}.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model's config.json: calls for its shapes.")] = None,
    device: Annotated[str, typer.Option(help="The CUDA device.")] = "cuda",
) -> None:
    """Measure the configurations of a family's autotuned kernels on a GPU, and store the fastest in its package.

    The calls are those of the package's module calls, with tensors of random floats and of zeros, or else samples.
    """
    import torch

    from sgljit_core.compilers import arch
    from sgljit_core.families import loading
    from sgljit_core.paths import package_directory
    from sgljit_tools.benchmark import measure
    from sgljit_tools.errors import NoDeviceError

    declared = loading.load(ops[family].__name__).declared()
    if unknown := sorted(set(op or ()) - declared.keys()):
        raise typer.BadParameter(f"{family} has no op {', '.join(unknown)}; it has {', '.join(declared)}")
    if not torch.cuda.is_available():
        raise NoDeviceError("sgljit tune measures on a GPU, and this machine has no CUDA device")
    shape = None
    if model is not None:
        from sgljit_engines.shapes import read_config

        shape = read_config(model)
    where = torch.empty(0, device=device).device  # with its index
    index = where.index

    def timed(launch: Callable[..., None], args: Sequence[Any]) -> float:
        return measure(launch, lambda: copies(args)).microseconds

    called = [one for name, one in declared.items() if not op or name in op]
    with torch.cuda.device(index):
        calls = itertools.chain.from_iterable(calls_of(one, where, shape, tokens or _TOKENS) for one in called)
        found = measured(calls, timed)
    directory = package_directory(loading.load(ops[family].__name__).package) / "tuned"
    store(directory, tuning.chip(index), arch.device_target(index).name, found)


def calls_of(
    op: Op, device: torch.device, model: Any, tokens: Sequence[int]
) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """The op's function with the arguments of each call: its declared calls, or else its samples."""
    if op.calls is None:
        for sample in op.samples(device) if op.samples is not None else ():
            yield op.function, sample
        return
    for call in op.calls(model):
        specs = [value for value in call.values() if isinstance(value, TensorSpec)]
        varies = any(TOKENS in spec.shape for spec in specs)
        for number in tokens if varies else (0,):
            yield (
                op.function,
                {
                    name: _tensor(value, number, device) if isinstance(value, TensorSpec) else value
                    for name, value in call.items()
                },
            )


def _tensor(spec: TensorSpec, tokens: int, device: torch.device) -> torch.Tensor:
    """A tensor as described: random floats, or zeros, which are indexes of any table."""
    import torch

    shape = [tokens if size == TOKENS else size for size in spec.shape]
    strides = spec.strides or [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    size = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    dtype: torch.dtype = getattr(torch, spec.dtype)
    memory = torch.zeros(spec.offset + size, device="cpu" if spec.pinned else device)
    memory = (memory.normal_() if dtype.is_floating_point else memory).to(dtype)
    return (memory.pin_memory() if spec.pinned else memory).as_strided(shape, strides, spec.offset)


def copies(args: Sequence[Any]) -> list[Any]:
    """Arguments with copies of their tensors, which share memory as the tensors do."""
    import torch

    storages: dict[int, torch.UntypedStorage] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        own = storages.setdefault(storage.data_ptr(), storage.clone()) if storage.nbytes() else storage
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(own, int(value.storage_offset()), value.shape, value.stride())

    return [copied(value) for value in args]


def measured(
    calls: Iterator[tuple[Callable[..., Any], Mapping[str, Any]]], measure: tuning.Measure
) -> list[tuning.Measured]:
    """Make the calls, and measure the configurations of the autotuned kernels that they launch; told as it goes."""
    told = 0
    with tuning.measuring(measure) as measurement:
        for function, arguments in calls:
            function(**arguments)
            for one in measurement.measured[told:]:
                shape = ", ".join(f"{name}={value}" for name, value in one.case.shape.items())
                best = f"{tuning.shown(one.configuration)}: {one.microseconds:.2f} us, the first {one.first:.2f}"
                typer.echo(f"{one.case.kernel} with {shape}: {best}")
            told = len(measurement.measured)
    for text in measurement.failed:
        typer.echo(f"note: did not run: {text}", err=True)
    return measurement.measured


def store(directory: Path, chip: str, target: str, found: Sequence[tuning.Measured]) -> None:
    """Write what was measured on a chip into the package's data, beside what is there of other cases."""
    if not found:
        raise typer.BadParameter("no call launched a kernel with @triton.autotune, so there is nothing to measure")
    file = tuning.file_of(directory, chip)
    before = tuning.read(file).measured if file.exists() else ()
    cases = [one.case for one in found]
    kept = [one for one in before if one.case not in cases]
    tuning.write(file, tuning.Tuned(chip, target, (*kept, *found)))
    tuning.forget()
    typer.echo(f"stored {len(found)} cases of {chip} in {file}")
