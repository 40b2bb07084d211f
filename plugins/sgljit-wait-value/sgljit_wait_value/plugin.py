"""What the family is, as data: this is all that sgljit imports before the first call."""

from __future__ import annotations

from collections.abc import Callable

from sgljit_core import KernelFamily, Op, hookimpl

FAMILY = KernelFamily(
    name="wait_value",
    package="sgljit_wait_value",
    ops=(
        # A wait changes nothing, but a graph must neither drop it nor move it past a write.
        Op(
            "stream_wait_value",
            "sgljit_wait_value.ops:stream_wait_value",
            mutates=("flag",),
            reference="sgljit_wait_value.reference:stream_wait_value",
            samples="sgljit_wait_value.samples:stream_wait_value",
        ),
        Op(
            "stream_write_value",
            "sgljit_wait_value.ops:stream_write_value",
            mutates=("flag",),
            reference="sgljit_wait_value.reference:stream_write_value",
            samples="sgljit_wait_value.samples:stream_write_value",
        ),
        Op("check_timeouts", "sgljit_wait_value.ops:check_timeouts"),
    ),
    variants="sgljit_wait_value.ops:variants",
)


@hookimpl
def sgljit_register_kernels(register: Callable[[KernelFamily], None]) -> None:
    """Declare the family."""
    register(FAMILY)
