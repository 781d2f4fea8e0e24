"""The three lessons: a load, one setting to move, and why the figures change. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.bench.load import Pace
from app.bench.workload import Length, Workload
from app.features.tune.load_plan import LoadPlan


@dataclass(frozen=True, slots=True)
class Step:
    """Set `setting` to `value`, from `setup` on. ask: the task in words. Of the lesson's steps the
    first is taken that the model supports."""

    setting: str
    value: Any
    ask: str
    setup: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lesson:
    """wanted: the metrics that have to be measured. why: the reason for the result. in_flight:
    requests of the load; input, output: their lengths in tokens. evaluates: the lesson is about a
    precision. The KV cache keeps its size, and the quality is measured too, after the load."""

    key: str
    title: str
    intro: str
    steps: tuple[Step, ...]
    wanted: tuple[str, ...]
    why: str
    in_flight: int
    input: Length
    output: Length
    evaluates: bool = False

    @property
    def plan(self) -> LoadPlan:
        workload = Workload(self.key, self.title, 64, self.input, self.output)
        return LoadPlan(workload, "unique", Pace(self.in_flight), is_lesson=True)


def _batch_limit(before: int, after: int) -> Step:
    setup = {"max_num_seqs": before, "batching": "continuous"}
    return Step("max_num_seqs", after, f"Set Max running requests to {after}.", setup)


LESSONS = (
    Lesson(
        "queue",
        "Why the first token waits",
        "8 concurrent requests, all of them running.",
        (_batch_limit(8, 2),),
        ("ttft",),
        "6 of 8 requests wait for a batch slot before their prefill starts. "
        "TTFT is queue time plus prefill time.",
        8, Length(96, 160), Length(24, 40),
    ),
    Lesson(
        "batching",
        "What batching costs and gives",
        "8 concurrent requests, one runs at a time.",
        (_batch_limit(1, 8),),
        ("itl", "output"),
        "A step reads the weights once and computes a token for each running request. "
        "Larger batches raise throughput, and each step takes longer.",
        8, Length(16, 32), Length(24, 40),
    ),
    Lesson(
        "bits",
        "What 4 bits cost",
        "4 concurrent requests, with the checkpoint's weights. The KV cache keeps its size.",
        (
            Step("quantization", "int4", "Set Quantization to INT4, then press Apply."),
            Step("kv_cache_dtype", "int8", "Set KV cache dtype to INT8, then press Apply."),
        ),
        ("itl", "output"),
        "Low-bit values need less memory and bandwidth. Dequantizing them needs compute. "
        "INT4 applies to linear layers. Embeddings and LM head keep 16 or 32 bits, so the average "
        "is above 4 bits per weight. The Runs page keeps the evaluation.",
        4, Length(16, 32), Length(24, 40), evaluates=True,
    ),
)  # fmt: skip
