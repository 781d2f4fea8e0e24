"""Ranks hand each other their parts; one that fails lets nobody wait."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from engine.kernels.cpu.check import library
from engine.parallel.exchange import PeerFailedError
from engine.parallel.team import Team


@pytest.fixture(
    params=[(size, compiled) for size in (2, 3, 4) for compiled in (False, True)],
    ids=lambda param: f"{param[0]}-{'compiled' if param[1] else 'by-the-system'}",
)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    size, is_compiled = request.param
    native = library() if is_compiled else None
    if is_compiled and native is None:
        pytest.skip("nothing can be compiled on this machine")
    made = Team(("cpu",) * size, 4, native)
    yield made
    made.close()


def test_every_rank_has_the_same_sums_in_the_order_of_the_ranks(team: Team) -> None:
    generator = torch.Generator().manual_seed(0)
    rounds = [
        [torch.randn(5, 3, generator=generator) for _ in range(team.size)] for _ in range(20)
    ]
    pauses = random.Random(1)

    def work(rank: int) -> list[torch.Tensor]:
        found = []
        for parts in rounds:
            time.sleep(pauses.random() * 1e-3)
            found.append(team.exchange.sum(rank, parts[rank]))
        return found

    results = team.together(work)
    for index, parts in enumerate(rounds):
        expected = parts[0] + parts[1]
        for part in parts[2:]:
            expected = expected + part
        assert all(torch.equal(result[index], expected) for result in results)
    assert all(seconds > 0 for seconds in team.exchange.waited)


def test_a_rank_that_fails_wakes_the_others_and_the_next_step_is_right(team: Team) -> None:
    def work(rank: int) -> torch.Tensor:
        total = team.exchange.sum(rank, torch.ones(1))
        if rank == team.size - 1:
            raise MemoryError("no room on the last rank")
        return team.exchange.sum(rank, total)

    with pytest.raises(MemoryError, match="last rank"):
        team.together(work)
    found = team.together(lambda rank: team.exchange.sum(rank, torch.ones(1) * rank))
    assert [float(total) for total in found] == [sum(range(team.size))] * team.size


def test_whoever_waits_for_a_failed_rank_is_told(team: Team) -> None:
    said: list[str] = []

    def work(rank: int) -> None:
        if rank == 0:
            raise ValueError("at once")
        for _ in range(2):
            try:
                team.exchange.sum(rank, torch.ones(1))
            except PeerFailedError as error:
                said.append(error.cause)
        team.exchange.fail(rank)

    with pytest.raises(ValueError, match="at once"):
        team.together(work)
    assert len(said) == 2 * (team.size - 1)


def test_threads_are_divided_and_end(team: Team) -> None:
    team.set_threads(8)
    assert team.together(lambda rank: torch.get_num_threads()) == [8 // team.size] * team.size
    team.set_threads(1)
    assert team.together(lambda rank: torch.get_num_threads()) == [1] * team.size
    assert team.call(0, torch.get_num_threads, num_threads=3) == 3
    names = {thread.name for thread in threading.enumerate()}
    assert {f"rank-{rank}_0" for rank in range(team.size)} <= names
    team.close()
    assert not any(thread.name.startswith("rank-") for thread in threading.enumerate())


def test_threads_end_with_a_team_that_nobody_closes() -> None:
    made = Team(("cpu", "cpu"), 2)
    made.together(lambda rank: rank)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("rank-")]
    assert len(threads) == 2
    del made
    gc.collect()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
