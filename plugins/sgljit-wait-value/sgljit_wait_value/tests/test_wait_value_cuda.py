"""Streams that wait: the kernels compile with no GPU present; with one, every mode, graphs, pinned flags, timeouts.

A test that fails could hang for ever, so every wait either is released by this process in any case, or has a timeout.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from sgljit_core import ops
from sgljit_wait_value import Event, reference, samples

family = ops["wait_value"]
MODES = ["driver", "kernel"]
CONDITIONS = ["eq", "ge", "and", "nor"]
DTYPES = [torch.int32, torch.int64]


@pytest.fixture
def streams() -> Iterator[list[torch.cuda.Stream]]:
    """Two streams, and no wait left behind in them. Kernels are loaded before: loading one waits for what runs."""
    torch.cuda._sleep(1)
    numbers = torch.zeros(8, device="cuda")
    numbers.fill_(1).add_(1).copy_(torch.ones(8, device="cuda"))
    for dtype in DTYPES:
        flag = torch.zeros(1, dtype=dtype, device="cuda").fill_(1)
        flag.clone().mul_(3).add_(1).cpu()
    family.stream_write_value(flag, 1, mode="kernel")
    torch.cuda.synchronize()
    yield [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    family.check_timeouts()


def is_done_within(stream: torch.cuda.Stream, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not stream.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-3)
    return True


FIRST_USES = """
import torch
from sgljit_core import ops
waiting, writing, flag = torch.cuda.Stream(), torch.cuda.Stream(), torch.zeros(1, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
with torch.cuda.stream(waiting):
    ops["wait_value"].stream_wait_value(flag, 1, mode="kernel", timeout=20)
with torch.cuda.stream(writing):
    ops["wait_value"].stream_write_value(flag, 1, mode="kernel")
torch.cuda.synchronize()
ops["wait_value"].check_timeouts()
"""


@pytest.mark.gpu
def test_the_first_write_of_a_process_may_release_its_first_wait():
    """Though the driver loads no kernel while a stream is held."""
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_samples(mode: str, streams: list[torch.cuda.Stream]):
    for sample in samples.stream_wait_value(torch.device("cuda")):
        family.stream_wait_value(**{**sample, "mode": mode})
    for sample in samples.stream_write_value(torch.device("cuda")):
        flag = sample["flag"]
        expected = flag.cpu()
        reference.stream_write_value(**{**sample, "flag": expected})
        family.stream_write_value(**{**sample, "mode": mode})
        assert torch.equal(flag.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("mode", MODES)
def test_conditions(mode: str, condition: str, dtype: torch.dtype, streams: list[torch.cuda.Stream]):
    """A wait whose condition does not hold is released by a value for which it does."""
    limits = torch.iinfo(dtype)
    numbers = [0, 1, -1, 6, limits.min, limits.max]
    flag = torch.zeros(1, dtype=dtype, pin_memory=True)
    for value in numbers:
        met = {seen: reference.is_met(seen, value, condition, limits.bits) for seen in numbers}
        good = next((seen for seen, is_met in met.items() if is_met), None)
        if good is None:
            continue
        for seen, is_met in met.items():
            flag[0] = seen
            with torch.cuda.stream(streams[0]):
                family.stream_wait_value(flag, value, condition=condition, mode=mode)
            try:
                if is_met:
                    assert is_done_within(streams[0], 10), (seen, value)
                else:
                    assert not is_done_within(streams[0], 0.01), (seen, value)
            finally:
                flag[0] = good
            assert is_done_within(streams[0], 10), (seen, value)


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["device", "pinned"])
@pytest.mark.parametrize("write_mode", MODES)
@pytest.mark.parametrize("wait_mode", MODES)
def test_a_stream_waits_for_another(wait_mode: str, write_mode: str, place: str, streams: list[torch.cuda.Stream]):
    """What the writer's stream wrote before the flag is seen behind the wait; nothing is earlier."""
    where = {"device": "cuda"} if place == "device" else {"pin_memory": True}
    flag = torch.zeros(1, dtype=torch.int32, **where)
    data = torch.zeros(2**20, device="cuda")
    copy = torch.zeros_like(data)
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[1]):
        family.stream_wait_value(flag, 1, mode=wait_mode)
        copy.copy_(data)
    time.sleep(0.05)
    assert not streams[1].query()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(100_000_000)
        data.fill_(1)
        family.stream_write_value(flag, 1, mode=write_mode)
    assert not streams[1].query()
    assert is_done_within(streams[1], 30)
    assert (copy == 1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["op", "store"])
