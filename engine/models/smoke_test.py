"""Smoke test of an untested architecture: does the engine compute what transformers computes?

Most decoder-only transformers classes work. Some keep state across the tokens of a row, build their
own mask, or never call the attention interface: their results would be wrong without an error. So a
few layers of the real shape are built with random weights, and ragged steps over a paged cache are
compared with transformers' own eager attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from engine.errors import UnsupportedModelError
from engine.hardware.machine import free_memory
from engine.limited_process import LimitExceeded, ProcessCrashed, TargetFailed, run_limited
from engine.models.smoke_config import shrunk_config
from engine.models.smoke_run import failure, judge
from engine.models.verdicts import Verdict, key_of, record, recorded

TESTED = frozenset(
    (
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "llama",
        "llama4_text",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "starcoder2",
    )
)
"""Model types whose tokens the tests compare with transformers' own."""

TESTED_WITH = frozenset(("5.23.0", "5.24.0"))
"""The versions of transformers that the tests ran with. With another one these types are tested
too, in this process: their classes do not crash."""

_LIMIT_S = 300.0  # a minute on a busy machine, most of it imports
_LEAST_BYTES = 4 * 2**30
_REMEDY = "Choose a model with another architecture, for example Llama, Qwen3, Mistral or Gemma."


def check_architecture(
    config: Any, model_class: type[nn.Module], check: Callable[[], None] = lambda: None
) -> None:
    """Raise UnsupportedModelError where the engine computes something else than transformers.

    Nothing is done for a tested model type, and for a configuration that was tested before. Others
    take seconds and the memory of two layers in float32, or of one of each kind, in a process of
    their own. check: is called meanwhile; what it raises ends the test.
    """
    is_tested = config.model_type in TESTED
    if is_tested and _version() in TESTED_WITH:
        return
    try:
        config_json = shrunk_config(config).to_json_string(use_diff=False)
    except Exception as error:  # configurations of transformers raise anything
        reason: str | None = failure(error)
    else:
        path = f"{model_class.__module__}:{model_class.__qualname__}"
        reason = _reason(path, config_json, is_tested, check)
    if reason is not None:
        raise UnsupportedModelError(f"{model_class.__name__} is not supported: {reason}", _REMEDY)


def _version() -> str:
    from engine.lazy_transformers import __version__

    return __version__


def _reason(path: str, config_json: str, is_tested: bool, check: Callable[[], None]) -> str | None:
    key = key_of(path, config_json)
    if (known := recorded(key)) is not None:
        return known.reason
    if is_tested:
        reason = judge(path, config_json)
    else:
        most = max(_LEAST_BYTES, free_memory()[0] // 2)
        try:
            reason = run_limited(
                judge, path, config_json, seconds=_LIMIT_S, max_bytes=most, check=check
            )
        except (LimitExceeded, ProcessCrashed, TargetFailed) as error:  # it may be the machine
            raise UnsupportedModelError(
                f"A smoke test of a few layers of {path.rpartition(':')[2]} did not finish. "
                f"{error.cause}",
                "Close other programs and load the model again, or choose a model with another "
                "architecture.",
            ) from error
    record(Verdict(key, reason))
    return reason
