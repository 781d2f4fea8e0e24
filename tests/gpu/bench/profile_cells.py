"""Where the time of a step goes on the device: the kernels, and the gaps between them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engine import LLMEngine, SamplingParams
from tests.gpu.bench.bench import Bench, UnableError
from tests.gpu.bench.serving import random_prompts
from tests.gpu.bench.timing import synchronize
from tests.gpu.bench.wave_cells import BLOCK, settings_of, warm_up

_TOP, _LONGEST_NAME, _LONGEST_LIST = 25, 90, 600


class Span(NamedTuple):
    """A kernel or a copy on the device, in microseconds."""

    name: str
    begin: float
    end: float


def measure(
    bench: Bench, *, shape: str, precision: str, kv: str, concurrency: int, num_input: int,
    num_steps: int, most: int, budget: int, num_output: int, what: str,
) -> dict[str, Any]:  # fmt: skip
    """`what`: "decode": `num_steps` steps in which `concurrency` requests decode; "prefill": the
    steps of their prompts. The engine is the one of the waves, made for their num_output."""
    context = (-(-(num_input + num_output) // BLOCK) + 1) * BLOCK
    engine = bench.engine(shape, kv, **settings_of(precision, most, context, budget))
    warm_up(engine, concurrency, num_input)
    vocab = engine.model_info.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 8, ignore_eos=True)
    for prompt in random_prompts(concurrency, num_input, vocab, ("profile", what, time.time())):
        engine.add_request(prompt, params)
    if what == "decode":
        _run_until_all_decode(engine)
    activities = [ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    synchronize(bench.device)
    with profile(activities=activities) as profiler:
        began, steps = time.perf_counter(), 0
        while steps < num_steps if what == "decode" else _has_prompts(engine):
            engine.step()
            steps += 1
        synchronize(bench.device)
        wall_s = time.perf_counter() - began
    figures = {"num_steps": steps, "wall_ms_per_step": wall_s / max(1, steps) * 1000}
    events = list(profiler.events())
    on_device = [_span(e) for e in events if e.device_type == DeviceType.CUDA]
    bench.settle()  # what is left of the requests
    if on_device:
        return {**figures, **on_the_device(on_device, steps), "host": _host(events, steps)}
    return {**figures, "host": _host(events, steps)}


def _has_prompts(engine: LLMEngine) -> bool:
    return any(not request.num_output_tokens for request in engine.snapshot().requests)


def _run_until_all_decode(engine: LLMEngine) -> None:
    while _has_prompts(engine):
        engine.step()
    for _ in range(2):
        engine.step()
    if not engine.has_unfinished:
        raise UnableError("Every request had ended before the steps to look at.")


def _span(event: Any) -> Span:
    return Span(event.name, event.time_range.start, event.time_range.end)


def on_the_device(spans: Iterable[Span], num_steps: int) -> dict[str, Any]:
    """Kernels by time, and how much of the time from the first to the last none ran."""
    ordered = sorted(spans, key=lambda span: span.begin)
    first, last = ordered[0].begin, max(span.end for span in ordered)
    gaps = _gaps(ordered)
    kernels: dict[str, list[float]] = defaultdict(list)
    for span in ordered:
        kernels[span.name[:_LONGEST_NAME]].append(span.end - span.begin)
    busy = (last - first) - sum(gaps)
    top = sorted(kernels.items(), key=lambda item: -sum(item[1]))
    return {
        "device_ms_per_step": (last - first) / num_steps / 1000,
        "busy_share": busy / (last - first) if last > first else 1.0,
        "kernels_per_step": len(ordered) / num_steps,
        "gap_us": {"mean": sum(gaps) / len(gaps) if gaps else 0.0, "max": max(gaps, default=0.0)},
        "longest_gaps_us": sorted(gaps, reverse=True)[:10],
        "top": [
            {
                "name": name, "per_step": len(times) / num_steps,
                "us_each": sum(times) / len(times), "us_per_step": sum(times) / num_steps,
                "share_of_busy": sum(times) / busy if busy else 0.0,
            }
            for name, times in top[:_TOP]
        ],
        "one_step": _middle(ordered, num_steps),
    }  # fmt: skip


def _gaps(ordered: Sequence[Span]) -> list[float]:
    """Microseconds in which nothing ran, between spans in order of their beginnings."""
    gaps, end = [], ordered[0].end
    for span in ordered[1:]:
        if span.begin > end:
            gaps.append(span.begin - end)
        end = max(end, span.end)
    return gaps


def _middle(ordered: Sequence[Span], num_steps: int) -> list[list[Any]]:
    """About one step from the middle, kernel by kernel: begin, duration and name."""
    count = min(_LONGEST_LIST, -(-len(ordered) // num_steps))
    begin = len(ordered) // 2
    part = ordered[begin : begin + count]
    zero = part[0].begin if part else 0.0
    return [[round(s.begin - zero, 1), round(s.end - s.begin, 1), s.name[:60]] for s in part]


def _host(events: Iterable[Any], num_steps: int) -> list[dict[str, Any]]:
    """Operations of the host by their own time, the calls of the CUDA runtime among them."""
    own: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.device_type == DeviceType.CPU:
            own[event.name[:_LONGEST_NAME]].append(event.self_cpu_time_total)
    top = sorted(own.items(), key=lambda item: -sum(item[1]))[:_TOP]
    return [
        {"name": name, "per_step": len(times) / num_steps, "us_per_step": sum(times) / num_steps}
        for name, times in top
    ]
