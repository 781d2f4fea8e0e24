"""Fields of other servers' APIs that this one does not have.

    SAMPLERS, GUIDED, TOOLS     would change the text: refused, naming the field; ignored, and
                                reported, where another field turns them off
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
    """An unsupported field. `harmless`: values without an effect, which pass. `only_with`: it has
    no effect either unless one of these fields has."""

    name: str
    why: str
    harmless: tuple[Any, ...] = ()
    only_with: tuple[Refused, ...] = ()

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises ApiError 400."""
        if self.has_effect(given):
            raise bad_request(f"{self.name} is not supported: {self.why}", self.name)

    def has_effect(self, given: Mapping[str, Any]) -> bool:
        value = given.get(self.name)
        if value is None:
            return False
        if any(_kind(value) is _kind(one) and value == one for one in self.harmless):
            return False
        return not self.only_with or any(one.has_effect(given) for one in self.only_with)


def _kind(value: Any) -> type:
    """One for both kinds of numbers: clients send 1.0 for 1."""
    return float if type(value) is int else type(value)


_WITHOUT = "set temperature, top_p, top_k or min_p instead."
_PENALTY = "set repetition_penalty, presence_penalty or frequency_penalty instead."

_DRY = Refused("dry_multiplier", _WITHOUT, (0,))
_XTC = Refused("xtc_probability", _WITHOUT, (0,))
_MIROSTAT = tuple(Refused(name, _WITHOUT, (0,)) for name in ("mirostat", "mirostat_mode"))
_RANGE = Refused("dynatemp_range", _WITHOUT, (0,))
_DYNAMIC = Refused("dynamic_temperature", _WITHOUT, (False,))
_SMOOTHING = Refused("smoothing_factor", _WITHOUT, (0,))
_GUIDANCE = Refused("guidance_scale", _WITHOUT, (1,))
_PENALTIES = (
    *(Refused(name, _PENALTY, (1,)) for name in ("repetition_penalty", "repeat_penalty")),
    *(Refused(name, _PENALTY, (0,)) for name in ("presence_penalty", "frequency_penalty")),
)

SAMPLERS = (
    _DRY, _XTC, *_MIROSTAT, _RANGE, _DYNAMIC, _SMOOTHING, _GUIDANCE,
    *(Refused(name, _WITHOUT, (1,)) for name in ("typical_p", "typical", "tfs", "tfs_z")),
    *(Refused(name, _WITHOUT, (0,)) for name in (
        "top_a", "epsilon_cutoff", "eta_cutoff", "nsigma", "adaptive_target", "penalty_alpha",
    )),
    *(Refused(name, _WITHOUT, (0, -1)) for name in ("top_n_sigma",)),
    *(Refused(name, _WITHOUT, (0, 1)) for name in ("min_keep",)),
    *(Refused(name, _WITHOUT, only_with=(_DRY,)) for name in (
        "dry_base", "dry_allowed_length", "dry_range", "dry_penalty_last_n",
        "dry_sequence_breakers",
    )),
    Refused("xtc_threshold", _WITHOUT, only_with=(_XTC,)),
    *(Refused(name, _WITHOUT, only_with=_MIROSTAT) for name in ("mirostat_tau", "mirostat_eta")),
    *(Refused(name, _WITHOUT, only_with=(_DYNAMIC,)) for name in ("dynatemp_low", "dynatemp_high")),
    Refused("dynatemp_exponent", _WITHOUT, only_with=(_RANGE, _DYNAMIC)),
    Refused("smoothing_curve", _WITHOUT, only_with=(_SMOOTHING,)),
    Refused("negative_prompt", _WITHOUT, only_with=(_GUIDANCE,)),
    *(Refused(name, _PENALTY, (1,)) for name in (
        "repeat_penalty", "rep_pen", "encoder_repetition_penalty",
    )),
    *(Refused(name, _PENALTY, (0,)) for name in ("no_repeat_ngram_size",)),
    *(Refused(name, _PENALTY, (-1,), only_with=_PENALTIES) for name in (
        "repeat_last_n", "repetition_penalty_range",
    )),
    *(Refused(name, "set max_tokens instead.", (-1,)) for name in (
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
