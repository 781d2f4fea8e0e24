"""Several GPUs: what is on which, what waits for what between them, and an engine on the second."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import triton
from triton import language as tl

from tests.gpu.engines import Engines, Make, tokens_of
from tests.gpu.simulated.machine import SimulatedError, machine

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="SIMULATE_GPUS=2 makes two of them"
)
torch.set_num_threads(1)

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def on_the_first() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    torch.cuda.set_device(0)


def ones(device: object, count: int = 4) -> torch.Tensor:
    return torch.ones(count, device=device)  # type: ignore[call-overload, no-any-return]


def in_threads(*runs: Callable[[], object]) -> list[object]:
    """What each gives that is run in a thread of its own, all at once."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [future.result() for future in [pool.submit(run) for run in runs]]


def test_a_thread_has_a_current_device() -> None:
    assert torch.cuda.device_count() == len(machine.gpus) >= 2
    for name in (1, "cuda:1", SECOND):
        with torch.cuda.device(name):
            assert torch.cuda.current_device() == 1
            with torch.cuda.device("cuda"), torch.cuda.device(None), torch.cuda.device(-1):
                assert torch.cuda.current_device() == 1
        assert torch.cuda.current_device() == 0
        torch.cuda.set_device(name)
        torch.cuda.set_device(-1)
        assert torch.cuda.current_device() == 1
        assert in_threads(torch.cuda.current_device) == [0]
        torch.cuda.set_device(0)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(len(machine.gpus))
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        ones("cuda:15")
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.current_stream("cpu")


def test_tensors_say_where_they_are() -> None:
    there = ones("cuda:1")
    assert there.device == SECOND and there.get_device() == 1 and there.is_cuda
    others = [
        there + 1, there[1:], there.view(2, 2), there.new_empty(3), torch.empty_like(there),
        there.new_zeros(2), there.clone(), there.to(torch.int64), there.to("cuda:1"),
        torch.arange(3, device=SECOND), torch.tensor([1.5], device=SECOND),
        torch.empty_strided((2, 2), (2, 1), device=SECOND), torch.zeros(2, device="cuda:1"),
        torch.rand(2, device="cuda:1"), torch.nn.Linear(2, 2).to("cuda:1").weight,
        there.cpu().cuda(SECOND), ones(FIRST).new_zeros(2, device="cuda:1"),
        torch.ones_like(ones(FIRST), device=SECOND), torch.ones(2).to(ones(SECOND)),
    ]  # fmt: skip
    assert [tensor.device for tensor in others] == [SECOND] * len(others)
    assert there.cpu().tolist() == there.tolist() == [1.0] * 4
    assert there.to("cuda:1") is there


def test_a_device_without_an_index_is_the_current_one() -> None:
    for index in (0, 1):
        with torch.cuda.device(index):
            found = [
                ones("cuda"), torch.arange(3, device="cuda"), torch.tensor([1], device="cuda"),
                torch.ones(2).to("cuda"), torch.ones(2).cuda(), torch.rand(2, device="cuda"),
                torch.nn.Linear(2, 2, device="cuda").weight, ones(FIRST).to("cuda"),
                ones(FIRST).new_empty(2, device="cuda"), ones(SECOND).cuda(),
            ]  # fmt: skip
        assert [tensor.device.index for tensor in found] == [index] * len(found)


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: a + b.sum(),  # one number, but of the other device
        lambda a, b: a.sum() * b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: a.view(2, 2) @ b.view(2, 2),
        lambda a, b: a.add_(b),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: a.index_select(0, b.long()),
        lambda a, b: a[b.long()],
        lambda a, b: torch.where(a > 0, a, b),
    ],
)
def test_devices_are_not_mixed(mix: Callable[..., object]) -> None:
    for one, other in ((FIRST, SECOND), (SECOND, FIRST)):
        told = f"to be on the same device, but found at least two devices, {one} and {other}!"
        with pytest.raises(RuntimeError, match=told):
            mix(ones(one), ones(other))


def test_the_host_is_another_device_for_each() -> None:
    assert (ones(SECOND) * torch.tensor(3.0)).tolist() == [3.0] * 4  # one number is an argument
    with pytest.raises(RuntimeError, match="two devices, cuda:1 and cpu!"):
        ones(SECOND) + torch.ones(4)


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


