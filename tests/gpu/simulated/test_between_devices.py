"""Between GPUs: streams and events of each, copies from one to another, a thread for each."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.gpu.simulated.machine import SimulatedError, machine
from tests.gpu.simulated.several import FIRST, SECOND, in_threads, ones

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="SIMULATE_GPUS=2 makes two of them"
)
torch.set_num_threads(1)


def test_copies_from_one_device_to_another() -> None:
    x = torch.arange(6, device=SECOND, dtype=torch.float64).view(2, 3).t()
    before = machine.waits
    moved = x.to("cuda:0")
    halved = x.to("cuda:0", torch.float16, non_blocking=True)
    kept = torch.empty(3, 2, device=FIRST)
    kept[:, 0].copy_(x[:, 1], non_blocking=True)
    kept[:, 1] = x[:, 0]
    torch.cuda.set_sync_debug_mode("error")
    try:
        x.to(FIRST)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert machine.waits == before  # the host waits for none of them
    assert moved.device == halved.device == FIRST and halved.dtype == torch.float16
    assert moved.dtype == torch.float64 and moved.stride() == x.stride()
    assert moved.tolist() == halved.tolist() == x.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert kept.tolist() == [[3, 0], [4, 1], [5, 2]]


def test_a_copy_between_devices_is_made_by_the_source() -> None:
    """On its current stream, when the other device's current one is done, which then waits."""
    x, y = ones(FIRST), torch.zeros(4, device=SECOND)
    here, there = torch.cuda.Stream(FIRST), torch.cuda.Stream(SECOND)
    for stream in (here, there):
        stream.wait_stream(torch.cuda.default_stream(stream.device))
    with torch.cuda.stream(there):
        y.add_(5)
    with torch.cuda.stream(here):
        with pytest.raises(SimulatedError, match="beside another write"):
            y.copy_(x)  # the default stream of the second waits for nothing of the other's
        with torch.cuda.stream(there):
            y.copy_(x)
            z = y + 1
        x.zero_()  # behind the copy on the same stream
    with pytest.raises(SimulatedError, match="may not see"):
        y + 1  # on the default stream of the second, which did not wait for it
    torch.cuda.default_stream(SECOND).wait_stream(there)
    assert (y + z).tolist() == [3.0] * 4


def test_what_a_copy_between_devices_reads_is_not_overwritten_elsewhere() -> None:
    x, side = ones(FIRST), torch.cuda.Stream(FIRST)
    side.wait_stream(torch.cuda.current_stream(FIRST))
    y = x.to(SECOND)
    with torch.cuda.stream(side), pytest.raises(SimulatedError, match="may still read"):
        x.zero_()
    side.wait_stream(torch.cuda.current_stream(SECOND))  # it waited for the copy
    with torch.cuda.stream(side):
        x.zero_()
    assert y.tolist() == [1.0] * 4


def test_memory_is_not_given_back_while_another_stream_uses_it() -> None:
    """torch gives it out again at once, to the stream that it was allocated for."""
    for told in (False, True):
        x, side = ones(FIRST), torch.cuda.Stream(FIRST)
        side.wait_stream(torch.cuda.current_stream(FIRST))
        with torch.cuda.stream(side):
            y = x.to(SECOND)
        if told:
            x.record_stream(side)
        del x
        if told:
            ones(FIRST)
        else:
            with pytest.raises(SimulatedError, match="was given back while it was used"):
                ones(FIRST)
        torch.cuda.synchronize(FIRST)
        assert y.tolist() == [1.0] * 4


def test_streams_belong_to_devices() -> None:
    assert torch.cuda.Stream().device == FIRST
    with torch.cuda.device(1):
        assert torch.cuda.Stream().device == SECOND
        assert torch.cuda.current_stream() is torch.cuda.default_stream("cuda:1")
    stream, other = torch.cuda.Stream(device="cuda:1"), torch.cuda.Stream(FIRST)
    assert stream.device == SECOND and torch.cuda.current_device() == 0
    with torch.cuda.stream(other), torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() is torch.cuda.current_stream(1) is stream
        assert torch.cuda.current_stream(FIRST) is other
        assert in_threads(lambda: torch.cuda.current_stream(1)) == [torch.cuda.default_stream(1)]
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() is stream
    assert torch.cuda.current_device() == 0
    for index in (0, 1):
        assert torch.cuda.current_stream(index) is torch.cuda.default_stream(index)
    torch.cuda.set_stream(stream)
    assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() is stream
    torch.cuda.set_stream(torch.cuda.default_stream(1))


