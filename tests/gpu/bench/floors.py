"""What a step takes at least: bytes and operations counted, over what the device was seen to do.

    floor = max(weights / bandwidth, their operations / rate)
          + max(keys and values / bandwidth, their operations / rate)

Reading and computing overlap within a product and within attention, not between the two (Williams
et al., "Roofline", 2009). Each weight is read once per step, each key and value once; a prefix that
requests share is read once for all of them. Pure functions: no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.gpu.bench.shapes import Shape


class Ceilings(NamedTuple):
    """Bytes per second of a large copy, read and written; operations per second of a large product
    of random numbers, by number format. `source`: measured, or whose data sheet."""

    bytes_per_s: float
    flops_per_s: dict[str, float]
    source: str = "measured"

    def rate(self, precision: str) -> float:
        """For weights in `precision`: those of 4 bits are multiplied in 16."""
        return self.flops_per_s.get(precision) or self.flops_per_s["bf16"]


class Work(NamedTuple):
    """What has to be read (bytes) and computed (operations)."""

    weights: float = 0.0
    linear: float = 0.0
    kv: float = 0.0
    attention: float = 0.0


class Load(NamedTuple):
    """A wave: `concurrency` requests that come together, with `num_input` tokens each, of which
    the first `num_shared` are the same in all of them and computed already; `num_output` each."""

    concurrency: int
    num_input: int
    num_output: int
    num_shared: int = 0


def seconds(work: Work, ceilings: Ceilings, precision: str = "bf16") -> float:
    """The least time for `work` with weights in `precision`."""
    bandwidth, rate = ceilings.bytes_per_s, ceilings.rate(precision)
    products = max(work.weights / bandwidth, work.linear / rate)
    # attention computes in 16 bits, whatever it reads
    attention = max(work.kv / bandwidth, work.attention / ceilings.rate("bf16"))
    return products + attention


def decode_work(
    shape: Shape, precision: str, kv: str, batch: int, context: float, num_shared: int = 0
) -> Work:
    """A step in which each of `batch` requests computes one token and attends to `context`."""
    tokens = shape.kv_bytes_per_token(kv)
    own = context - num_shared
    return Work(
        weights=shape.weight_bytes(precision),
        linear=2.0 * batch * (shape.body_parameters + shape.head_parameters),
        kv=(batch * own + num_shared) * tokens,
        attention=batch * context * shape.flops_per_pair,
    )


def prefill_work(
    shape: Shape, precision: str, kv: str, num_prompts: int, num_input: int, num_shared: int = 0
) -> Work:
    """All prompts computed up to their first token, what they share read and not computed."""
    new = num_input - num_shared
    pairs = new * num_shared + new * (new + 1) / 2
    return Work(
        weights=shape.weight_bytes(precision),
        linear=2.0 * num_prompts * (new * shape.body_parameters + shape.head_parameters),
        kv=(num_prompts * new + num_shared) * shape.kv_bytes_per_token(kv),
        attention=num_prompts * pairs * shape.flops_per_pair,
    )


class WaveFloor(NamedTuple):
    """Least figures of a wave, in seconds and per second. `step_s`: of a step in the middle of the
    output. `ttft_s`: until the last request has its first token."""

    ttft_s: float
    step_s: float
    duration_s: float
    tokens_per_s: float
    requests_per_s: float


def wave_floor(shape: Shape, precision: str, kv: str, load: Load, ceilings: Ceilings) -> WaveFloor:
    """All prompts, then all steps that decode."""
    count, num_input, num_output, shared = load
    prompts = prefill_work(shape, precision, kv, count, num_input, shared)
    ttft = seconds(prompts, ceilings, precision)
    steps = num_output - 1
    # the work of a step is linear in its context: the one in the middle is the mean of all
    middle = num_input + num_output / 2
    step = seconds(decode_work(shape, precision, kv, count, middle, shared), ceilings, precision)
    duration = ttft + steps * step
    return WaveFloor(ttft, step, duration, count * num_output / duration, count / duration)


def draft_floor(
    shape: Shape, draft: Shape, precision: str, batch: int, num_drafts: int, context: float,
    ceilings: Ceilings,
) -> float:  # fmt: skip
    """Least seconds of a step in which a model drafts for each of `batch` requests and another
    verifies: the drafts come one after the other, and are verified with one more token at once."""
    each = seconds(decode_work(draft, "bf16", "auto", batch, context), ceilings)
    rows = decode_work(shape, precision, "auto", batch, context)
    verified = rows._replace(
        linear=rows.linear * (1 + num_drafts), attention=rows.attention * (1 + num_drafts)
    )
    return num_drafts * each + seconds(verified, ceilings, precision)


class DividedFloor(NamedTuple):
    """Least seconds of the CPU's part of a step, and of the GPU's behind it."""

    host_s: float
    gpu_s: float

    @property
    def total_s(self) -> float:
        return self.host_s + self.gpu_s


def divided_floor(
    shape: Shape, host_layers: int, work: Callable[[Shape], Work], host: Ceilings, gpu: Ceilings,
    precision: str,
) -> DividedFloor:  # fmt: skip
    """Of what is `work` for the whole of a shape, where the CPU computes its first layers and the
    GPU the others and the head, which need their results."""
    first, rest = shape.divided(host_layers)
    return DividedFloor(seconds(work(first), host, precision), seconds(work(rest), gpu, precision))


def saturated_tokens_per_s(
    shape: Shape, precision: str, kv: str, num_input: int, num_output: int, memory: float,
    ceilings: Ceilings,
) -> float:  # fmt: skip
    """Most output tokens per second of a device whose memory (bytes) is full of requests, at all
    stages of their output, with prompts computed as fast as they are used up."""
    weights = shape.weight_bytes(precision) + shape.head_parameters * 2  # and the embeddings
    context = num_input + num_output / 2
    batch = max(1.0, (memory - weights) / (context * shape.kv_bytes_per_token(kv)))
    step = decode_work(shape, precision, kv, 1, context)
    prompt = prefill_work(shape, precision, kv, 1, num_input)
    # In a step, batch requests decode, and batch / num_output prompts are computed with them.
    prompts = batch / num_output
    work = Work(
        weights=step.weights,
        linear=batch * step.linear + prompts * prompt.linear,
        kv=batch * step.kv,
        attention=batch * step.attention + prompts * prompt.attention,
    )
    return batch / seconds(work, ceilings, precision)


def total(works: Iterable[Work]) -> Work:
    """The sum of several works."""
    return Work(*(sum(column) for column in zip(*works, strict=True)))
