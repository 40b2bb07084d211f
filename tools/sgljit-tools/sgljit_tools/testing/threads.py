"""Does an op give the same where threads share a small input? On the CPU, in a process that always splits."""

from __future__ import annotations

import functools

import torch

from .subject import Fault, NotApplicable, Subject, conditions
from .worker import CrashedError, Worker


@functools.lru_cache(maxsize=1)
def _worker() -> Worker:
    return Worker(SGLJIT_SPLIT_ALWAYS="1")


def threads(subject: Subject) -> None:
    """Threads that share each sample give the reference's results: none skips the end of its range."""
    if subject.device.type != "cpu":
        raise NotApplicable("threads of the host share the work on the CPU")
    if not subject.checked:
        return
    try:
        _worker().run(functools.partial(_judge_split, subject.op.family, subject.op.name))
    except CrashedError as error:
        raise Fault(f"with the sample split over 3 threads: {error}") from error


def _judge_split(family: str, name: str) -> None:
    """In a process that splits: compare every sample."""
    from sgljit_core.families import loading

    subject = Subject(loading.load(family).declared()[name], torch.device("cpu"))
    with conditions():
        for sample in subject.checked:
            subject.judge(sample, "split over 3 threads (SGLJIT_SPLIT_ALWAYS=1)", poison=True)