@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_a_cpu_thread_releases_a_stream(mode: str, how: str, streams: list[torch.cuda.Stream]):
    flag = torch.zeros(1, dtype=torch.int64, pin_memory=True)
    data = torch.zeros(1024, pin_memory=True)
    copy = torch.empty(1024, device="cuda")
    with torch.cuda.stream(streams[0]):
        family.stream_wait_value(flag, 2**40, mode=mode)
        copy.copy_(data, non_blocking=True)
    assert not is_done_within(streams[0], 0.05)
    data.fill_(1)

    def release() -> None:
        if how == "op":
            family.stream_write_value(flag, 2**40, device="cpu")
        else:
            flag[0] = 2**40

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    assert is_done_within(streams[0], 10)
    assert (copy == 1).all()


@pytest.mark.gpu
def test_a_cpu_thread_waits_for_a_stream(streams: list[torch.cuda.Stream]):
    """The flag is pinned, and the thread says that it is to wait itself."""
    flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    data = torch.zeros(1024, pin_memory=True)
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(100_000_000)
        data.copy_(torch.ones(1024, device="cuda"), non_blocking=True)
        family.stream_write_value(flag, 1)
    family.stream_wait_value(flag, 1, timeout=60, device="cpu")
    assert (data == 1).all()


@pytest.mark.gpu
def test_a_thread_that_has_not_used_cuda_finds_the_pinned_flag(streams: list[torch.cuda.Stream]):
    flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    errors = []

    def write() -> None:
        try:
            family.stream_write_value(flag, 1)  # on the default stream of the device
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not errors
    torch.cuda.synchronize()
    assert int(flag) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_ping_pong(mode: str, streams: list[torch.cuda.Stream]):
    """A hundred rounds between two streams; a counter that both write would differ if one were early."""
    ping, pong = Event(mode=mode), Event(mode=mode)
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for i in range(1, 101):
        with torch.cuda.stream(streams[0]):
            counter.mul_(3)
            ping.record(i)
            pong.wait(i)
        with torch.cuda.stream(streams[1]):
            ping.wait(i)
            counter.add_(1)
            pong.record(i)
    torch.cuda.synchronize()
    expected = 0
    for _ in range(100):
        expected = expected * 3 + 1
    assert int(counter) == (expected + 2**63) % 2**64 - 2**63


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_graph_capture(mode: str, streams: list[torch.cuda.Stream]):
    """A graph that waits, and is released by the CPU, twice. A driver that cannot capture its operation says so."""
    flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    done = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    out = torch.zeros(1, device="cuda")
    out.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    refusal = ""
    try:
        with torch.cuda.graph(graph):
            family.stream_wait_value(flag, 1, mode=mode)
            out.add_(1)
            family.stream_write_value(done, 1, mode=mode)
    except RuntimeError as error:
        refusal = str(error)
    if mode == "driver" and refusal:
        text = "this driver cannot capture stream memory operations into a graph: use mode='kernel'"
        pytest.skip(text) if text in refusal else pytest.fail(refusal)
    assert not refusal
    for count in (2, 3):
        flag[0] = done[0] = 0
        with torch.cuda.stream(streams[0]):
            graph.replay()
        try:
            assert not is_done_within(streams[0], 0.05)
        finally:
            flag[0] = 1
        assert is_done_within(streams[0], 10)
        assert int(out) == count
        assert int(done) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_timeout(dtype: torch.dtype, streams: list[torch.cuda.Stream]):
    flag = torch.full((1,), 3, dtype=dtype, device="cuda")
    torch.cuda.synchronize()
    start = time.monotonic()
    with torch.cuda.stream(streams[0]):
        family.stream_wait_value(flag, 4, timeout=0.2)
        family.stream_wait_value(flag, 5, timeout=0.1)
    family.check_timeouts()  # not yet
    streams[0].synchronize()
    assert 0.29 < time.monotonic() - start < 5
    text = rf"2 waits on a stream timed out, .* after 0\.2 s, at the flag at 0x{flag.data_ptr():x}, which was 3, and"
    with pytest.raises(TimeoutError, match=text):
        family.check_timeouts()
    family.check_timeouts()  # told once
    with torch.cuda.stream(streams[0]):
        family.stream_wait_value(flag, 3, timeout=10)
    streams[0].synchronize()
    family.check_timeouts()


