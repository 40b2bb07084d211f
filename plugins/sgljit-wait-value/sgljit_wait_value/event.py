"""``Event``: one flag, and the two operations on it."""

from __future__ import annotations

import torch

from sgljit_core import ops

__all__ = ["Event"]

_MODES = ("auto", "driver", "kernel")


class Event:
    """A flag that one stream writes and others wait for.

    It is not a ``torch.cuda.Event``. That one marks a place in a stream: waiting for it before it is recorded does not
    wait at all, and recording it holds nobody up. Here the flag's value is all there is: ``wait`` holds the stream
    until somebody writes the value, be that before or after, from any stream or, with ``pinned=True``, CPU thread; and
    if nobody ever does, for ever. A value that was written stays until it is overwritten: use a higher one for
    each round, or ``record(0)`` between them.

    Keep the event until its waits are over: its flag is freed with it.

    >>> event = Event()
    >>> with torch.cuda.stream(producer): ...; event.record()
    >>> with torch.cuda.stream(consumer): event.wait(timeout=1.0); ...
    """

    def __init__(
        self, device: torch.device | str | int | None = None, *, pinned: bool = False, mode: str = "auto"
    ) -> None:
        """The flag is 0 on every stream once this returns.

        Args:
            device: a CUDA device, by default the current one, or "cpu" for an event between threads.
            pinned: keep the flag in pinned host memory, where the CPU sees it and can write it.
            mode: as in ``stream_wait_value``; of an event on the CPU "auto".

        Raises:
            ValueError: there is no such mode, the device is neither CUDA's nor the CPU, or the event is on the CPU and
                is to be pinned or to have a mode of streams.
        """
        try:
            self.device = torch.device("cuda") if device is None else torch.device(device)
        except RuntimeError as error:  # PyTorch's, of a name that it does not know
            raise ValueError(f"Event: device must be a CUDA device or 'cpu', got {device!r}") from error
        self.mode = mode
        if mode not in _MODES:
            raise ValueError(f"Event: mode must be 'auto', 'driver' or 'kernel', got {mode!r}")
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"Event: device must be a CUDA device or 'cpu', got {str(self.device)!r}")
        if self.device.type == "cpu" and (pinned or mode != "auto"):
            given = "pinned=True" if pinned else f"mode={mode!r}"
            raise ValueError(
                f"Event: {given} is for streams, and an event on the CPU is between threads: leave it out, or name a "
                f"CUDA device"
            )
        if self.device.type == "cuda":
            torch.cuda.init()  # where there is no CUDA, it says so
        if self.device.type == "cpu" or pinned:
            self.flag = torch.zeros(1, dtype=torch.int32, pin_memory=self.device.type != "cpu")
        else:
            # On a stream of its own: the current one may be waiting for what this event is needed for.
            with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream()):
                self.flag = torch.zeros(1, dtype=torch.int32, device=self.device)
                torch.cuda.current_stream().synchronize()

    def record(self, value: int = 1) -> None:
        """Write the value once everything before in the current stream is done."""
        ops["wait_value"].stream_write_value(self.flag, value, mode=self.mode)

    def wait(self, value: int = 1, *, condition: str = "eq", timeout: float | None = None) -> None:
        """Hold the current stream (on the CPU, the calling thread) until the flag meets the condition.

        With a timeout on a stream, the wait gives up after so many seconds, and the next call of the family raises a
        TimeoutError.
        """
        mode = "auto" if timeout is not None else self.mode
        ops["wait_value"].stream_wait_value(self.flag, value, condition=condition, mode=mode, timeout=timeout)

    def set(self, value: int = 1) -> None:
        """Write the value from the calling thread, now. For a flag that the CPU reaches: pinned, or on the CPU."""
        if self.flag.is_cuda:
            raise ValueError("the flag is in device memory: make the event with pinned=True, or record it on a stream")
        ops["wait_value"].stream_write_value(self.flag, value, device="cpu")

    def query(self, value: int = 1) -> bool:
        """Whether the flag has the value now. It waits for no stream that is held up."""
        if not self.flag.is_cuda:
            return _is_flag(int(self.flag[0]), value)
        with torch.cuda.device(self.flag.device), torch.cuda.stream(torch.cuda.Stream()):
            return _is_flag(int(self.flag.cpu()[0]), value)


def _is_flag(seen: int, value: int) -> bool:
    """Whether a 32-bit flag was written as ``value``, a signed number or an unsigned one: the ops take both."""
    return -(2**31) <= value < 2**32 and (seen - value) % 2**32 == 0
