"""What does this process do, call by call? For the day on which it crashes, or an error comes from nowhere.

The core imports this module only where one of its variables is set: else ops are made as if it did not exist.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from sgljit_core.errors import ConfigError, DriverError

from .environment import inherited_environment

Function = Callable[..., Any]


class Settings(NamedTuple):
    """The settings of an observed process. The variables are read once.

    Attributes:
        log: ``SGLJIT_LOG``: ``info`` or ``debug`` prints the log records of sgljit on stderr, of this level and above;
            ``json`` prints all of them, each as a JSON object in a line. By default the program sets up logging.
        trace_calls: ``SGLJIT_TRACE_CALLS``: with ``1``, each call of an op is a line on stderr before it runs.
        nvtx: ``SGLJIT_NVTX``: with ``1``, each call of an op is an NVTX range of its name, as profilers show them.
        sync: ``SGLJIT_SYNC``: with ``1``, each call of an op waits for its GPU, before and after, so that an error is
            raised at the call that caused it, with the arguments.
    """

    log: str
    trace_calls: bool
    nvtx: bool
    sync: bool


def _read() -> Settings:
    def one_of(name: str, *values: str) -> str:
        value = inherited_environment().get(name, "").strip().lower() or values[0]
        if value not in values:
            raise ConfigError(f"{name} must be one of {', '.join(filter(None, values))}; got {value!r}")
        return value

    return Settings(
        log=one_of("SGLJIT_LOG", "", "info", "debug", "json"),
        trace_calls=one_of("SGLJIT_TRACE_CALLS", "0", "1") == "1",
        nvtx=one_of("SGLJIT_NVTX", "0", "1") == "1",
        sync=one_of("SGLJIT_SYNC", "0", "1") == "1",
    )


class _AsJson(logging.Formatter):
    """A record as a JSON object: time, level, logger, process, text, and the data that it carries."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {"time": record.created, "level": record.levelname, "logger": record.name, "process": record.process}
        return json.dumps({**facts, "text": record.getMessage(), **getattr(record, "sgljit", {})}, default=str)


def _print_log(level: str) -> None:
    """Print the records of sgljit on stderr. The program's own handlers no longer get them, so each is printed once."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s")
    handler.setFormatter(_AsJson() if level == "json" else plain)
    logger = logging.getLogger("sgljit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if level == "info" else logging.DEBUG)
    logger.propagate = False


SETTINGS = _read()
if SETTINGS.log:
    _print_log(SETTINGS.log)


def around(declaration: Any, body: Function) -> Function:
    """The body of an op, or a function that prints its calls, marks them and waits for them, as the settings say."""
    import torch

    if SETTINGS.nvtx:
        if not torch.backends.cuda.is_built():
            raise ConfigError("SGLJIT_NVTX=1 needs NVTX, which CUDA builds of PyTorch have: install one, or unset it")
        body = torch.cuda.nvtx.range(f"{declaration.where.family}.{declaration.where.op}")(body)
    if not (SETTINGS.trace_calls or SETTINGS.sync):
        return body
    op = declaration.where._replace(place="")
    names = [parameter.name for parameter in declaration.parameters]

    def observed(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        call = f"{op}: {', '.join(f'{name}={_described(value)}' for name, value in given.items())}"
        devices = sorted({one.device.index for one in given.values() if isinstance(one, torch.Tensor) and one.is_cuda})
        if devices:
            call += f" on stream {torch.cuda.current_stream(devices[0]).cuda_stream:#x}"
        if SETTINGS.trace_calls:
            print(f"sgljit[{os.getpid()}] {call}", file=sys.stderr, flush=True)
        waits = SETTINGS.sync and bool(devices) and not torch.cuda.is_current_stream_capturing()
        if waits:
            _wait(devices, f"the GPU reported an error of something that ran before this call: {call}")
        result = body(*args, **kwargs)
        if waits:
            _wait(devices, f"the GPU reported an error of this call: {call}")
        return result

    return observed


def _wait(devices: list[int], what: str) -> None:
    import torch

    try:
        for device in devices:
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise DriverError(f"{what}\n{error}") from error


def _described(value: Any) -> str:
    """A tensor as dtype, sizes, strides and device: its elements are not read. Anything else as its ``repr``."""
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}{list(value.shape)} strides {list(value.stride())} {value.device}"
