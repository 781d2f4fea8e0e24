"""Command lines for vLLM, SGLang (docs/advanced_features) and TensorRT-LLM."""

from __future__ import annotations

import json

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
    Translation,
    is_changed,
)
from engine.config import SETTINGS, EngineConfig

COMMON = (
    "dtype", "load_format", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "enable_chunked_prefill", "block_size",
)  # fmt: skip
"""Settings with an equivalent in every server."""


def sglang_command(config: EngineConfig, facts: Facts = NO_FACTS) -> ServerCommand:
    is_chunked = config.enable_chunked_prefill
    made = Translation(
        "SGLang", config, facts, [*COMMON, "seed", "gpu_memory_utilization", "enforce_eager"],
        WEIGHTS_SGLANG, KV_SGLANG, DRAFTS_SGLANG,
        ["python3", "-m", "sglang.launch_server", "--model-path", config.model],
    )  # fmt: skip
    words, notes = made.words, made.notes
    made.add("--dtype", "dtype", always=True)
    made.add("--load-format", "load_format")
    made.add("--context-length", "max_model_len")
    made.add("--random-seed", "seed")
    made.add("--max-running-requests", "max_num_seqs", always=True)
    if is_chunked:
        made.add("--chunked-prefill-size", "max_num_batched_tokens", always=True)
        words.append("--enable-mixed-chunk")
    else:
        words += ["--chunked-prefill-size", -1]
    if not config.enable_prefix_caching:
        words.append("--disable-radix-cache")
    if config.enforce_eager:
        words.append("--disable-cuda-graph")
    made.add("--page-size", "block_size", always=True)
    if made.kv_name is not None:
        words += ["--kv-cache-dtype", made.kv_name]
    words += made.weight_options
    if made.draft_name is not None:
        drafted = config.num_speculative_tokens
        words += ["--speculative-algorithm", made.draft_name]
        if config.speculative_method == "ngram":
            notes.append("SGLang uses its own NGRAM method, without options for n-gram lengths.")
        else:
            words += ["--speculative-draft-model-path", config.speculative_model]
            words += ["--speculative-num-steps", drafted, "--speculative-eagle-topk", 1]
        # includes the token verified first
        words += ["--speculative-num-draft-tokens", drafted + 1]
    if config.kv_cache_memory_bytes is not None and facts.capacity is not None:
        made.known.append("kv_cache_memory_bytes")
        words += ["--max-total-tokens", facts.capacity]
        notes.append("--max-total-tokens sets KV cache capacity in tokens, not bytes.")
    if is_changed(config, "gpu_memory_utilization"):
        words += ["--mem-fraction-static", config.gpu_memory_utilization]
        notes.append("--mem-fraction-static covers weights and KV cache, not activations.")
    if is_chunked:
        notes.append(
            "--chunked-prefill-size limits prompt tokens per step; decode tokens are extra."
        )
    return made.command()


FILE = "trtllm-options.yaml"


def tensorrt_llm_command(config: EngineConfig, facts: Facts = NO_FACTS) -> ServerCommand:
    made = Translation(
        "TensorRT-LLM", config, facts, [*COMMON], WEIGHTS_TENSORRT_LLM, KV_TENSORRT_LLM,
        DRAFTS_TENSORRT_LLM, ["trtllm-serve", config.model],
    )  # fmt: skip
    made.add("--max_batch_size", "max_num_seqs", always=True)
    if config.max_num_batched_tokens is not None or not config.enable_chunked_prefill:
        made.words += ["--max_num_tokens", config.step_token_limit]
    made.add("--max_seq_len", "max_model_len")
    made.words += ["--extra_llm_api_options", FILE]
    options = [f"dtype: {config.dtype}"]
    if is_changed(config, "load_format"):
        options.append(f"load_format: {config.load_format}")
    options.append(f"enable_chunked_prefill: {_yaml(config.enable_chunked_prefill)}")
    if made.draft_name is not None:
        options += [
            "disable_overlap_scheduler: true",
            "speculative_config:",
            f"  decoding_type: {made.draft_name}",
            f"  max_draft_len: {config.num_speculative_tokens}",
            f"  max_matching_ngram_size: {config.prompt_lookup_max}"
            if config.speculative_method == "ngram"
            else f"  speculative_model_dir: {json.dumps(config.speculative_model)}",
        ]
    options += [
        "kv_cache_config:",
        f"  enable_block_reuse: {_yaml(config.enable_prefix_caching)}",
        f"  tokens_per_block: {config.block_size}",
    ]
    if made.kv_name is not None:
        options.append(f"  dtype: {made.kv_name}")
    if config.kv_cache_memory_bytes is not None and facts.capacity is not None:
        made.known.append("kv_cache_memory_bytes")
        options.append(f"  max_tokens: {facts.capacity}")
        made.notes.append("max_tokens sets KV cache capacity in tokens, not bytes.")
    if is_changed(config, "gpu_memory_utilization"):
        made.notes.append(
            "Memory utilization is omitted: --kv_cache_free_gpu_memory_fraction is relative to "
            "memory free after loading."
        )
    return made.command("\n".join((f"cat > {FILE} <<'EOF'", *options, "EOF", "")))


def _yaml(value: bool) -> str:
    return "true" if value else "false"


FLAGS = (
    "dtype", "load_format", "max_model_len", "seed", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "enable_chunked_prefill", "block_size", "kv_cache_memory_bytes",
    "gpu_memory_utilization", "enforce_eager",
)  # fmt: skip
"""Settings with the same meaning in vLLM."""

ALWAYS = ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Always written where not auto: vLLM's defaults differ or depend on the machine."""


def vllm_command(config: EngineConfig, facts: Facts = NO_FACTS) -> ServerCommand:
    made = Translation(
        "vLLM", config, facts, [*FLAGS], WEIGHTS_VLLM, KV_VLLM, DRAFTS_VLLM,
        ["vllm", "serve", config.model],
    )  # fmt: skip
    words, notes = made.words, made.notes
    for name in FLAGS:
        value, flag = getattr(config, name), SETTINGS[name].flag
        if not isinstance(value, bool):
            made.add(flag, name, always=name in ALWAYS)
        elif is_changed(config, name):
            words.append(flag if value else flag.replace("--", "--no-", 1))
    if made.kv_name is not None:
        words += [SETTINGS[KV_SETTING].flag, made.kv_name]
        is_fp8 = made.kv_name == KV_VLLM["fp8"]
        older = " (older versions: fp8_e4m3, one scale per layer)" if is_fp8 else ""
        notes.append(f"--kv-cache-dtype {made.kv_name} requires a recent vLLM{older}.")
    words += made.weight_options
    if made.draft_name is not None:
        names = ["num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"]
        values: dict[str, object] = {"method": made.draft_name}
        if config.speculative_method != "ngram":
            names = names[:1]
            values["model"] = config.speculative_model
        values |= {name: getattr(config, name) for name in names}
        words += ["--speculative-config", json.dumps(values)]
    if facts.host_layers:
        notes.append(
            "--cpu-offload-gb differs: the GPU reads offloaded weights from RAM in every step."
        )
    if config.block_size % 16:
        notes.append(
            f"Block size {config.block_size}: most vLLM attention backends need multiples of 16."
        )
    return made.command()


SERVERS = (vllm_command, sglang_command, tensorrt_llm_command)
"""Functions that translate a configuration and Facts to a ServerCommand, by server."""
