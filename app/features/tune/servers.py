"""Command lines for vLLM, SGLang (docs/advanced_features) and TensorRT-LLM."""

from __future__ import annotations

from app.features.tune.server_commands import (
    DRAFTS_SGLANG,
    DRAFTS_TENSORRT_LLM,
    DRAFTS_VLLM,
    KV_SETTING,
    KV_SGLANG,
    KV_TENSORRT_LLM,
    KV_VLLM,
    NO_FACTS,
    WEIGHTS_SGLANG,
    WEIGHTS_TENSORRT_LLM,
    WEIGHTS_VLLM,
    Facts,
    ServerCommand,
    command_line,
    division_note,
    draft_notes,
    drafts,
    is_changed,
    known_drafts,
    known_kv,
    known_weights,
    kv_option,
    kv_scale_notes,
    precision_note,
    ranks_note,
    sglang_drafts,
    tensorrt_llm_drafts,
    vllm_drafts,
    vllm_kv_notes,
    weight_notes,
    weight_options,
    without_equivalent,
)
from engine.config import SETTINGS, EngineConfig

COMMON = (
    "dtype", "load_format", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "enable_chunked_prefill", "block_size", "tensor_parallel_size",
    "pipeline_parallel_size",
)  # fmt: skip
"""Settings with an equivalent in every server."""

SGLANG_KNOWN = (*COMMON, "seed", "gpu_memory_utilization", "enforce_eager")


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
    kv_name = kv_option(config, KV_SGLANG)
    if kv_name is not None:
        words += ["--kv-cache-dtype", kv_name]
    words += weight_options(config, WEIGHTS_SGLANG)
    algorithms = {} if is_staged else DRAFTS_SGLANG
    words += sglang_drafts(config) if algorithms else []
    known = [
        *SGLANG_KNOWN,
        *known_weights(config, WEIGHTS_SGLANG),
        *known_kv(config, KV_SGLANG),
        *known_drafts(config, algorithms),
    ]
    notes = precision_note(config, facts)
    notes += weight_notes(config, WEIGHTS_SGLANG)
    notes += draft_notes(config, algorithms)
    notes += division_note(facts, "SGLang") + ranks_note(config, "SGLang")
    notes += kv_scale_notes(config, KV_SGLANG)
    if algorithms and config.speculative_method == "ngram" and drafts(config):
        notes.append("NGRAM searches differently: n-gram lengths are not carried over.")
    if config.kv_cache_memory_bytes is not None and facts.capacity is not None:
        known.append("kv_cache_memory_bytes")
        words += ["--max-total-tokens", facts.capacity]
        notes.append("The cache limit is in tokens: --max-total-tokens is the capacity here.")
    if is_changed(config, "gpu_memory_utilization"):
        words += ["--mem-fraction-static", config.gpu_memory_utilization]
        notes.append("--mem-fraction-static covers weights and KV cache, not activations.")
    if is_staged and drafts(config):
        notes.append("--pp-size disables speculation.")
    if is_chunked and is_staged:
        notes.append("--pp-size disables mixed prefill and decode steps.")
    elif is_chunked:
        notes.append(
            "--chunked-prefill-size limits prompt tokens per step; decode tokens are extra."
        )
    missing = without_equivalent(config, known)
    return ServerCommand("SGLang", command_line(words), missing, tuple(notes))


FILE = "trtllm-options.yaml"


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
        *COMMON,
        *known_weights(config, WEIGHTS_TENSORRT_LLM),
        *known_kv(config, KV_TENSORRT_LLM),
        *known_drafts(config, DRAFTS_TENSORRT_LLM),
    ]
    notes = precision_note(config, facts)
    notes += weight_notes(config, WEIGHTS_TENSORRT_LLM)
    notes += draft_notes(config, DRAFTS_TENSORRT_LLM)
    notes += division_note(facts, "TensorRT-LLM") + ranks_note(config, "TensorRT-LLM")
    notes += kv_scale_notes(config, KV_TENSORRT_LLM)
    cache = {
        "enable_block_reuse": _yaml(config.enable_prefix_caching),
        "tokens_per_block": str(config.block_size),
    }
    kv_name = kv_option(config, KV_TENSORRT_LLM)
    if kv_name is not None:
        cache["dtype"] = kv_name
    if config.kv_cache_memory_bytes is not None and facts.capacity is not None:
        known.append("kv_cache_memory_bytes")
        cache["max_tokens"] = str(facts.capacity)
        notes.append("The cache limit is in tokens: max_tokens is the capacity here.")
    if is_changed(config, "gpu_memory_utilization"):
        notes.append(
            "Memory utilization is not carried over: --kv_cache_free_gpu_memory_fraction counts "
            "from the memory free after loading."
        )
    options = [f"dtype: {config.dtype}"]
    if is_changed(config, "load_format"):
        options.append(f"load_format: {config.load_format}")
    options.append(f"enable_chunked_prefill: {_yaml(config.enable_chunked_prefill)}")
    options += tensorrt_llm_drafts(config)
    options += ["kv_cache_config:", *(f"  {key}: {value}" for key, value in cache.items())]
    file = "\n".join((f"cat > {FILE} <<'EOF'", *options, "EOF"))
    text = f"{file}\n{command_line(words)}"
    missing = without_equivalent(config, known)
    return ServerCommand("TensorRT-LLM", text, missing, tuple(notes))


def _yaml(value: bool) -> str:
    return "true" if value else "false"


FLAGS = (
    "dtype", "load_format", "max_model_len", "seed", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "enable_chunked_prefill", "block_size", "kv_cache_memory_bytes",
    "gpu_memory_utilization", "enforce_eager", "tensor_parallel_size", "pipeline_parallel_size",
)  # fmt: skip
"""Settings with the same meaning in vLLM."""

ALWAYS = ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Always written: vLLM's defaults differ or depend on the machine."""


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
    kv_name = kv_option(config, KV_VLLM)
    if kv_name is not None:
        words += [SETTINGS[KV_SETTING].flag, kv_name]
    words += weight_options(config, WEIGHTS_VLLM)
    words += vllm_drafts(config)
    notes = precision_note(config, facts)
    notes += weight_notes(config, WEIGHTS_VLLM)
    notes += draft_notes(config, DRAFTS_VLLM)
    notes += vllm_kv_notes(config) + ranks_note(config, "vLLM")
    if divided := division_note(facts, "vLLM"):
        notes += divided
        notes.append(
            "--cpu-offload-gb differs: the GPU reads offloaded weights from RAM in every step."
        )
    if is_changed(config, "pipeline_parallel_size") and drafts(config):
        notes.append("Speculation with --pipeline-parallel-size needs a recent vLLM.")
    if config.block_size % 16:
        notes.append(
            f"Block size {config.block_size}: most vLLM attention backends need multiples of 16."
        )
    known = (
        *FLAGS,
        *known_weights(config, WEIGHTS_VLLM),
        *known_kv(config, KV_VLLM),
        *known_drafts(config, DRAFTS_VLLM),
    )
    missing = without_equivalent(config, known)
    return ServerCommand("vLLM", command_line(words), missing, tuple(notes))


SERVERS = (vllm_command, sglang_command, tensorrt_llm_command)
"""Each makes a ServerCommand from a configuration and Facts."""

__all__ = [
    "SERVERS", "Facts", "ServerCommand", "sglang_command", "tensorrt_llm_command",
    "vllm_command",
]  # fmt: skip
