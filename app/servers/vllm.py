"""`vllm serve`. Its names are ours. Source: vLLM's engine arguments (vllm/engine/arg_utils.py)."""

from __future__ import annotations

from app.servers import kv_precision, quantization, speculation
from app.servers.command import (
    NO_FACTS,
    Facts,
    ServerCommand,
    command_line,
    division_note,
    is_changed,
    precision_note,
    ranks_note,
    without_equivalent,
)
from engine.config import SETTINGS, EngineConfig

FLAGS = (
    "dtype",
    "load_format",
    "max_model_len",
    "seed",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "block_size",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "enforce_eager",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
"""Settings that it has with the same meaning."""

ALWAYS = ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Written even at our default, because vLLM's default is another or depends on the machine."""


def vllm_command(config: EngineConfig, facts: Facts = NO_FACTS) -> ServerCommand:
    words: list[object] = ["vllm", "serve", config.model]
    for name in FLAGS:
        value = getattr(config, name)
        if value is None or not (name in ALWAYS or is_changed(config, name)):
            continue
        flag = SETTINGS[name].flag
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, value]
    kv_name = kv_precision.word(config, kv_precision.VLLM)
    if kv_name is not None:
        words += [SETTINGS[kv_precision.SETTING].flag, kv_name]
    words += quantization.words(config, quantization.VLLM)
    words += speculation.vllm_words(config)
    notes = precision_note(config, facts) + quantization.notes(config, quantization.VLLM)
    notes += speculation.notes(config, speculation.VLLM)
    notes += kv_precision.vllm_notes(config) + ranks_note(config, "vLLM")
    if divided := division_note(facts, "vLLM"):
        notes += divided
        notes.append(
            "Its --cpu-offload-gb is something else: weights wait in RAM, and the GPU fetches them "
            "in every step."
        )
    if is_changed(config, "pipeline_parallel_size") and speculation.is_on(config):
        notes.append("Not every version of vLLM drafts with --pipeline-parallel-size.")
    if config.block_size % 16:
        notes.append(
            f"Block size {config.block_size}: most attention backends of vLLM take multiples of 16."
        )
    known = (
        *FLAGS,
        *quantization.known(config, quantization.VLLM),
        *kv_precision.known(config, kv_precision.VLLM),
        *speculation.known(config, speculation.VLLM),
    )
    missing = without_equivalent(config, known)
    return ServerCommand("vLLM", command_line(words), missing, tuple(notes))
