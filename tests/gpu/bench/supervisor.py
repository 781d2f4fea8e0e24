"""Runs cells in worker processes: one that fails, hangs or dies costs itself alone.

A worker gets the cells of one group. It is killed where a cell, or the loading of a model, takes
longer than its limit, and another one carries on with the next cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from tests.gpu.bench.cell import Cell, Result, result_of
from tests.gpu.bench.store import Store

START_LIMIT_S, LOAD_LIMIT_S, END_LIMIT_S = 120.0, 300.0, 20.0
LEAST_S = 5.0
"""With less time left than this nothing is begun."""
ROOT = Path(__file__).parents[3]
Say = Callable[[str], None]


class Supervisor:
    """deadline: on `clock`; what is not finished then is left for the next run."""

    def __init__(
        self, store: Store, device: str, *, quick: bool, deadline: float, commit: str = "",
        say: Say = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._store = store
        self._device, self._quick = device, quick
        self._deadline, self._commit, self._say = deadline, commit, say
        self._clock = clock

    @property
    def time_left(self) -> float:
        return self._deadline - self._clock()

    def run(self, cells: Sequence[Cell]) -> int:
        """Run the cells that are not finished yet; how many of them are left when time is up."""
        todo = [cell for cell in cells if not self._store.is_finished(cell.name)]
        left = len(todo)
        for _, group in groupby(todo, key=lambda cell: cell.group or cell.name):
            waiting = list(group)
            while waiting and self.time_left > LEAST_S:
                done = self._run_worker(waiting)
                left -= done
                waiting = waiting[done:]
        return left

    def _run_worker(self, cells: list[Cell]) -> int:
        """Run cells in one worker until they are through, it ends or time is up; how many have a
        result."""
        with _Worker(self._device, self._quick, cells, self._store.folder / "log.txt") as worker:
            done = 0
            while done < len(cells):
                outcome = self._follow(worker, cells[done])
                if outcome is None:
                    return done
                self._store.add(outcome)
                done += 1
                self._say(_line(outcome))
                if worker.is_lost:
                    if worker.is_preparing:
                        done += self._give_up(cells[done:], outcome.error)
                    return done
            worker.wait()
            return done

    def _give_up(self, cells: list[Cell], why: str) -> int:
        """No other cell of a group is tried whose model never gets loaded."""
        for cell in cells:
            self._store.add(result_of(cell, {}, error=f"not tried: {why}", commit=self._commit))
        if cells:
            self._say(f"  {len(cells)} more of this group are not tried")
        return len(cells)

    def _follow(self, worker: _Worker, cell: Cell) -> Result | None:
        """The result of `cell`, which the worker is about to begin; None when time is up."""
        began = time.monotonic()
        limit, doing = START_LIMIT_S, "starting"
        while True:
            patience = min(limit, self.time_left)
            message = worker.next_message(patience)
            match message:
                case {"event": "begin"}:
                    began, limit, doing = time.monotonic(), cell.limit_s, "measuring"
                    worker.is_preparing = False
                case {"event": "loading"}:
                    limit, doing = LOAD_LIMIT_S, "loading its model"
                    worker.is_preparing = True
                case {"event": "loaded"}:
                    limit, doing = cell.limit_s, "measuring"
                    worker.is_preparing = False
                case {
                    "event": "end",
                    "figures": figures,
                    "error": error,
                    "seconds": seconds,
                    "answers": answers,
                }:
                    worker.is_preparing = False
                    worker.is_lost = not answers
                    return self._result(cell, figures, error, seconds)
                case None if self.time_left <= 0:
                    self._say(f"  time is up; {cell.name} is left for the next run")
                    worker.kill()
                    return None
                case None:
                    error = f"the process ended with {worker.exit_status} while {doing}"
                    if worker.is_running:
                        error = f"hung: no result after {limit:.0f} s of {doing}"
                    worker.kill()
                    return self._result(cell, {}, error, time.monotonic() - began)

    def _result(self, cell: Cell, figures: Mapping[str, Any], error: str, seconds: float) -> Result:
        return result_of(cell, figures, error=error, seconds=seconds, commit=self._commit)


class _Worker:
    """A worker process with its messages; killed with all that it started when left.

    is_preparing: it starts, or loads what all cells of the group need. is_lost: it runs no other
    cell.
    """

    def __init__(self, device: str, quick: bool, cells: Sequence[Cell], log: Path) -> None:
        self.is_preparing, self.is_lost = True, False
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._log = log.open("a", encoding="utf-8")
        # with its own process group, not its own session: what cleans up after us still finds it
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.gpu.bench.worker"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            process_group=0,
        )  # fmt: skip
        order = {
            "device": device,
            "quick": quick,
            "cells": [
                {"name": c.name, "kind": c.kind, "settings": dict(c.settings)} for c in cells
            ],
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it is gone already: its exit status tells
            pass
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self._reader.join()
        self._log.close()

    def wait(self) -> None:
        """Let it tidy up, after its last cell."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def next_message(self, patience: float) -> dict[str, Any] | None:
        """None after `patience` seconds, or when the process has ended."""
        try:
            message = self._messages.get(timeout=max(0.0, patience))
        except queue.Empty:
            return None
        if message is None:
            self._process.wait(timeout=10)
        return message

    def kill(self) -> None:
        self.is_lost = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            try:
                message = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(message, dict):
                self._messages.put(message)
        self._messages.put(None)


def _line(result: Result) -> str:
    end = f"FAILED {result.error}" if result.error else ""
    return f"{result.name:56} {result.seconds:7.1f} s  {end}"[:400].rstrip()
