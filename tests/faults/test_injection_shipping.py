"""A cache is imported, exported, pruned and verified while system calls fail: it costs time, or is said plainly."""

from __future__ import annotations

import injection
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", injection.ERRNOS)
@pytest.mark.parametrize("name", ["import", "export", "prune", "verify"])
def test_a_fault_at_one_of_eleven_calls(ground, record_property, name, kind):
    tally = injection.campaign(ground, name, (kind,), step=11)
    record_property("faults", tally.fired)
    assert "\n\n".join(tally.failures) == ""
