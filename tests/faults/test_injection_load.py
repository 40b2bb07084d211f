"""A module is loaded while system calls fail: it costs time, or is said plainly."""

from __future__ import annotations

import injection
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symlink", "memfd"])
def test_a_warm_start_survives_where_no_link_and_no_memory_file_can_be_made(ground, kind):
    tally = injection.campaign(ground, "load, warm", (kind,))
    assert tally.failures == []
    assert tally.fired > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", injection.ERRNOS)
@pytest.mark.parametrize("name", ["load, cold", "load, warm"])
def test_a_fault_at_one_of_eleven_calls(ground, record_property, name, kind):
    tally = injection.campaign(ground, name, (kind,), step=11)
    record_property("faults", tally.fired)
    assert "\n\n".join(tally.failures) == ""
