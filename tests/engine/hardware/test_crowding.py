"""Cores that other programs use, and other work of this one."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from engine.hardware.idle_cores import (
    INTERVAL_S,
    FreeCores,
    Used,
    keeping_busy,
    others_running,
)
from tests.engine.hardware.machine import Machine


def test_others_are_what_is_used_less_our_own() -> None:
    machine = Machine()
    free = FreeCores(1, machine.clock, read=machine.read)
    assert free.others(machine.now) is None
    machine.pass_(0.2, others=1.5, own=1.9)
    assert free.others(machine.now) == pytest.approx(1.5)
    machine.pass_(INTERVAL_S, others=0.0)
    assert free.others(machine.now) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "others"),
    [("0.1 0.2 0.3 4/512 77", 3), ("0.1 0.2 0.3 0/512 77", 0), ("0.1", None), ("a b c d e", None)],
)
def test_threads_that_run_now_are_counted_without_this_one(
    text: str, others: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "loadavg"
    assert others_running(file) is None, "another system"
    file.write_text(text, "ascii")
    assert others_running(file) == others


def test_it_looks_rarely_and_soon_again_after_a_pause() -> None:
    machine = Machine()
    free = FreeCores(1, machine.clock, read=machine.read)
    for _ in range(1000):
        machine.pass_(0.01, others=0.0)
        free.others(machine.now)
    assert machine.looks <= 2 + 10 / INTERVAL_S
    machine.pass_(60, others=0.5)  # nothing was computed
    assert free.others(machine.now) == pytest.approx(0.5, abs=0.01)
    machine.pass_(0.15, others=2.0)
    assert free.others(machine.now) == pytest.approx(2.0)


def test_where_the_system_tells_nothing_nothing_is_said() -> None:
    def refused() -> Used:
        raise psutil.AccessDenied

    free = FreeCores(1, lambda: 0.0, read=refused)
    assert free.others(10.0) is None and free.others(20.0) is None


def test_accounts_that_were_told_and_end_are_forgotten() -> None:
    machine = Machine()
    told = iter([Used(1.0, 0.0), Used(3.0, 0.0)])

    def read() -> Used:
        try:
            return next(told)
        except StopIteration:
            raise OSError("gone") from None

    free = FreeCores(1, machine.clock, read=read)
    assert free.others(101.0) == pytest.approx(2.0)
    assert free.others(110.0) is None and free.latest_others is None


def test_other_work_of_this_program_counts_for_engines_of_other_threads() -> None:
    machine = Machine()
    free = FreeCores(1, machine.clock, read=machine.read)
    assert free.others(machine.now) is None
    machine.pass_(0.2, others=0.25)
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        with keeping_busy(3):
            begun.set()
            done.wait(30)

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(30)
    assert free.others(machine.now) == pytest.approx(3.25)
    assert free.latest_others == pytest.approx(3.25)
    done.set()
    worker.join()
    assert free.others(machine.now) == pytest.approx(0.25)
    with keeping_busy(2):
        assert free.others(machine.now) == pytest.approx(0.25), "an engine's own work"


def test_the_machine_s_own_accounts_count_this_process() -> None:
    read = FreeCores(1)._read
    before = read()
    while read().own - before.own < 0.2:
        sum(range(10_000))
    after = read()
    assert after.all - before.all >= 0.1, "ticks are of 10 ms"
