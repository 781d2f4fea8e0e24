"""Fields of other servers' APIs that this one does not have.

    SAMPLERS, GUIDED, TOOLS     would change the text: refused, naming the field
    WARNED                      change it where a model supports them: ignored, and reported
    HARMLESS                    do not change the text: accepted

Reported: in the response header IGNORED_HEADER. So are all unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.server.errors import bad_request

IGNORED_HEADER = "X-Ignored-Fields"
_MOST_NAMES = 20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class Refused(NamedTuple):
    """An unsupported field. `harmless`: values without an effect, which pass."""

    name: str
    why: str
    harmless: tuple[Any, ...] = ()

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises ApiError 400."""
        value = given.get(self.name)
        if value is None:
            return
        if not any(_kind(value) is _kind(one) and value == one for one in self.harmless):
            raise bad_request(f"{self.name} is not supported: {self.why}", self.name)


def _kind(value: Any) -> type:
    """One for both kinds of numbers: clients send 1.0 for 1."""
    return float if type(value) is int else type(value)


_WITHOUT = "set temperature, top_p, top_k or min_p instead."
_PENALTY = "set repetition_penalty, presence_penalty or frequency_penalty instead."

SAMPLERS = (
    *(Refused(name, _WITHOUT, (1,)) for name in ("typical_p", "typical", "tfs", "tfs_z")),
    *(Refused(name, _WITHOUT, (0,)) for name in (
        "top_a", "epsilon_cutoff", "eta_cutoff", "dry_multiplier", "xtc_probability", "mirostat",
        "mirostat_mode", "dynatemp_range", "smoothing_factor", "nsigma", "adaptive_target",
    )),
    *(Refused(name, _WITHOUT, (0, -1)) for name in ("top_n_sigma",)),
    *(Refused(name, _WITHOUT) for name in (
        "dry_base", "dry_allowed_length", "dry_range", "dry_penalty_last_n",
        "dry_sequence_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta", "dynatemp_low",
        "dynatemp_high", "dynatemp_exponent", "dynamic_temperature", "smoothing_curve", "samplers",
        "sampler_order", "sampler_priority", "temperature_last", "min_keep", "penalty_alpha",
        "guidance_scale", "negative_prompt",
    )),
    *(Refused(name, _PENALTY, (1,)) for name in (
        "repeat_penalty", "rep_pen", "encoder_repetition_penalty",
    )),
    *(Refused(name, _PENALTY, (0,)) for name in ("no_repeat_ngram_size",)),
    *(Refused(name, _PENALTY) for name in ("repeat_last_n", "repetition_penalty_range")),
    *(Refused(name, "set max_tokens instead.") for name in (
        "n_predict", "num_predict", "max_new_tokens", "max_length",
    )),
    Refused("options", "send its fields at the top level."),
    Refused("use_beam_search", "beam search is not implemented.", (False,)),
    Refused("num_beams", "beam search is not implemented.", (1,)),
    Refused("best_of", "set n and select the best reply client-side.", (1,)),
    Refused("length_penalty", "beam search is not implemented.", (1,)),
    Refused("bad_words", "use a negative logit_bias for these tokens.", ([],)),
    Refused("banned_tokens", "use a negative logit_bias for these tokens.", ([],)),
    Refused("custom_token_bans", "use a negative logit_bias for these tokens.", ("",)),
    Refused("allowed_token_ids", "use a large positive logit_bias for these tokens."),
    Refused("ban_eos_token", "set ignore_eos instead.", (False,)),
    Refused("lora_path", "load the merged model instead."),
    Refused("thinking_token_budget", "set max_tokens instead."),
)  # fmt: skip
"""Sampling methods and lengths."""

_GUIDED = "structured outputs are not implemented."

GUIDED = (
    Refused("response_format", _GUIDED, ({"type": "text"},)),
    *(Refused(name, _GUIDED) for name in (
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_decoding_backend", "guided_whitespace_pattern", "grammar", "grammar_string",
        "json_schema", "regex", "ebnf", "structural_tag",
    )),
)  # fmt: skip

_TOOLS = "describe tools in the prompt instead."

TOOLS = (
    Refused("tools", _TOOLS, ([],)),
    Refused("tool_choice", _TOOLS, ("none", "auto")),
    Refused("functions", _TOOLS, ([],)),
    Refused("function_call", _TOOLS, ("none", "auto")),
)

WARNED = frozenset((
    "reasoning_effort", "reasoning", "include_reasoning", "separate_reasoning", "thinking",
    "enable_thinking", "verbosity",
))  # fmt: skip

HARMLESS = frozenset((
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls", "request_id", "priority",
))  # fmt: skip


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The response header that names ignored fields; {} for none. Names that are no identifiers
    are counted only."""
    found = list(names)
    if not found:
        return {}
    shown = [name for name in found if _NAME.fullmatch(name)][:_MOST_NAMES]
    if len(shown) < len(found):
        shown.append(f"{len(found) - len(shown)} more")
    return {IGNORED_HEADER: ", ".join(shown)}
