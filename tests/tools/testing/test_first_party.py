"""The project's own ops pass the kit's checks of results and of wrong arguments: right ops give no finding."""

from __future__ import annotations

import pytest

from sgljit_core import ops
from sgljit_core.families import loading
from sgljit_tools.testing import check_op

CHECKS = ("results", "precision", "threads", "arguments", "overlaps", "indices", "far_rows", "samples")


@pytest.mark.slow
@pytest.mark.parametrize("family", list(ops))
def test_no_op_has_a_finding(family):
    for op in loading.load(family).declared().values():
        if op.samples is not None:
            check_op(op, checks=CHECKS)
