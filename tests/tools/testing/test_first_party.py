"""The project's own ops pass the kit's checks of results and of wrong arguments: right ops give no finding."""

from __future__ import annotations

import pytest
import torch
from families.test_every_op_in_graphs import declared

from sgljit_core import ops
from sgljit_core.families import loading
from sgljit_tools.testing import check_op, subject

CHECKS = ("results", "precision", "nans", "threads", "arguments", "overlaps", "indices", "far_rows", "samples")
# The first is in a process that finds installed families alone; the bits of ``round_first`` are in the example's tests.
NOT_OF_EXAMPLES = ("threads", "samples")


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*ops, "prologues"}))
def test_no_op_has_a_finding(monkeypatch, family):
    """Of small samples, which have every combination of dtypes, dimensions and options but in hicache.

    The tests of a family compare all samples with its reference.
    """
    monkeypatch.setattr(subject, "LARGEST", 1 << (20 if family == "hicache" else 16))
    checks = [name for name in CHECKS if family in ops or name not in NOT_OF_EXAMPLES]
    declared_ops = loading.load(family).declared() if family in ops else declared(family)  # an example, by its path
    for op in declared_ops.values():
        if op.samples is not None:
            if op.reference is not None:
                assert subject.Subject(op, torch.device("cpu")).checked
            check_op(op, checks=checks)
