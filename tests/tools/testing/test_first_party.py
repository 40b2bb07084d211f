"""The project's own ops pass the check of results: their references say what is right in the kit's terms, too."""

from __future__ import annotations

import pytest

from sgljit_core import ops
from sgljit_core.families import loading
from sgljit_tools.testing import check_op


@pytest.mark.slow
@pytest.mark.parametrize("family", list(ops))
def test_the_results_of_each_op_are_those_of_its_reference(family):
    for op in loading.load(family).declared().values():
        if op.samples is not None:
            check_op(op, checks=["results"])
