"""Speculative decoding in the words of each server.

Sources: vLLM's SpeculativeConfig (vllm/config/speculative.py), SGLang's speculative decoding page
(STANDALONE is a draft model of its own), TensorRT-LLM's DraftTarget and NGram configurations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from engine.config import SETTINGS, EngineConfig

SETTINGS_OF_IT = (
    "speculative_method",
    "speculative_model",
    "num_speculative_tokens",
    "speculative_adaptive",
    "prompt_lookup_min",
    "prompt_lookup_max",
)
VLLM = ("draft_model", "ngram", "eagle3")
SGLANG = {"draft_model": "STANDALONE", "ngram": "NGRAM", "eagle3": "EAGLE3"}
TENSORRT_LLM = {"draft_model": "DraftTarget", "ngram": "NGram"}


def is_on(config: EngineConfig) -> bool:
    return config.speculative_method != "off" and config.num_speculative_tokens > 0


def known(config: EngineConfig, methods: Mapping[str, str] | tuple[str, ...]) -> tuple[str, ...]:
    """The settings that need no mention: all while nothing is drafted, or where the server has
    the method; else all but the method itself, which is what it lacks."""
    if not is_on(config) or config.speculative_method in methods:
        return SETTINGS_OF_IT
    return tuple(name for name in SETTINGS_OF_IT if name != "speculative_method")


def notes(config: EngineConfig, methods: Mapping[str, str] | tuple[str, ...]) -> list[str]:
    """What is not quite the same."""
    if not is_on(config) or config.speculative_method not in methods:
        return []
    found = []
    if config.speculative_adaptive:
        label = SETTINGS["speculative_adaptive"].label
        found.append(
            f"{label}: the server drafts {config.num_speculative_tokens} tokens always, also where "
            "that is slower."
        )
    return found


def vllm_words(config: EngineConfig) -> list[object]:
    if not is_on(config) or config.speculative_method not in VLLM:
        return []
    values: dict[str, object] = {
        "method": config.speculative_method,
        "num_speculative_tokens": config.num_speculative_tokens,
    }
    if config.speculative_method == "ngram":
        values["prompt_lookup_min"] = config.prompt_lookup_min
        values["prompt_lookup_max"] = config.prompt_lookup_max
    else:
        values["model"] = config.speculative_model
    return ["--speculative-config", json.dumps(values)]


def sglang_words(config: EngineConfig) -> list[object]:
    algorithm = SGLANG.get(config.speculative_method)
    if not is_on(config) or algorithm is None:
        return []
    drafted = config.num_speculative_tokens
    words: list[object] = ["--speculative-algorithm", algorithm]
    if config.speculative_method != "ngram":
        words += ["--speculative-draft-model-path", config.speculative_model]
        words += ["--speculative-num-steps", drafted, "--speculative-eagle-topk", 1]
    # counts the token that is verified first as well
    return [*words, "--speculative-num-draft-tokens", drafted + 1]


def tensorrt_llm_lines(config: EngineConfig) -> list[str]:
    """Lines of its YAML file."""
    decoding = TENSORRT_LLM.get(config.speculative_method)
    if not is_on(config) or decoding is None:
        return []
    lines = [
        "disable_overlap_scheduler: true",
        "speculative_config:",
        f"  decoding_type: {decoding}",
        f"  max_draft_len: {config.num_speculative_tokens}",
    ]
    if config.speculative_method == "ngram":
        lines.append(f"  max_matching_ngram_size: {config.prompt_lookup_max}")
    else:
        lines.append(f"  speculative_model_dir: {json.dumps(config.speculative_model)}")
    return lines
