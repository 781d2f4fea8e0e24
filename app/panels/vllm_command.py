"""The engine's settings as the command line of a vLLM server. Imports no Qt.

Only what vLLM has under the same name is written; what it lacks is named, not dropped silently.
"""

from __future__ import annotations

import shlex

from engine.config import SETTINGS, EngineConfig

VLLM_FLAGS = (
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
)
"""Settings that `vllm serve` has with the same meaning."""

ALWAYS = ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Written even at our default, because vLLM's default is another or depends on the machine."""

ELSEWHERE = ("model", "device", "num_threads")
"""Not a choice of tuning: the positional argument, the build of vLLM, and its environment."""


def vllm_command(config: EngineConfig) -> str:
    """`vllm serve ...`, quoted for a POSIX shell."""
    words = ["vllm", "serve", config.model]
    for name in VLLM_FLAGS:
        value = getattr(config, name)
        if name not in ALWAYS and value == SETTINGS[name].default:
            continue
        if value is None:
            continue
        flag = SETTINGS[name].flag
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def without_vllm_flag(config: EngineConfig) -> list[str]:
    """Labels of settings that were changed and that vLLM has no flag for."""
    return [
        setting.label
        for name, setting in SETTINGS.items()
        if name not in (*VLLM_FLAGS, *ELSEWHERE) and getattr(config, name) != setting.default
    ]
