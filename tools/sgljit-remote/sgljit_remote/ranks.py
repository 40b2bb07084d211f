"""How do all ranks of a job get ready in the time of one? That one makes what is missing, and hands it to the others.

The bytes go over the process group that the job has. They are verified on arrival like those of a remote, but for
signatures: a rank of the same job is trusted, and the first rank has checked what it took from a remote.

Rejected: a barrier behind which each rank reads a directory that all share, which is the cache's own business and works
without this; and objects pickled by torch.distributed, since to unpickle is to run what was sent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sgljit_core import log, parallel_compile, paths, why
from sgljit_core.cache import lookup
from sgljit_core.cache.manifest import ManifestError
from sgljit_core.errors import ConfigError
from sgljit_core.plugins import discovery, hooks

from . import handed, objects, transfer
from .counts import refused
from .errors import RankLostError, RefusedObjectError, WarmUpError
from .objects import Artifact
from .remote import keep
from .transfer import Choice

_LONGEST_PAUSE = 0.05


def warm_up(
    work: Callable[[], object] | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    model: Path | str | None = None,
    tensor_parallel: int = 1,
    dtype: str | None = None,
    families: Collection[str] = (),
    timeout: float = 600.0,
) -> int:
    """Let the ranks of a group get ready so that each variant is compiled, or asked of a remote, once in all.

    The first rank of the group builds what ``model`` asks for and calls ``work``, alone. The others get what it built,
    loaded or compiled, as far as they lack it, and call ``work`` then. All ranks of the group must call this, with the
    same arguments.

    Args:
        work: uses the ops, as the job will: ``lambda: ops["norm"].rmsnorm(x, weight)``. No collective operation may be
            in it, as the first rank is alone in it. Without it, nothing is called.
        group: one of gloo or NCCL; by default the whole job. For one of each node, pass the group of the node.
        model: a model's ``config.json``, or the directory that holds it: the first rank builds what ``sgljit prepare
            --model`` does, for its current device, and hands over exactly this. Needs sgljit-tools on that rank.
            It compiles only where the process may: not with ``SGLJIT_JIT=error``.
        tensor_parallel: the number of ranks that share the attention heads of the model.
        dtype: of the model, such as "float16"; by default what its config says.
        families: hand over all artifacts of these families in the first rank's cache, too, where ``work`` has them
            made by another process, such as ``sgljit prepare``.
        timeout: the seconds that all of it may take, from this rank's call on.

    Returns:
        The number of artifacts that this rank was given.

    Raises:
        TypeError: there is no ``work``, no ``model`` and no family: nothing would be done.
        WarmUpError: the first rank has failed to build the model or in ``work``; there, its own exception is raised.
        ConfigError: sgljit-tools is missing on the first rank, which was to build a model.
        RankLostError: a rank is gone, or was not there in time. The group cannot be used further.
        RefusedObjectError: what arrived is damaged.
        OSError: no directory of this machine takes it.
    """
    if work is None and model is None and not families:
        raise TypeError("warm_up() would do nothing: pass work, a function that uses the ops; a model; or families")
    ranks = _Ranks(group, timeout)
    if ranks.is_first:
        try:
            built = None if model is None else (Path(model), tensor_parallel, dtype)
            offered = _offered(work, families, built)
        except BaseException as error:
            ranks.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
            raise
        ranks.send(json.dumps({artifact.place: artifact.manifest.sha256 for artifact in offered}).encode())
        wanted = ranks.union([False] * len(offered))
        if any(wanted):
            ranks.send(objects.pack([one for one, is_wanted in zip(offered, wanted, strict=True) if is_wanted], None))
        return 0
    named: dict[str, str] = json.loads(ranks.receive())
    if "failed" in named:
        raise WarmUpError(
            f"the first rank could not make what this one waited for: {named['failed']}. Its own log has the rest; "
            "without warm_up, this rank compiles for itself, if it may"
        )
    root = paths.cache_root()
    absent = [place for place in named if not _has(root, place)]
    if any(ranks.union([place in absent for place in named])):
        _keep(ranks.receive(), {place: named[place] for place in absent}, root)
    if work is not None:
        work()
    return len(absent)


def _offered(
    work: Callable[[], object] | None, families: Collection[str], model: tuple[Path, int, str | None] | None
) -> list[Artifact]:
    """The artifacts that the work uses, that a model asks for, and those of families."""
    hooks.load_plugins()  # this one hears of hits only then
    if "sgljit_remote.plugin" not in sys.modules:
        raise ConfigError("SGLJIT_PLUGINS must name sgljit-remote, which else does not hear what the first rank uses")
    built = [] if model is None else _built(*model)
    with handed.noting() as directories:
        if work is not None:
            work()
    found = {}
    for directory in (*built, *directories):
        try:
            read = lookup.read(directory, directory.parents[4])
        except (ManifestError, OSError):  # it was removed meanwhile, or was never kept
            continue
        if read is not None:
            artifact = Artifact(read.manifest, read.payload)
            found[artifact.place] = artifact
    if families:
        found |= {artifact.place: artifact for artifact in transfer.local(paths.cache_root(), Choice(families))}
    return [found[place] for place in sorted(found)]


def _built(model: Path, tensor_parallel: int, dtype: str | None) -> list[Path]:
    """Build what a model asks for, as ``sgljit prepare`` does; the directories of the artifacts."""
    try:
        from sgljit_engines.adapter import engine_ops
        from sgljit_engines.shapes import read_config
        from sgljit_tools.cli.prepare import builds_ahead
    except ImportError as error:
        raise ConfigError(
            f"warm_up(model={str(model)!r}) builds what `sgljit prepare` does, which is not installed here ({error}): "
            "pip install sgljit-tools on the machine of the first rank, or pass the calls of the ops as work"
        ) from error
    shape = read_config(model, tensor_parallel, dtype)
    for note in shape.notes:
        log.log(logging.WARNING, "warm_up_note", f"of {model}: {note}")
    builders = builds_ahead(discovery.installed(), model=shape, ops=engine_ops(None))
    parallel_compile(builders)
    return [artifact for builder in builders if (artifact := why(builder).artifact) is not None]


def _has(root: Path, place: str) -> bool:
    """Whether a cache has an artifact that can be used: one that is damaged is given anew."""
    try:
        return lookup.read(root / place, root) is not None
    except (ManifestError, OSError):
        return False


def _keep(content: bytes, wanted: Mapping[str, str], root: Path) -> None:
    """Verify what arrived, and keep what is wanted: the sha256 of payloads by the places of artifacts."""
    try:
        unpacked = objects.unpack(content, ())
        arrived = {artifact.place: artifact for artifact in unpacked.artifacts}
        for place, sha256 in wanted.items():
            artifact = arrived.get(place)
            if artifact is None or artifact.manifest.sha256 != sha256:
                reason = unpacked.refused.get(place, "it is not the one that was named")
                raise RefusedObjectError(f"what the first rank sent as {place} is refused and not used: {reason}")
            if (kept := keep(artifact, root)) != root:  # that one takes no files
                handed.remember(place, kept)
    except RefusedObjectError as error:
        refused("the first rank", str(error), len(content))
        raise


class _Ranks:
    """The collective operations of a warm-up, with a limit of time."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: float) -> None:
        self._group = group
        self._deadline, self._timeout = time.monotonic() + timeout, timeout
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self.is_first = dist.get_rank(group) == 0
        # The operations of NCCL take tensors of the GPU, those of gloo of either.
        is_of_gpu = "cpu" not in dist.get_backend_config(group)
        self._device = torch.device("cuda", torch.cuda.current_device()) if is_of_gpu else torch.device("cpu")

    def send(self, content: bytes) -> None:
        """Give bytes, at least one, to the other ranks."""
        self._broadcast(torch.tensor([len(content)], device=self._device))
        self._broadcast(torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self._device))

    def receive(self) -> bytes:
        """The bytes that the first rank gives."""
        size = int(self._broadcast(torch.zeros(1, dtype=torch.int64, device=self._device)))
        content = bytearray(size)
        here = torch.frombuffer(content, dtype=torch.uint8)
        here.copy_(self._broadcast(here.to(self._device)))
        return bytes(content)

    def union(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether any rank has set it."""
        if not flags:
            return []
        tensor = torch.tensor(flags, dtype=torch.int32, device=self._device)
        self._done(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True))
        return [bool(flag) for flag in tensor.tolist()]

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._done(lambda: dist.broadcast(tensor, self._first, self._group, async_op=True))
        return tensor

    def _done(self, begin: Callable[[], Any]) -> None:
        """Wait for an operation. Raises RankLostError."""
        pause = 0.0005
        try:
            operation = self._begun(begin)
            while not operation.is_completed():
                if time.monotonic() > self._deadline:
                    raise self._late()
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            operation.wait()
        except RuntimeError as error:
            if isinstance(error, RankLostError):
                raise
            raise RankLostError(self._lost(str(error).partition("\n")[0])) from error

    def _begun(self, begin: Callable[[], Any]) -> Any:
        """Begin an operation in a thread: the first one of NCCL waits for all ranks, for longer than the limit."""
        begun: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None

        def work() -> None:
            try:
                # A stream makes its device the thread's own, too; without one, nothing of CUDA begins.
                with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                    begun.put(begin())
            except BaseException as error:  # noqa: BLE001 - handed on
                begun.put(error)

        threading.Thread(target=work, name="sgljit-ranks", daemon=True).start()
        try:
            operation = begun.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            raise self._late() from None
        if isinstance(operation, BaseException):
            raise operation
        return operation

    def _late(self) -> RankLostError:
        return RankLostError(self._lost(f"there is no answer after {self._timeout:g} s"))

    def _lost(self, reason: str) -> str:
        return (
            f"rank {dist.get_rank()} cannot finish the warm-up, as another rank is gone or late: {reason}. The log of "
            "the rank that ended first has the cause; a larger timeout helps where the first rank compiles for longer"
        )
