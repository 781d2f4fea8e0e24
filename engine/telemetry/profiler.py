"""Profiles the steps of a running engine: wraps the operations of its model while it runs.

Inside its `with`, the linear layers, norms and embeddings of the model, the attention backend, the
functions between matmuls and the sampler are replaced by wrappers that time them and name them in
the trace of torch's profiler, which does not see compiled code by itself. Outside, nothing is
wrapped. Captured graphs are not replayed meanwhile; steps recorded on the CPU are recorded anew,
with the wrappers' marks among their calls.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from engine.attention.interface import AttentionOptions
from engine.batch.batch import Batch
from engine.errors import InferdeckError
from engine.kernels.cpu.library import heard_by_listeners
from engine.kernels.embedding import PackedEmbedding
from engine.kernels.linear import Linear
from engine.models.layers import attention, norm, packing
from engine.models.layers.experts import QuantizedExperts
from engine.models.layers.norm import FusedRMSNorm
from engine.numerics.experts import is_experts
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import Sampler
from engine.snapshot.profile import DECODE, PREFILL, Operation, StepsProfile
from engine.speculation.speculator import Speculator
from engine.telemetry.operation_work import (
    ACTIVATION,
    ATTENTION,
    DRAFTING,
    EMBEDDING,
    EXPERTS,
    KV_WRITE,
    LINEARS,
    NORM,
    ROTARY,
    SAMPLING,
    Work,
    added_and_normed,
    bytes_per_token,
    experts_work,
    linear_work,
    looked_up,
    moved,
    normed,
    rotated,
    silu,
)

_one_at_a_time = threading.Lock()


class _Sum:
    """Of one operation: calls, seconds, bytes, operations."""

    def __init__(self) -> None:
        self.values = np.zeros(4)


Key = tuple[str, str, str]
"""Kind of step, operation, kernel."""


class StepProfiler:
    """A context manager for the engine's thread. `step` runs and counts a step. Raises
    InferdeckError if another profile runs in this process."""

    def __init__(
        self, runner: ModelRunner, sampler: Sampler, speculator: Speculator | None = None
    ) -> None:
        self._runner, self._sampler, self._speculator = runner, sampler, speculator
        self._undo = ExitStack()
        self._thread = 0
        self._depth = 0
        self._range: Any = None
        self._since = 0.0
        self._batch: Batch | None = None
        self._seen: dict[tuple[int | None, int | None], tuple[int, int]] = {}
        self._step: dict[Key, _Sum] = {}
        self._sums: dict[Key, _Sum] = defaultdict(_Sum)
        self._steps: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        # told to a recording: it makes the same marks when it is replayed
        self._begin = heard_by_listeners(self._begin_now)
        self._end = heard_by_listeners(self._end_now)
        activities = [ProfilerActivity.CPU]
        if runner.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write to stderr
        self._torch = torch.profiler.profile(activities=activities, record_shapes=True)

    # -- around steps -----------------------------------------------------------------------

    def __enter__(self) -> StepProfiler:
        if not _one_at_a_time.acquire(blocking=False):
            raise InferdeckError("Another profile is running.", "Wait until it ends.")
        with ExitStack() as stack:
            stack.callback(_one_at_a_time.release)
            self._thread = threading.get_ident()
            stack.enter_context(self._runner.without_replays())
            self._wrap_model(stack)
            self._wrap_functions(stack)
            self._wrap_attention(stack)
            self._wrap(stack, self._sampler, "launch", self._sampling, SAMPLING)
            if self._speculator is not None:
                for name in ("propose", "follow"):
                    self._wrap(stack, self._speculator, name, lambda *_: ("", Work(0)), DRAFTING)
            stack.enter_context(self._torch)
            self._undo = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def step(self, compute: Callable[[], Any]) -> Any:
        """Run a step and count it, unless it was spent on recording the ones after it."""
        recordings = self._runner.recordings
        num_recorded = 0 if recordings is None else len(recordings)
        self._step, self._batch = defaultdict(_Sum), None
        began = time.perf_counter()
        result = compute()
        seconds = time.perf_counter() - began
        if self._batch is not None and num_recorded == (
            0 if recordings is None else len(recordings)
        ):
            for key, own in self._step.items():
                self._sums[key].values += own.values
            steps = self._steps[self._kind]
            steps[0] += 1
            steps[1] += self._batch.num_tokens
            steps[2] += seconds
        return result

    @property
    def num_steps(self) -> int:
        """Counted so far."""
        return int(sum(steps[0] for steps in self._steps.values()))

    def profiles(self) -> tuple[StepsProfile, ...]:
        """Of each kind of step that was seen; after the `with`."""
        found, on_device = [], self._device_seconds()
        for kind in (PREFILL, DECODE):
            if kind in self._steps:
                num_steps, num_tokens, seconds = self._steps[kind]
                operations = sorted(self._operations(kind, on_device), key=lambda one: -one.seconds)
                counts = int(num_steps), int(num_tokens)
                found.append(StepsProfile(kind, *counts, seconds, tuple(operations)))
        return tuple(found)

    def _operations(self, kind: str, on_device: Mapping[str, float]) -> Iterator[Operation]:
        calls_of: dict[str, float] = defaultdict(float)
        for (own, name, _), one in self._sums.items():
            calls_of[_label(own, name)] += one.values[0]
        for (own, name, kernel), one in self._sums.items():
            if own != kind:
                continue
            calls, seconds, nbytes, count = one.values.tolist()
            label = _label(kind, name)
            if measured := on_device.get(label):  # alike for all calls: it knows no kernels
                seconds = measured * calls / calls_of[label]
            yield Operation(name, kernel, int(calls), seconds, nbytes, count)

    def export_trace(self, file: Path) -> None:
        """Write a Chrome trace (compressed if the name ends in .gz); once, after the `with`."""
        self._torch.export_chrome_trace(str(file))

    def _device_seconds(self) -> dict[str, float]:
        """By label, the time of the kernels launched inside; {} on the CPU, where ours counts, as
        for what launches none."""
        if self._runner.device.type != "cuda":
            return {}
        found: dict[str, float] = defaultdict(float)
        for event in self._torch.events() or ():
            found[event.name] += event.device_time_total / 1e6
        return found

    # -- marks ------------------------------------------------------------------------------

    @property
    def _kind(self) -> str:
        batch = self._batch
        is_prompt = batch is not None and batch.num_tokens > len(batch.logits_indices)
        return PREFILL if is_prompt else DECODE

    def _begin_now(self, name: str, shapes: str) -> None:
        """What an operation calls is part of it: only the outermost counts."""
        self._depth += 1
        if self._depth == 1:
            self._range = _Range(_label(self._kind, name), keyword_values={"shapes": shapes})
            self._range.__enter__()
            self._since = time.perf_counter()

    def _end_now(self, name: str, kernel: str, work: Work | Callable[[], Work]) -> None:
        """work: or what tells it for this step, where its lengths count."""
        self._depth -= 1
        if self._depth == 0:
            seconds = time.perf_counter() - self._since
            self._range.__exit__(None, None, None)
            done = work() if callable(work) else work
            self._step[self._kind, name, kernel].values += (1, seconds, *done)

    def _failed(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._range.__exit__(None, None, None)

    # -- wrapping ---------------------------------------------------------------------------

    def _wrap(
        self,
        stack: ExitStack,
        owner: Any,
        attribute: str,
        work: Callable[..., tuple[str, Work | Callable[[], Work]]],
        name: str,
    ) -> None:
        """Replace owner.attribute until the stack is closed. work(result, *args): kernel and work
        of a call."""
        compute, before = getattr(owner, attribute), vars(owner).get(attribute)
        mine = self._thread

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != mine:
                return compute(*args, **kwargs)
            shapes = ", ".join(str([*one.shape]) for one in args if isinstance(one, Tensor))
            self._begin(name, shapes)
            try:
                result = compute(*args, **kwargs)
            except BaseException:
                self._failed()
                raise
            self._end(name, *work(result, *args))
            return result

        vars(owner)[attribute] = wrapped
        if before is None:
            stack.callback(vars(owner).pop, attribute)
        else:
            stack.callback(vars(owner).__setitem__, attribute, before)

    def _wrap_model(self, stack: ExitStack) -> None:
        experts: list[str] = []
        for path, module in self._runner.model.named_modules():
            own = path.rpartition(".")[2]
            if any(path.startswith(f"{one}.") for one in experts):
                continue
            if isinstance(module, QuantizedExperts) or is_experts(module):
                experts.append(path)
                self._wrap(stack, module, "forward", experts_work(module), EXPERTS)
            elif isinstance(module, Linear):
                name = LINEARS.get(own, own)
                self._wrap(stack, module, "product", linear_work(module), name)
            elif isinstance(module, PackedEmbedding):
                self._wrap(stack, module, "forward", looked_up, EMBEDDING)
            elif isinstance(module, FusedRMSNorm) or any(True for _ in module.children()):
                continue
            elif "Rotary" in (kind := type(module).__name__):
                self._wrap(stack, module, "forward", moved, ROTARY)
            elif "Norm" in kind:
                self._wrap(stack, module, "forward", normed, NORM)
            elif "Embedding" in kind:
                self._wrap(stack, module, "forward", looked_up, EMBEDDING)

    def _wrap_functions(self, stack: ExitStack) -> None:
        """In the modules that use them, for they import them by name."""
        self._wrap(stack, norm, "rms_norm", normed, NORM)
        self._wrap(stack, norm, "add_rms_norm", added_and_normed, NORM)
        self._wrap(stack, attention, "rotate_heads", rotated, ROTARY)
        self._wrap(stack, packing, "silu_and_mul", silu, ACTIVATION)

    def _wrap_attention(self, stack: ExitStack) -> None:
        backend: Any = self._runner.backend
        halves = [backend.host, backend.gpu] if hasattr(backend, "host") else [backend]
        for one in halves:
            self._wrap(stack, one, "write", self._written(one), KV_WRITE)
            self._wrap(stack, one, "attend", self._attended(one), ATTENTION)
            self._listen_to_steps(stack, one)

    def _listen_to_steps(self, stack: ExitStack, backend: Any) -> None:
        begin = backend.begin_step

        def begin_step(batch: Batch) -> None:
            self._batch, self._seen = batch, {}
            begin(batch)

        vars(backend)["begin_step"] = begin_step
        stack.callback(vars(backend).pop, "begin_step")

    # -- work that depends on lengths -------------------------------------------------------

    def _written(self, backend: Any) -> Callable[..., tuple[str, Work]]:
        def work(_: None, layer: int, k: Tensor, v: Tensor) -> tuple[str, Work]:
            stored = len(k) * bytes_per_token(backend.caches[layer], backend.block_size)
            return "", Work(k.nbytes + v.nbytes + stored)

        return work

    def _attended(self, backend: Any) -> Callable[..., tuple[str, Callable[[], Work]]]:
        def work(
            result: Tensor, layer: int, q: Tensor, options: AttentionOptions
        ) -> tuple[str, Callable[[], Work]]:
            token_bytes = bytes_per_token(backend.caches[layer], backend.block_size)
            nbytes, each = q.nbytes + result.nbytes, 2 * q.shape[1] * (q.shape[2] + result.shape[2])
            visible = options.window, options.chunk

            def in_this_step() -> Work:
                keys, pairs = self._visible(*visible)
                return Work(nbytes + keys * token_bytes, pairs * each)

            return "", in_this_step

        return work

    def _visible(self, window: int | None, chunk: int | None) -> tuple[int, int]:
        """Tokens whose keys the step reads, and pairs of a token and one that it attends to."""
        if (window, chunk) not in self._seen:
            keys = pairs = 0
            batch = self._batch
            assert batch is not None
            for request, length in enumerate(batch.seq_lens):
                places = np.arange(length - batch.query_len(request), length)
                if not length or not len(places):
                    continue
                firsts = np.zeros_like(places)
                if window:
                    firsts = np.maximum(0, places - window + 1)
                elif chunk:
                    firsts = places // chunk * chunk
                keys += length - int(firsts[0])
                pairs += int((places - firsts + 1).sum())
            self._seen[window, chunk] = keys, pairs
        return self._seen[window, chunk]

    def _sampling(self, _: object, logits: Tensor, *__: object) -> tuple[str, Work]:
        return "", Work(logits.nbytes)


_Range = torch._C._profiler._RecordFunctionFast
"""`torch.profiler.record_function` without a torch operation, which a recorder would note."""


def _label(kind: str, name: str) -> str:
    return f"{kind}: {name}"
