"""That the simulated device refuses what a GPU would refuse, or get wrong without a word."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.gpu.simulated.machine import SimulatedError, machine

DEVICE = torch.device("cuda:0")


def ones(count: int = 4) -> torch.Tensor:
    return torch.ones(count, device=DEVICE)


def captured(run: object, pool: object = None) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()  # type: ignore[operator]
    return graph


def test_it_computes() -> None:
    assert (ones() + ones().cumsum(0)).tolist() == [2, 3, 4, 5]
    assert ones().device == DEVICE and ones().is_cuda and ones().view(2, 2)[1:].is_cuda
    assert torch.arange(3, device=DEVICE).tolist() == [0, 1, 2]
    assert torch.tensor([1.5], device=DEVICE).cpu().item() == 1.5


def test_devices_are_not_mixed() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        ones() + torch.ones(4)
    assert (ones() * torch.tensor(3.0)).tolist() == [3.0] * 4  # one number is an argument
    with pytest.raises(RuntimeError, match="numpy"):
        ones().numpy()


def test_what_is_copied_to_the_host_is_not_there_before_it_is_waited_for() -> None:
    host = torch.zeros(4, pin_memory=True)
    host.copy_(ones(), non_blocking=True)
    assert host.isnan().all()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert host.tolist() == [1.0] * 4


def test_an_event_waits_for_what_was_launched_before_it_alone() -> None:
    event = torch.cuda.Event()
    event.record()
    host = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    host.copy_(torch.arange(4, device=DEVICE), non_blocking=True)
    event.synchronize()
    assert host[1] != 1
    torch.cuda.synchronize()
    assert host[1] == 1


def test_a_host_buffer_is_not_filled_again_before_it_was_copied() -> None:
    host = torch.zeros(4, pin_memory=True)
    there = torch.empty(4, device=DEVICE)
    there.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    there.copy_(host, non_blocking=True)
    host[2] = 7
    with pytest.raises(SimulatedError, match="filled again"):
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(),
        lambda t: t.tolist(),
        lambda t: t.nonzero(),
        lambda t: t[t > 0],
        lambda t: t[torch.tensor([1, 2])],
        lambda t: t.cpu(),
        lambda t: t.__setitem__(torch.arange(2, device=DEVICE), 3.0),  # the number is copied
        lambda t: torch.ones(4).to(DEVICE),
        lambda t: bool((t > 0).all()),
    ],
)
def test_waiting_inside_an_operation_is_counted_and_can_be_forbidden(wait: object) -> None:
    there, before = ones(), machine.waits
    wait(there)  # type: ignore[operator]
    assert machine.waits > before
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            wait(there)  # type: ignore[operator]
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_does_not_wait_is_not_counted() -> None:
    there, before = ones(), machine.waits
    index = torch.tensor([1, 2]).pin_memory().to(DEVICE, non_blocking=True)
    there.index_fill_(0, index, 3.0)
    there[0] = 5.0
    found = there.index_select(0, index).sum() + there.argmax()
    assert machine.waits == before
    assert found.item() == 6


def test_a_graph_computes_when_it_is_replayed() -> None:
    x, out = ones(), torch.zeros(4, device=DEVICE)
    graph = captured(lambda: out.copy_(x * 2 + 1))
    assert out.tolist() == [0.0] * 4
    graph.replay()
    assert out.tolist() == [3.0] * 4
    x.fill_(5)
    graph.replay()
    assert out.tolist() == [11.0] * 4
    graph.reset()
    with pytest.raises(SimulatedError, match="given back"):
        graph.replay()


def test_nothing_waits_inside_a_capture() -> None:
    x = ones()
    for wait in (lambda: x.sum().item(), torch.cuda.synchronize, lambda: x.cpu()):
        with pytest.raises(SimulatedError, match="capturing"):
            captured(wait)
    assert not torch.cuda.is_current_stream_capturing()


def test_memory_that_a_graph_reads_has_to_stay() -> None:
    out = torch.zeros(4, device=DEVICE)
    held = [ones()]
    graph = captured(lambda: out.copy_(held[0]))
    graph.replay()
    held.clear()
    gc.collect()
    with pytest.raises(SimulatedError, match="memory given back"):
        graph.replay()


def test_graphs_of_one_pool_spoil_each_others_results() -> None:
    pool = torch.cuda.graph_pool_handle()
    x, results = ones(), []
    graphs = [captured(lambda: results.append(x + 1), pool) for _ in range(2)]
    graphs[0].replay()
    assert results[0].tolist() == [2.0] * 4
    graphs[1].replay()
    assert results[0].isnan().all() and results[1].tolist() == [2.0] * 4


def test_streams_wait_for_each_other_or_race() -> None:
    x, other = ones(), torch.cuda.Stream()
    with torch.cuda.stream(other), pytest.raises(SimulatedError, match="may not see"):
        x + 1
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = x + 1
    with pytest.raises(SimulatedError, match="may not see"):
        y + 1
    with pytest.raises(SimulatedError, match="may still read"):
        x.zero_()
    torch.cuda.current_stream().wait_stream(other)
    assert (y + x.zero_()).tolist() == [2.0] * 4


def test_memory_is_counted_and_runs_out() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    held = torch.empty(2**20, device=DEVICE)
    view = held[1:]
    del held
    assert torch.cuda.memory_allocated() == before + 2**22
    assert torch.cuda.mem_get_info()[0] == machine.free
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(2**30, device=DEVICE)
    del view
    assert torch.cuda.memory_allocated() == before


def test_products_of_integers_have_the_shapes_that_cuda_takes() -> None:
    rows = torch.ones(16, 32, dtype=torch.int8, device=DEVICE)
    with pytest.raises(RuntimeError, match="greater than 16"):
        torch._int_mm(rows, rows.t())
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.mm(rows.long(), rows.long().t())
