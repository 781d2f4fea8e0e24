"""Several GPUs: what is on which, and which is a thread's current one."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import triton
from triton import language as tl

from tests.gpu.simulated.machine import SimulatedError, machine
from tests.gpu.simulated.several import FIRST, SECOND, in_threads, ones

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="SIMULATE_GPUS=2 makes two of them"
)
torch.set_num_threads(1)


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