@pytest.mark.gpu
def test_waits_that_give_up_at_once_have_a_report_each(streams: list[torch.cuda.Stream]):
    flags = torch.arange(-10, 10, dtype=torch.int32, device="cuda")
    family.stream_wait_value(flags, -10, timeout=10)  # the first allocates, which may wait for streams that are held
    torch.cuda.synchronize()
    gate = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    for _ in range(5):
        gate[0] = 0
        many = [torch.cuda.Stream() for _ in range(20)]
        for i, stream in enumerate(many):
            with torch.cuda.stream(stream):
                family.stream_wait_value(gate, 1)
                family.stream_wait_value(flags[i:], 100 + i, timeout=0.01)
        gate[0] = 1
        torch.cuda.synchronize()
        with pytest.raises(TimeoutError) as raised:
            family.check_timeouts()
        text = str(raised.value)
        assert "20 waits on a stream timed out" in text
        assert text.endswith("; and 4 more")
        found = re.findall(r"at the flag at 0x(\w+), which was (-?\d+), and the wait was for (\d+)", text)
        places = {int(address, 16): (int(seen), int(value)) for address, seen, value in found}
        assert len(places) == 16
        for address, numbers in places.items():
            i = (address - flags.data_ptr()) // 4
            assert numbers == (i - 10, 100 + i)
        family.check_timeouts()


@pytest.mark.gpu
def test_the_first_wait_with_a_timeout_cannot_be_captured():
    """In a process of its own, which has not waited yet."""
    program = (
        "import torch; from sgljit_core import ops; w = ops['wait_value']\n"
        "flag = torch.ones(1, dtype=torch.int32, device='cuda')\n"
        "w.stream_wait_value(flag, 1, mode='kernel'); torch.cuda.synchronize()\n"
        "try:\n"
        "    with torch.cuda.graph(torch.cuda.CUDAGraph()):\n"
        "        w.stream_wait_value(flag, 1, timeout=1.0)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    assert result.stdout.splitlines()[0] == (
        "stream_wait_value: the first wait with a timeout on cuda:0 allocates memory, which a capture does not allow: "
        "wait once before"
    )


@pytest.mark.gpu
def test_a_timeout_is_reported_by_the_next_call(streams: list[torch.cuda.Stream]):
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    family.stream_wait_value(flag, 1, timeout=0.01)
    torch.cuda.synchronize()
    with pytest.raises(TimeoutError, match="1 wait on a stream timed out, and the stream continued without it"):
        family.stream_write_value(flag, 1)
    family.stream_write_value(flag, 1)
    torch.cuda.synchronize()
    assert int(flag) == 1


@pytest.mark.gpu
def test_the_driver_has_no_timeout(streams: list[torch.cuda.Stream]):
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    text = "stream_wait_value: the driver's wait has no timeout: a timeout needs mode='kernel' or 'auto'"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        family.stream_wait_value(flag, 1, timeout=1.0, mode="driver")


@pytest.mark.gpu
def test_errors_of_flags_on_a_device(streams: list[torch.cuda.Stream]):
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="two devices are mixed: the flag is on cuda:0, and the device is cpu"):
        family.stream_wait_value(flag, 1, device="cpu")
    pageable = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="the flag is in pageable host memory, which cuda:0 cannot access"):
        family.stream_wait_value(pageable, 1, device="cuda:0")
    missing = f"cuda:{torch.cuda.device_count()}"
    for flag in (pageable, torch.zeros(1, dtype=torch.int32, pin_memory=True)):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_DEVICE"):
            family.stream_wait_value(flag, 1, device=missing)


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_event(pinned: bool, streams: list[torch.cuda.Stream]):
    event = Event(pinned=pinned)
    assert event.flag.is_cuda != pinned
    with torch.cuda.stream(streams[1]):
        event.wait()
    assert not event.query()  # while a stream is held up
    assert not is_done_within(streams[1], 0.02)
    if pinned:
        event.set()
    else:
        with pytest.raises(ValueError, match="the flag is in device memory"):
            event.set()
        with torch.cuda.stream(streams[0]):
            event.record()
    assert is_done_within(streams[1], 10)
    assert event.query()
    assert not event.query(2)
    with torch.cuda.stream(streams[1]):
        event.wait(2, timeout=0.01)
    streams[1].synchronize()
    with pytest.raises(TimeoutError):
        event.record(2)
    event.record(2)
    torch.cuda.synchronize()
    assert event.query(2)


@pytest.mark.gpu
def test_an_event_can_be_made_while_the_current_stream_is_held_up(streams: list[torch.cuda.Stream]):
    first = Event(pinned=True)
    with torch.cuda.stream(streams[0]):
        first.wait()
        second = Event()
        assert not second.query()
    first.set()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device():
    flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):
        for mode in MODES:
            flag[0] = 0
            family.stream_wait_value(flag, 1, mode=mode)  # the current device is 1
            assert not is_done_within(stream, 0.02)
            flag[0] = 1
            assert is_done_within(stream, 10)
    assert torch.cuda.current_device() == 0
    family.stream_write_value(flag, 2, device="cuda:1")
    torch.cuda.synchronize("cuda:1")
    assert int(flag) == 2
