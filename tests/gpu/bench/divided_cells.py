"""A model that is larger than its budget of GPU memory, with its first layers on the CPU: one
request."""

from __future__ import annotations

from typing import Any

from engine import LLMEngine
from engine.errors import InferdeckError
from engine.hardware.peaks import measure_peaks
from engine.host.resolve import resolve
from engine.memory.plan import plan_memory
from tests.gpu.bench.bench import Bench, UnableError
from tests.gpu.bench.budget_cells import cap
from tests.gpu.bench.serving import latencies, random_prompts, serve
from tests.gpu.bench.wave_cells import BLOCK, engine_facts, settings_of

_PROBE, _PROBE_OUTPUT = 64, 4  # tokens


def measure(
    bench: Bench, *, shape: str, precision: str, kv: str, budget_gb: float, num_input: int,
    num_output: int, budget: int, most_s: float,
) -> dict[str, Any]:  # fmt: skip
    """As many layers on the GPU as the engine finds room for in `budget_gb`; nothing is loaded
    where all fit. The prompt is `num_input` tokens, or as many as take about `most_s` seconds, and
    so is the output. Without a GPU all layers are the CPU's."""
    context = (-(-(num_input + num_output) // BLOCK) + 1) * BLOCK
    settings = {
        **settings_of(precision, 1, context, budget), **cap(bench, budget_gb), "gpu_layers": "auto",
    }  # fmt: skip
    bench.drop_engine()  # what another cell has loaded is no part of the budget
    try:
        if bench.is_on_gpu and not _host_layers(bench, shape, kv, settings):
            return {"fits": True, "is_divided": False}
        engine = bench.engine(shape, kv, **settings)
    except (InferdeckError, UnableError) as error:
        return {"fits": False, "is_divided": False, "why": str(error)}
    info, plan, memory = engine.model_info, engine.plan, engine.snapshot().memory
    assert engine.config.num_threads is not None, "resolved"
    peaks = measure_peaks("bfloat16", engine.config.num_threads)
    return {
        "fits": True, "is_divided": True,
        "num_layers": info.num_layers,
        "host_layers": plan.host_layers if bench.is_on_gpu else info.num_layers,
        "host_weights_bytes": memory.host_weights if bench.is_on_gpu else memory.weights,
        "host_kv_cache_bytes": plan.host_kv_cache,
        "host_bytes_per_s": peaks.read_bytes_per_s, "host_flops_per_s": peaks.flops_per_s,
        "num_threads": peaks.num_threads,
        **_serve_one(engine, num_input, num_output, most_s),
        **engine_facts(bench),
    }  # fmt: skip


def _host_layers(bench: Bench, shape: str, kv: str, settings: dict[str, Any]) -> int:
    """How many the CPU would compute, before anything is loaded."""
    config, checkpoint = resolve(bench.config(shape, kv, **settings))
    return plan_memory(checkpoint, config).host_layers


def _serve_one(engine: LLMEngine, num_input: int, num_output: int, most_s: float) -> dict[str, Any]:
    """A request alone, after two short ones and one of its own length: how long it may be is known
    then, and every kernel has been compiled."""
    vocab = engine.model_info.vocab_size
    probe = min(_PROBE, num_input)
    for turn in range(2):
        (prompt,) = random_prompts(1, probe, vocab, ("probe", turn))
        found = latencies([serve(engine, [prompt], _PROBE_OUTPUT)])
    token_s = found["ttft_ms"]["p50"] / probe / 1000
    length = min(num_input, max(probe, int(most_s / token_s)))
    count = min(num_output, max(_PROBE_OUTPUT, int(most_s / found["itl_ms"]["p50"] * 1000)))
    before, measured = random_prompts(2, length, vocab, ("alone", length))
    serve(engine, [before], _PROBE_OUTPUT)
    served = serve(engine, [measured], count)
    return {"num_input": length, "num_output": count, **latencies([served])}
