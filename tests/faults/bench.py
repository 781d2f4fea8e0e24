"""The engine of a scene: a thread with the control's model, and requests whose tokens are known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from engine import EngineConfig, LLMEngine, SamplingParams
from engine import messages as m
from engine.engine_thread import EngineThread
from tests.engine.thread_events import Recorder
from tests.faults.fault import Fault

PROMPTS = {"a": (11, 12, 13, 14, 15), "b": tuple(range(20, 60)), "c": (7, 8, 9)}
NUM_TOKENS = 12
WAIT_S = 12.0
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
OF_A_REQUEST = (m.OutputEvent, m.RequestFailed)


def make_control(folder: Path) -> None:
    """The model, and what transformers says with it; and the kernels, compiled."""
    from engine.kernels.cpu import check
    from tests.engine import tiny_models

    model = tiny_models.make_model("llama")
    tiny_models.save(model, folder)
    known = {
        name: tiny_models.reference(model, prompt, NUM_TOKENS).token_ids
        for name, prompt in PROMPTS.items()
    }
    (folder / "control.json").write_text(json.dumps(known))
    check.find()  # else the first case would wait for them


class Bench:
    """An engine's thread; in a `with`, ended and looked at afterwards."""

    def __init__(self, folder: Path, fault: Fault, **settings: Any) -> None:
        self.fault = fault
        self.known = json.loads((folder / "control.json").read_text())
        settings = {"kv_cache_memory_bytes": 2**20, **settings}
        self.config = EngineConfig(
            model=str(folder), dtype="float32", num_threads=1, device="cpu", **settings
        )
        self.events = Recorder()
        self.engines: list[LLMEngine] = []
        self.thread = EngineThread(self.events, snapshot_interval_s=0.01, factory=self._make)

    def _make(self, *args: Any) -> LLMEngine:
        self.engines.append(LLMEngine(*args))
        return self.engines[-1]

    def __enter__(self) -> Bench:
        self.thread.start()
        self.load()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        ended = self.thread.stop(WAIT_S)
        if kind is None:
            assert ended, "the engine's thread did not end"
            nothing_left()

    def load(self) -> None:
        self.events.events = []
        self.thread.submit(m.Load(self.config))
        answer = self.next(m.Loaded, m.LoadFailed, m.EngineCrashed)
        assert isinstance(answer, m.Loaded), f"not loaded: {answer}"

    def next(self, *kinds: type, when: Callable[[Any], bool] = lambda event: True) -> Any:
        """The first event of these kinds since the list was emptied."""
        return self.events.wait(
            object, lambda event: isinstance(event, kinds) and when(event), timeout_s=WAIT_S
        )

    # -- requests ---------------------------------------------------------------------------

    def ask(self, name: str, begin_with: tuple[int, ...] = (), suffix: str = "") -> None:
        self.thread.submit(m.AddRequest(name + suffix, PROMPTS[name], GREEDY, begin_with))

    def begun(self, name: str) -> None:
        self.next(m.OutputEvent, when=lambda event: event.request_id == name)

    def tokens(self, name: str) -> list[int]:
        outputs = [e for e in self.events.of(m.OutputEvent) if e.request_id == name]
        return [token for event in outputs for token in event.token_ids]

    def end_of(self, name: str) -> Any:
        """Its last event, or the crash that ended it."""
        kinds = (*OF_A_REQUEST, m.EngineCrashed)
        return self.next(*kinds, when=lambda event: _ends(event, name))

    def finishes(self, name: str) -> None:
        end = self.end_of(name)
        is_output = isinstance(end, m.OutputEvent)
        assert is_output and end.error is None, f"{name} did not finish: {end}"
        assert self.tokens(name) == self.known[name], f"wrong tokens of {name}"

    def serves(self) -> None:
        """A request gives the control's tokens, and the books balance."""
        self.events.events = []
        self.ask("c")
        self.finishes("c")
        deadline = time.monotonic() + WAIT_S
        while self.engines[-1].has_unfinished and time.monotonic() < deadline:
            time.sleep(0.005)
        self.engines[-1].check_integrity()

    def resumes(self, *names: str) -> None:
        """After a crash: the replies go on where they stood, as the control does."""
        said = {name: self.tokens(name) for name in names}
        self.load()
        for name, tokens in said.items():
            known = self.known[name]
            assert tokens == known[: len(tokens)], f"wrong tokens of {name} before the crash"
            if len(tokens) < NUM_TOKENS:
                self.ask(name, tuple(tokens), "-resumed")
                self.next(
                    m.OutputEvent,
                    when=lambda e, name=name: _ends(e, f"{name}-resumed") and e.error is None,
                )
                rest = self.tokens(f"{name}-resumed")
                assert tokens + rest == known, f"wrong tokens of {name} after the crash"

    def survived(self, *names: str) -> None:
        """What ran while the fault struck: finished right, or told of the crash and resumed."""
        ends = [self.end_of(name) for name in names]
        crash = next((end for end in ends if isinstance(end, m.EngineCrashed)), None)
        if crash is not None:
            self.fault.check_words(crash.error)
            self.resumes(*names)
        else:
            for name in names:
                self.finishes(name)
        self.serves()


def _ends(event: Any, name: str) -> bool:
    if isinstance(event, m.EngineCrashed):
        return True
    if event.request_id != name:
        return False
    return isinstance(event, m.RequestFailed) or event.finish_reason is not None


KEPT = ("MainThread", "encoder", "hub", "tqdm_monitor")
"""Threads that serve every model of the program, or the scene itself."""


def nothing_left() -> None:
    """No thread of what ended, and no process that nobody waited for, some seconds later."""
    deadline = time.monotonic() + 5.0
    while True:
        left = [t.name for t in threading.enumerate() if not t.name.startswith(KEPT)]
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.status() == psutil.STATUS_ZOMBIE:
                    left.append(f"zombie {child.pid}")
        if not left:
            return
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.02)
