"""`trtllm-serve` and the YAML file that it reads what it has no option for from.

Source: tensorrt_llm/commands/serve.py and the LLM API's KvCacheConfig.
"""

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

FILE = "trtllm-options.yaml"
KNOWN = (
    "dtype",
    "load_format",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "block_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)


def tensorrt_llm_command(config: EngineConfig, facts: Facts = NO_FACTS) -> ServerCommand:
    words: list[object] = ["trtllm-serve", config.model]
    words += ["--max_batch_size", config.max_num_seqs]
    words += ["--max_num_tokens", config.step_token_limit]
    if config.max_model_len is not None:
        words += ["--max_seq_len", config.max_model_len]
    if is_changed(config, "tensor_parallel_size"):
        words += ["--tp_size", config.tensor_parallel_size]
    if is_changed(config, "pipeline_parallel_size"):
        words += ["--pp_size", config.pipeline_parallel_size]
    words += ["--extra_llm_api_options", FILE]
    known = [
        *KNOWN,
        *quantization.known(config, quantization.TENSORRT_LLM),
        *kv_precision.known(config, kv_precision.TENSORRT_LLM),
        *speculation.known(config, speculation.TENSORRT_LLM),
    ]
    notes = precision_note(config, facts) + quantization.notes(config, quantization.TENSORRT_LLM)
    notes += speculation.notes(config, speculation.TENSORRT_LLM)
    notes += division_note(facts, "TensorRT-LLM") + ranks_note(config, "TensorRT-LLM")
    notes += kv_precision.scale_notes(config, kv_precision.TENSORRT_LLM)
    cache = {
        "enable_block_reuse": _yaml(config.enable_prefix_caching),
        "tokens_per_block": str(config.block_size),
    }
    kv_name = kv_precision.word(config, kv_precision.TENSORRT_LLM)
    if kv_name is not None:
        cache["dtype"] = kv_name
    if config.kv_cache_memory_bytes is not None and facts.capacity is not None:
        known.append("kv_cache_memory_bytes")
        cache["max_tokens"] = str(facts.capacity)
        notes.append("The cache is bounded in tokens there: max_tokens is what fits here.")
    if is_changed(config, "gpu_memory_utilization"):
        notes.append(
            "Its --kv_cache_free_gpu_memory_fraction counts from what is free once the weights are "
            "loaded, so memory utilization cannot be carried over."
        )
    options = [f"dtype: {config.dtype}"]
    if is_changed(config, "load_format"):
        options.append(f"load_format: {config.load_format}")
    options.append(f"enable_chunked_prefill: {_yaml(config.enable_chunked_prefill)}")
    options += speculation.tensorrt_llm_lines(config)
    options += ["kv_cache_config:", *(f"  {key}: {value}" for key, value in cache.items())]
    file = "\n".join((f"cat > {FILE} <<'EOF'", *options, "EOF"))
    text = f"{file}\n{command_line(words)}"
    missing = without_equivalent(config, known)
    return ServerCommand("TensorRT-LLM", text, missing, tuple(notes))


def _yaml(value: bool) -> str:
    return "true" if value else "false"
