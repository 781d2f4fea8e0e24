"""SGLang's launch_server. Source: its server arguments (docs/advanced_features)."""

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
from engine.config import EngineConfig

KNOWN = (
    "dtype",
    "load_format",
    "max_model_len",
    "seed",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "block_size",
    "gpu_memory_utilization",
    "enforce_eager",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)


def sglang_command(config: EngineConfig, facts: Facts = NO_FACTS) -> ServerCommand:
    words: list[object] = ["python3", "-m", "sglang.launch_server", "--model-path", config.model]
    words += ["--dtype", config.dtype]
    if is_changed(config, "load_format"):
        words += ["--load-format", config.load_format]
    if config.max_model_len is not None:
        words += ["--context-length", config.max_model_len]
    if is_changed(config, "seed"):
        words += ["--random-seed", config.seed]
    words += ["--max-running-requests", config.max_num_seqs]
    is_chunked = config.enable_chunked_prefill
    words += ["--chunked-prefill-size", config.max_num_batched_tokens if is_chunked else -1]
    is_staged = is_changed(config, "pipeline_parallel_size")
    if is_chunked and not is_staged:
        words.append("--enable-mixed-chunk")
    if not config.enable_prefix_caching:
        words.append("--disable-radix-cache")
    if config.enforce_eager:
        words.append("--disable-cuda-graph")
    if is_changed(config, "tensor_parallel_size"):
        words += ["--tp-size", config.tensor_parallel_size]
    if is_staged:
        words += ["--pp-size", config.pipeline_parallel_size]
    words += ["--page-size", config.block_size]
    kv_name = kv_precision.word(config, kv_precision.SGLANG)
    if kv_name is not None:
        words += ["--kv-cache-dtype", kv_name]
    words += quantization.words(config, quantization.SGLANG)
    algorithms = {} if is_staged else speculation.SGLANG
    words += speculation.sglang_words(config) if algorithms else []
    known = [
        *KNOWN,
        *quantization.known(config, quantization.SGLANG),
        *kv_precision.known(config, kv_precision.SGLANG),
        *speculation.known(config, algorithms),
    ]
    notes = precision_note(config, facts) + quantization.notes(config, quantization.SGLANG)
    notes += speculation.notes(config, algorithms)
    notes += division_note(facts, "SGLang") + ranks_note(config, "SGLang")
    notes += kv_precision.scale_notes(config, kv_precision.SGLANG)
    if algorithms and config.speculative_method == "ngram" and speculation.is_on(config):
        notes.append("NGRAM has a search of its own: lengths of n-grams are not carried over.")
    if config.kv_cache_memory_bytes is not None and facts.capacity is not None:
        known.append("kv_cache_memory_bytes")
        words += ["--max-total-tokens", facts.capacity]
        notes.append("The cache is bounded in tokens there: --max-total-tokens is what fits here.")
    if is_changed(config, "gpu_memory_utilization"):
        words += ["--mem-fraction-static", config.gpu_memory_utilization]
        notes.append("--mem-fraction-static covers weights and cache, not the activations.")
    if is_staged and speculation.is_on(config):
        notes.append("With --pp-size it drafts nothing.")
    if is_chunked and is_staged:
        notes.append("With --pp-size a step has prompts or tokens that are decoded, not both.")
    elif is_chunked:
        notes.append(
            "--chunked-prefill-size bounds the prompt tokens of a step; tokens that are decoded "
            "in it come on top."
        )
    missing = without_equivalent(config, known)
    return ServerCommand("SGLang", command_line(words), missing, tuple(notes))