def test_work_goes_to_the_stream_of_its_device() -> None:
    """Whichever device is the current one."""
    x, side = ones(SECOND), torch.cuda.Stream(SECOND)
    side.wait_stream(torch.cuda.current_stream(SECOND))
    with torch.cuda.stream(side), torch.cuda.device(FIRST):
        y = x + 1
    with pytest.raises(SimulatedError, match="may not see"):
        y + 1
    event = side.record_event()
    torch.cuda.current_stream(SECOND).wait_event(event)
    assert (y + 1).tolist() == [3.0] * 4


def test_events_are_waited_for_by_other_devices() -> None:
    x, side = torch.zeros(4, device=FIRST), torch.cuda.Stream(FIRST)
    side.wait_stream(torch.cuda.current_stream(FIRST))
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        x.add_(1)
        event.record()
    torch.cuda.current_stream(SECOND).wait_event(event)
    torch.cuda.current_stream(FIRST).wait_stream(torch.cuda.current_stream(SECOND))
    assert x.tolist() == [1.0] * 4
    with pytest.raises(RuntimeError, match="does not match recording stream's device"):
        event.record(torch.cuda.current_stream(SECOND))


def test_a_device_is_waited_for_alone() -> None:
    hosts = [torch.zeros(4, pin_memory=True) for _ in range(2)]
    for host, device in zip(hosts, (FIRST, SECOND), strict=True):
        host.copy_(ones(device), non_blocking=True)
    torch.cuda.synchronize("cuda:1")
    assert hosts[1].tolist() == [1.0] * 4 and hosts[0].isnan().all()
    ones(SECOND).sum().item()
    assert hosts[0].isnan().all()
    torch.cuda.synchronize()
    assert hosts[0].tolist() == [1.0] * 4


def test_threads_sum_their_parts() -> None:
    """Each its own device: parts of a product, exchanged by copies behind events, over and over."""
    count, size, rounds = len(machine.gpus), 8, 12
    whole = torch.arange(float(size * size)).view(size, size) / size**2
    start = torch.linspace(-1, 1, size)
    wanted = start
    for _ in range(rounds):
        wanted = torch.tanh(whole @ wanted)
    parts: dict[int, torch.Tensor] = {}
    events = [torch.cuda.Event() for _ in range(count)]
    taken = [torch.cuda.Event() for _ in range(count)]
    met = threading.Barrier(count)
    results: dict[int, list[float]] = {}

    def compute(rank: int) -> None:
        torch.cuda.set_device(rank)
        with torch.cuda.stream(torch.cuda.Stream()):
            stream = torch.cuda.current_stream()
            columns = whole.chunk(count, 1)[rank].to("cuda")
            place = sum(part.shape[1] for part in whole.chunk(count, 1)[:rank])
            x = start.to("cuda")
            for _ in range(rounds):
                parts[rank] = columns @ x[place : place + columns.shape[1]]
                events[rank].record()
                met.wait(30)
                total = torch.zeros(size, device="cuda")
                for other in range(count):
                    mine = torch.cuda.current_stream(other)  # of this thread, on the other device
                    mine.wait_event(events[other])
                    total += parts[other].to("cuda")
                taken[rank].record()
                met.wait(30)
                for event in taken:
                    stream.wait_event(event)  # before the parts are given back
                met.wait(30)
                x = total.tanh()
            results[rank] = x.tolist()

    in_threads(*(lambda rank=rank: compute(rank) for rank in range(count)))  # type: ignore[misc]
    for found in results.values():
        torch.testing.assert_close(torch.tensor(found), wanted)
    assert len(results) == count


def test_threads_that_do_not_wait_for_each_other_are_found_out() -> None:
    parts: list[torch.Tensor] = []

    def first() -> None:
        with torch.cuda.stream(torch.cuda.Stream(FIRST)):
            parts.append(ones(FIRST) * 2)

    in_threads(first)
    with torch.cuda.device(1), pytest.raises(SimulatedError, match="may not see"):
        parts[0].to("cuda")
