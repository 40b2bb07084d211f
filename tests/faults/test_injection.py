"""No failure of a system call may do more than cost time, or be said plainly."""

from __future__ import annotations

import injection
import pytest


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    with injection.ground(tmp_path_factory.mktemp("ground")) as made:
        yield made


def test_a_warm_start_survives_where_no_link_and_no_memory_file_can_be_made(ground):
    """A sample of what follows, and a test that faults are met."""
    tally = injection.campaign(ground, "load, warm", ("symlink", "memfd"))
    assert tally.failures == []
    assert tally.fired > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", injection.ERRNOS)
@pytest.mark.parametrize("name", injection.SCENARIOS)
def test_every_fault(ground, name, kind):
    assert "\n\n".join(injection.campaign(ground, name, (kind,)).failures) == ""
