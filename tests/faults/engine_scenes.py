"""What is going on in the engine when a fault strikes, and what must hold afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

from engine import SamplingParams
from engine import messages as m
from tests.faults.bench import OF_A_REQUEST, Bench, _ends
from tests.faults.fault import Fault


def load(fault: Fault, folder: Path) -> None:
    """Another model is opened: the fault is told, and the previous one serves, or a new Load."""
    other = Path(shutil.copytree(folder, folder.with_name("other")))
    with Bench(folder, fault) as bench:
        fault.arm()
        bench.events.events = []
        settings = fault.point.options or {}
        bench.thread.submit(m.Load(bench.config.replace(model=str(other), **settings)))
        answer = bench.next(m.Loaded, m.LoadFailed, m.EngineCrashed)
        assert fault.hits, "the point was not reached"
        if isinstance(answer, m.LoadFailed):
            fault.check_words(answer.error)
            assert answer.serving == str(folder), f"serving {answer.serving}"
        elif isinstance(answer, m.EngineCrashed):
            assert fault.kind == "exception", f"crashed: {answer.error}"
            fault.check_words(answer.error)
            bench.load()
        bench.serves()


def step(fault: Fault, folder: Path) -> None:
    """Two requests run: they finish as if nothing had been, or resume after the crash."""
    with Bench(folder, fault, **(fault.point.options or {})) as bench:
        bench.events.events = []
        fault.arm()
        bench.ask("a")
        bench.ask("b")
        bench.survived("a", "b")
        assert fault.hits, "the point was not reached"


def add(fault: Fault, folder: Path) -> None:
    """A text comes while a request runs: it fails alone, or the engine restarts."""
    with Bench(folder, fault) as bench:
        bench.events.events = []
        bench.events.pause_s = 0.02
        bench.ask("a")
        bench.begun("a")
        fault.arm()
        bench.thread.submit(m.AddRequest("text", "t7 t8 t9", SamplingParams(max_tokens=1)))
        answer = bench.next(*OF_A_REQUEST, m.EngineCrashed, when=lambda event: _ends(event, "text"))
        bench.events.pause_s = 0.0
        assert fault.hits, "the point was not reached"
        if isinstance(answer, m.RequestFailed):
            fault.check_words(answer.error)
        bench.survived("a")
        bench.thread.submit(m.AddRequest("text-2", "t7 t8 t9", SamplingParams(max_tokens=1)))
        end = bench.end_of("text-2")
        assert isinstance(end, m.OutputEvent) and end.error is None, f"no text after it: {end}"


def encoder(fault: Fault, folder: Path) -> None:
    """The process that encodes is killed between two texts."""
    with Bench(folder, fault) as bench:
        for name in ("one", "two"):
            bench.thread.submit(m.AddRequest(name, "t7 t8 t9", SamplingParams(max_tokens=1)))
            end = bench.end_of(name)
            assert isinstance(end, m.OutputEvent) and end.error is None, f"{name}: {end}"
            if name == "one":
                processes = psutil.Process().children()
                assert processes, "no process encodes"
                for process in processes:
                    process.kill()
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        bench.serves()


def reconfigure(fault: Fault, folder: Path) -> None:
    """Settings change while requests run: they are kept, the previous settings hold, and the
    requests finish; where even the return fails, they resume after the crash."""
    with Bench(folder, fault) as bench:
        before = bench.engines[-1].config
        bench.events.events = []
        bench.events.pause_s = 0.02
        bench.ask("a")
        bench.ask("b")
        bench.begun("a")
        fault.arm()
        bench.thread.submit(m.Reconfigure(fault.point.options))
        answer = bench.next(m.Reconfigured, m.ReconfigureFailed, m.EngineCrashed)
        bench.events.pause_s = 0.0
        assert fault.hits, "the point was not reached"
        if len(fault.point.calls) == 1:
            assert isinstance(answer, m.ReconfigureFailed), f"not undone: {answer}"
        if isinstance(answer, m.ReconfigureFailed):
            fault.check_words(answer.error)
            now = bench.engines[-1].config
            assert answer.config == now == before, f"other settings: {now.differences(before)}"
        bench.survived("a", "b")
        bench.events.events = []
        bench.thread.submit(m.Reconfigure(fault.point.options))
        again = bench.next(m.Reconfigured, m.ReconfigureFailed, m.EngineCrashed)
        assert isinstance(again, m.Reconfigured), f"not changed afterwards: {again}"
        bench.serves()


def unload(fault: Fault, folder: Path) -> None:
    """A model is unloaded while a request runs; the next load serves."""
    with Bench(folder, fault) as bench:
        bench.events.events = []
        bench.events.pause_s = 0.02
        bench.ask("a")
        bench.begun("a")
        fault.arm()
        bench.thread.submit(m.Unload())
        answer = bench.next(m.Unloaded, m.EngineCrashed)
        bench.events.pause_s = 0.0
        assert fault.hits, "the point was not reached"
        if isinstance(answer, m.EngineCrashed):
            fault.check_words(answer.error)
        bench.resumes("a")
        bench.serves()


def shutdown(fault: Fault, folder: Path) -> None:
    """The thread ends all the same: the bench looks."""
    with Bench(folder, fault) as bench:
        bench.ask("a")
        fault.arm()
    assert fault.hits, "the point was not reached"