def test_memory_is_counted_by_device() -> None:
    gc.collect()
    torch.cuda.reset_peak_memory_stats(1)
    before = [torch.cuda.memory_allocated(index) for index in (0, 1)]
    held = torch.empty(2**20, device=SECOND)
    moved = ones(FIRST, 2**18).to(SECOND)
    with torch.cuda.device(1):
        taken = torch.cuda.memory_allocated() - before[1]
        assert taken == torch.cuda.memory_reserved() - before[1] == 5 * 2**20
        assert torch.cuda.mem_get_info() == (machine.gpus[1].free, machine.gpus[1].total)
    assert torch.cuda.memory_allocated("cuda:0") == machine.allocated == before[0]
    assert torch.cuda.mem_get_info(SECOND)[0] == machine.free - 5 * 2**20 + before[0] - before[1]
    del held, moved
    assert [torch.cuda.memory_allocated(index) for index in (0, 1)] == before
    assert torch.cuda.max_memory_allocated(1) == before[1] + 5 * 2**20
    torch.cuda.reset_peak_memory_stats(SECOND)
    assert torch.cuda.max_memory_allocated(1) == before[1]


def test_memory_runs_out_by_device() -> None:
    torch.cuda.set_per_process_memory_fraction(2**-6, 1)
    first, second = machine.gpus[:2]
    try:
        assert second.limit == 2**24 and machine.limit == first.limit == 2**30
        torch.empty(2**23, device=FIRST)
        with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has a total capacity of 1024"):
            torch.empty(2**23, device=SECOND)
        second.denied = frozenset({second.asked + 1})
        machine.denied = frozenset({machine.asked + 2})
        with pytest.raises(torch.OutOfMemoryError, match="GPU 1"):
            ones(FIRST).to(SECOND)
        with pytest.raises(torch.OutOfMemoryError, match="GPU 0"):
            ones(FIRST)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, "cuda:1")
        second.denied = machine.denied = frozenset()


@triton.jit  # type: ignore[untyped-decorator]
def _double(x, count: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, count)
    tl.store(x + places, tl.load(x + places) * 2)


def test_kernels_are_launched_on_the_current_device() -> None:
    x = ones(SECOND)
    with pytest.raises(ValueError, match="cuda:1 in a launch on cuda:0"):
        _double[(1,)](x, 4)
    with torch.cuda.device(x.device):
        _double[(1,)](x, 4)
    assert x.tolist() == [2.0] * 4


def captured(run: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def test_a_graph_is_of_one_device_and_replayed_there() -> None:
    x, out, stream = ones(SECOND), torch.zeros(4, device=SECOND), torch.cuda.Stream(SECOND)
    stream.wait_stream(torch.cuda.current_stream(SECOND))
    graph = captured(lambda: out.copy_(x * 2), stream)
    assert torch.cuda.current_device() == 0
    graph.replay()
    assert out.tolist() == [2.0] * 4  # on the second's stream, for it was not waited for
    elsewhere = ones(FIRST)
    with pytest.raises(SimulatedError, match="launched on cuda:0 while cuda:1 is captured"):
        captured(lambda: elsewhere + 1, stream)
    with pytest.raises(SimulatedError, match="capturing: between devices"):
        captured(lambda: elsewhere.copy_(x), stream)


def test_other_threads_compute_during_a_capture() -> None:
    x, out, found = ones(FIRST), torch.zeros(4, device=FIRST), []

    def other() -> None:
        assert not torch.cuda.is_current_stream_capturing()
        found.append((ones(SECOND) + 1).sum().item())

    def run() -> None:
        assert torch.cuda.is_current_stream_capturing()
        in_threads(other)
        out.copy_(x + 1)

    graph = captured(run, torch.cuda.Stream())
    assert found == [8.0] and out.tolist() == [0.0] * 4
    graph.replay()
    assert out.tolist() == [2.0] * 4 and found == [8.0]


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


@pytest.fixture
def make(models: dict[str, Path]) -> Iterator[Make]:
    engines = Engines(
        models.__getitem__, num_threads=1, kv_cache_memory_bytes=2**18, max_num_seqs=3,
        max_num_batched_tokens=16, max_model_len=64,
    )  # fmt: skip
    yield engines.make
    engines.shutdown()


@pytest.mark.usefixtures("small_workspace")
def test_an_engine_on_the_second_device(make: Make) -> None:
    wanted = tokens_of(make(device="cpu"))
    before = machine.asked
    engine = make(device="cuda:1")
    assert "decode" in engine.model_info.kernels, engine.model_info.notices
    assert tokens_of(engine) == wanted
    assert machine.asked == before  # nothing is taken of the first
