"""A scripted stand-in for the engine's thread: same commands, same events, no model.

Every running request gets one word per step. Prompts and settings named below make it fail, so
that tests reach every message of the contract.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ConfigError, ErrorInfo
from engine.hardware.device_map import host_layers_of
from engine.hardware.machine import machine_name
from engine.hardware.peaks import Peaks
from engine.sampling_params import SamplingParams
from engine.snapshot import (
    BLOCK_FREE,
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    FinishReason,
    LastBlocks,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    StepEntry,
    StepRecord,
    ThreadFigures,
    ThreadsOf,
    TokenEvent,
)

WORDS = "paging keeps the cache in blocks so that no request has to reserve its longest length"
GIB = 2**30


@dataclass
class Script:
    """What the fake does. `replies`: words per reply; `step_s`: seconds of one step;
    `reconfigure_s`: of applying settings. `host_layers`: so many of 8 are on the CPU beside a GPU;
    None: no GPU."""

    step_s: float = 0.002
    replies: int = 24
    load_steps: int = 4
    load_step_s: float = 0.002
    reconfigure_s: float = 0.0
    broken_models: tuple[str, ...] = ()
    failing_settings: tuple[str, ...] = ()
    rejected_prompt: str = "reject me"
    crashing_prompt: str = "crash please"
    has_notice: str = ""
    host_layers: int | None = None
    peaks: Peaks | None = None  # the answer to MeasurePeaks; None: no answer


@dataclass
class _Running:
    id: str
    params: SamplingParams
    num_prompt_tokens: int
    arrival: float
    tokens: list[TokenEvent] = field(default_factory=list)

    @property
    def times(self) -> RequestTimes:
        return RequestTimes(self.arrival, self.arrival, tuple(self.tokens))


class FakeEngineThread(threading.Thread):
    """Speaks engine.messages like EngineThread."""

    def __init__(self, on_event: Callable[[m.Event], None], script: Script | None = None) -> None:
        super().__init__(name="engine", daemon=True)
        self.script = script or Script()
        self.on_event = on_event
        self.commands: list[m.Command] = []
        self._queue: queue.SimpleQueue[m.Command] = queue.SimpleQueue()
        self._cancel = threading.Event()
        self._ending = threading.Event()
        self._config: EngineConfig | None = None
        self._running: dict[str, _Running] = {}
        self._step = 0
        self._news: tuple[list[StepRecord], list[Sample], list[Sample]] = ([], [], [])
        self._published = 0.0
        self._generated = 0

    # What the bridge calls ---------------------------------------------------------------------

    def submit(self, command: m.Command) -> None:
        if isinstance(command, m.Load):
            self._cancel.clear()  # here, as the engine: what is cancelled next is this load
        self.commands.append(command)
        self._queue.put(command)

    def cancel_load(self) -> None:
        self._cancel.set()

    def stop(self, timeout_s: float = 5.0) -> bool:
        self._cancel.set()
        self._ending.set()
        self.submit(m.Stop())
        self.join(timeout_s)
        return not self.is_alive()

    # The thread --------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            command = self._next_command()
            if isinstance(command, m.Stop):
                self._abort_all()
                return
            if command is not None:
                self._obey(command)
            if self._running:
                self._ending.wait(self.script.step_s)  # however long: the end does not wait for it
                self._do_step()

    def _next_command(self) -> m.Command | None:
        try:
            return self._queue.get(block=not self._running)
        except queue.Empty:
            return None

    def _obey(self, command: m.Command) -> None:
        match command:
            case m.Load(config):
                self._load(config)
            case m.Unload():
                self._abort_all()
                self._config = None
                self.on_event(m.Unloaded())
            case m.AddRequest():
                self._add(command)
            case m.Abort(request_id):
                if request_id in self._running:
                    self._finish(self._running[request_id], FinishReason.ABORT)
                    if not self._running:  # as the engine: no step will show that it is idle
                        self._publish()
            case m.Reconfigure(changes):
                time.sleep(self.script.reconfigure_s)
                self._reconfigure(dict(changes))
            case m.MeasurePeaks() if self.script.peaks is not None:
                self.on_event(m.PeaksMeasured(self.script.peaks))

    def _load(self, config: EngineConfig) -> None:
        total = 16 * 2**20
        for step in range(1, self.script.load_steps + 1):
            time.sleep(self.script.load_step_s)
            if self._cancel.is_set():
                error = ErrorInfo("Loading was cancelled.", "", "LoadCancelled")
                self.on_event(m.LoadFailed(error, cancelled=True))
                return
            self.on_event(m.LoadProgress("reading weights", total * step // 4, total))
        if any(name in config.model for name in self.script.broken_models):
            error = ErrorInfo(
                f"{config.model}: model.safetensors ends after 12 of 4,096 bytes.",
                "Download the file again.",
                "CheckpointError",
            )
            self.on_event(m.LoadFailed(error))
            return
        self._config = config.replace(
            device=self._device,
            dtype="float32" if config.dtype == "auto" else config.dtype,
            max_model_len=config.max_model_len or 2048,
            num_threads=config.num_threads or 2,
            max_num_batched_tokens=config.max_num_batched_tokens or 512,
        )
        self.on_event(m.Loaded(self._config, self._model(), self._plan()))
        self._publish()

    def _add(self, command: m.AddRequest) -> None:
        text = str(command.prompt)
        if self.script.crashing_prompt in text:
            self._running.clear()
            self._config = None
            error = ErrorInfo("RuntimeError: the script says so", "Restart the engine.", "X")
            self.on_event(m.EngineCrashed(error, "Traceback: the script"))
        elif self.script.rejected_prompt in text or self._config is None:
            error = ErrorInfo(
                "The prompt has 9,000 tokens; the context is 2,048.", "Shorten it.", "X"
            )
            self.on_event(m.RequestFailed(command.request_id, error))
        else:
            self._running[command.request_id] = _Running(
                command.request_id, command.params, len(text.split()), time.perf_counter()
            )

    def _reconfigure(self, changes: dict[str, object]) -> None:
        assert self._config is not None
        failing = [name for name in changes if name in self.script.failing_settings]
        try:
            if failing:
                raise ConfigError(f"{failing[0]}: not enough memory: 9 GiB of 3 GiB.", "Take less.")
            new = self._config.replace(**changes)
        except ConfigError as error:
            self.on_event(m.ReconfigureFailed(self._config, error.info()))
            return
        change = new.change_class(self._config)
        self._config = new
        if self._device != "cpu" and "gpu_layers" in changes:
            layers = host_layers_of(self._device, new.gpu_layers, 8)
            self.script.host_layers = 2 if layers is None else layers
            plan, model = self._plan(), self._model()
            self.on_event(m.Reconfigured(new, change, 0.01, model=model, plan=plan))
        else:
            self.on_event(m.Reconfigured(new, change, 0.01))
        self._publish()

    def _do_step(self) -> None:
        assert self._config is not None
        now = time.perf_counter()
        self._step += 1
        batch = list(self._running.values())[: self._config.max_num_seqs]
        entries = [self._token(request, now) for request in batch]
        steps, _, _ = self._news
        running = len(self._running)
        steps.append(StepRecord(self._step, now - 0.002, 0.002, tuple(entries), running, 0))
        if now - self._published > 0.05 or not self._running:
            self._publish()

    def _token(self, request: _Running, now: float) -> StepEntry:
        _, ttft, itl = self._news
        first = not request.tokens
        if first:
            ttft.append(Sample(now, now - request.arrival))
        else:
            itl.append(Sample(now, now - request.tokens[-1].time))
        request.tokens.append(TokenEvent(now, 1))
        self._generated += 1
        count = len(request.tokens)
        length = min(request.params.max_tokens or self.script.replies, self.script.replies)
        done = count >= length
        self._say(request, word(count - 1), first, done)
        if first:
            return StepEntry(
                request.id, "prefill", request.num_prompt_tokens,
                num_context=request.num_prompt_tokens, num_logits=1,
            )  # fmt: skip
        return StepEntry(request.id, "decode", 1, num_context=8 + count, num_logits=1)

    def _say(self, request: _Running, text: str, first: bool, done: bool) -> None:
        self.on_event(
            m.OutputEvent(
                request.id, text, (len(request.tokens),), request.tokens[-1].time, self._step,
                request.num_prompt_tokens, 0, is_first=first,
                finish_reason=FinishReason.STOP if done else None,
                times=self._ended(request) if done else None,
                blocks=self._last_blocks(request) if done else None,
            )
        )  # fmt: skip
        if done:
            del self._running[request.id]

    def _finish(self, request: _Running, reason: FinishReason) -> None:
        del self._running[request.id]
        self.on_event(
            m.OutputEvent(
                request.id, "", (), time.perf_counter(), self._step, request.num_prompt_tokens, 0,
                finish_reason=reason, times=self._ended(request),
                blocks=self._last_blocks(request),
            )
        )  # fmt: skip

    def _last_blocks(self, request: _Running) -> LastBlocks | None:
        assert self._config is not None
        if not request.tokens:
            return None
        size, num_tokens = self._config.block_size, request.num_prompt_tokens + len(request.tokens)
        return LastBlocks(size, num_tokens - 1, (1,) * -(-(num_tokens - 1) // size))

    def _ended(self, request: _Running) -> RequestTimes:
        now = time.perf_counter()
        return RequestTimes(request.arrival, request.arrival, tuple(request.tokens), now)

    def _abort_all(self) -> None:
        for request in list(self._running.values()):
            self._finish(request, FinishReason.ABORT)

    # Snapshots ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        self._published = time.perf_counter()
        steps, ttft, itl = self._news
        self._news = ([], [], [])
        assert self._config is not None
        self.on_event(
            m.SnapshotEvent(
                EngineSnapshot(
                    self._published, self._step, self._config, self._model(), self._requests(),
                    self._blocks(), self._memory(),
                    Counters(
                        prompt_tokens=10 * self._step, generation_tokens=self._generated,
                        prefix_queries=100, prefix_hits=40,
                    ),
                    tuple(steps), tuple(ttft), tuple(itl),
                    threads=ThreadFigures(4, 1, 4, 0.1, (ThreadsOf(1, 1, 1),)),
                )
            )
        )  # fmt: skip

    def _requests(self) -> tuple[RequestSnapshot, ...]:
        return tuple(
            RequestSnapshot(
                r.id, RequestState.RUNNING, r.num_prompt_tokens, 0,
                r.num_prompt_tokens + len(r.tokens), len(r.tokens), 2, 0, r.times,
            )
            for r in self._running.values()
        )  # fmt: skip

    def _blocks(self) -> BlockSnapshot:
        assert self._config is not None
        size, num_blocks = self._config.block_size, 128
        owner = np.full(num_blocks, BLOCK_FREE, np.int32)
        fill = np.zeros(num_blocks, np.int32)
        for number in range(min(len(self._running), num_blocks // 2)):
            owner[2 * number : 2 * number + 2] = number
            fill[2 * number], fill[2 * number + 1] = size, max(1, size // 2)
        held = (owner >= 0).astype(np.int32)
        owners = tuple(self._running)
        tables = tuple((2 * number, 2 * number + 1) for number in range(len(owners)))
        hashed = np.zeros(num_blocks, np.bool_)
        return BlockSnapshot(size, owners, owner, held, fill, hashed, tables)

    def _model(self) -> ModelInfo:
        assert self._config is not None
        notices = (self.script.has_notice,) if self.script.has_notice else ()
        return ModelInfo(
            name=self._config.model.rstrip("/").rsplit("/", 1)[-1], path=self._config.model,
            architecture="LlamaForCausalLM", dtype=self._config.dtype, device=self._device,
            num_parameters=6_300_000, weights_bytes=25_200_000, num_layers=8, hidden_size=256,
            num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=4096, max_model_len=2048,
            is_dummy=self._config.load_format == "dummy", has_chat_template=True, notices=notices,
            output_bytes=4_200_000, device_name=machine_name(),
        )  # fmt: skip

    @property
    def _device(self) -> str:
        return "cpu" if self.script.host_layers is None else "cuda:0"

    def _plan(self) -> MemoryPlan:
        whole = MemoryPlan(
            16 * GIB, 8 * GIB, GIB, 7 * GIB, 25_200_000, 2**24, 2**26, 2**19, 128,
            key_dtype="float32", value_dtype="float32",
        )  # fmt: skip
        if not self.script.host_layers:
            return whole
        in_ram = self.script.host_layers
        return dataclasses.replace(
            whole, weights=25_200_000 - in_ram * 2**21, host_weights=in_ram * 2**21,
            bytes_per_block=(8 - in_ram) * 2**16, host_bytes_per_block=in_ram * 2**16,
            host_layers=in_ram, host_free=32 * GIB, host_limit=30 * GIB,
            host_activations=2**22, undivided_model_len=1024,
        ).with_blocks(128)  # fmt: skip

    def _memory(self) -> MemorySnapshot:
        plan = self._plan()
        return MemorySnapshot(
            plan, plan.weights, plan.kv_cache, 2**22 * len(self._running), 0, 2**28, 2**29,
            8 * GIB, 16 * GIB, host_weights=plan.host_weights, host_kv_cache=plan.host_kv_cache,
        )  # fmt: skip


def word(index: int) -> str:
    """Of every reply, with the space behind it."""
    words = WORDS.split()
    return words[index % len(words)] + " "


def words_of(count: int) -> str:
    """A whole reply of so many."""
    return "".join(map(word, range(count)))


def snapshot_at_rest(model: str, script: Script | None = None) -> EngineSnapshot:
    """Of an engine that has loaded a model and does nothing."""
    snapshots: queue.SimpleQueue[EngineSnapshot] = queue.SimpleQueue()

    def hear(event: m.Event) -> None:
        if isinstance(event, m.SnapshotEvent):
            snapshots.put(event.snapshot)

    thread = FakeEngineThread(hear, script)
    thread.start()
    thread.submit(m.Load(EngineConfig(model=model)))
    found = snapshots.get(timeout=30)
    assert thread.stop() and snapshots.empty()
    return found
