"""Requests to other servers: SamplingParams as the fields of each API.

Servers have defaults of their own (llama.cpp a top_k of 40, vLLM those of the model's
generation_config): where a dialect takes a field it is sent, also where it changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from app.clients.errors import TargetError
from app.clients.target import Dialect
from engine.messages import ChatMessages, Prompt
from engine.sampling_params import PARAMETERS, SamplingParams


class Field(NamedTuple):
    """A field of SamplingParams as a dialect knows it. `value`: what to send for it; None: nothing.
    is_always_sent: also where it changes nothing."""

    name: str
    value: Callable[[Any], Any] = lambda value: value
    is_always_sent: bool = True


def _sent(*names: str) -> dict[str, Field]:
    return {name: Field(name) for name in names}


def _if_asked(*names: str) -> dict[str, Field]:
    return {name: Field(name, is_always_sent=False) for name in names}


_keyed_by_text = lambda biases: {str(token): value for token, value in biases.items()}
_BIAS = {"logit_bias": Field("logit_bias", _keyed_by_text, is_always_sent=False)}

_OPENAI = {
    **_if_asked(*(name for name, parameter in PARAMETERS.items() if parameter.in_openai)),
    **_sent("temperature"),
    **_BIAS,
}
_VLLM = {
    **_if_asked(*PARAMETERS),
    **_sent(
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty",
    ),
    "top_k": Field("top_k", lambda k: k if k > 0 else -1),
    **_BIAS,
}  # fmt: skip

TAKEN: Mapping[Dialect, Mapping[str, Field]] = {
    Dialect.OPENAI: _OPENAI,
    Dialect.VLLM: _VLLM,
    Dialect.INFERDECK: _VLLM,
    # sglang/srt/entrypoints/openai/protocol.py: a stop text is kept by not trimming it
    Dialect.SGLANG: {
        **_VLLM,
        "include_stop_str_in_output": Field("no_stop_trim", is_always_sent=False),
    },
    # tensorrt_llm/serve/openai_protocol.py refuses what it does not know
    Dialect.TENSORRT_LLM: {
        **_OPENAI,
        **_sent("top_p"),
        **_if_asked(
            "top_k", "min_p", "repetition_penalty", "stop_token_ids", "min_tokens", "ignore_eos",
            "include_stop_str_in_output",
        ),
    },
    # tools/server: top_k 0 keeps all, its repetition penalty has a name of its own
    Dialect.LLAMA_CPP: {
        **_OPENAI,
        **_sent("top_p", "min_p", "presence_penalty", "frequency_penalty"),
        "top_k": Field("top_k", lambda k: max(k, 0)),
        "repetition_penalty": Field("repeat_penalty"),
        "ignore_eos": Field("ignore_eos", is_always_sent=False),
    },
    # router/src/lib.rs: ChatRequest says of logit_bias that it is not used, and its presence
    # penalty is another formula
    Dialect.TGI: {
        name: field
        for name, field in _OPENAI.items()
        if name not in ("logit_bias", "presence_penalty")
    },
}  # fmt: skip


class Fields(NamedTuple):
    """The fields of a body, and the names of what was asked for and cannot be sent."""

    body: dict[str, Any]
    not_taken: tuple[str, ...]


def sampling_fields(params: SamplingParams, dialect: Dialect, *, is_chat: bool) -> Fields:
    taken = TAKEN[dialect]
    body: dict[str, Any] = {}
    missing = []
    for name, parameter in PARAMETERS.items():
        if name == "logprobs":
            continue
        value = getattr(params, name)
        is_neutral = parameter.is_neutral(value)
        field = taken.get(name)
        if field is None:
            if not is_neutral:
                missing.append(name)
        elif field.is_always_sent or not is_neutral:
            value = list(value) if isinstance(value, tuple) else value
            body[field.name] = field.value(value)
    if "repeat_penalty" in body and params.repetition_penalty != 1.0:
        body["repeat_last_n"] = -1  # of all tokens, as everywhere else
    if params.logprobs is not None:
        body |= _logprobs(params.logprobs, is_chat)
    return Fields(body, tuple(missing))


def _logprobs(count: int, is_chat: bool) -> dict[str, Any]:
    if not is_chat:
        return {"logprobs": count}
    return {"logprobs": True, "top_logprobs": count} if count else {"logprobs": True}


def remark(dialect: Dialect, names: tuple[str, ...]) -> str:
    """Names parameters that were not sent; "" when all were."""
    if not names:
        return ""
    return f"{dialect} does not support {', '.join(names)}; omitted from the request."


TAKES_IDS = frozenset(
    (Dialect.INFERDECK, Dialect.VLLM, Dialect.SGLANG, Dialect.TENSORRT_LLM, Dialect.LLAMA_CPP)
)
"""Who takes token ids as a prompt of /v1/completions."""

COUNTS_ALWAYS = frozenset((Dialect.INFERDECK, Dialect.VLLM, Dialect.SGLANG, Dialect.TENSORRT_LLM))
"""Who reports the number of tokens with every piece (continuous_usage_stats)."""

TELLS_IDS = frozenset((Dialect.INFERDECK, Dialect.VLLM))
"""Who reports token ids when asked to (return_token_ids)."""

UNBOUNDED = 2048
"""Tokens of a completion whose limit is the context, where that is not known: servers write 16
where nothing is said."""


@dataclass(frozen=True, slots=True)
class Call:
    """`path` below /v1. remark: names the parameters that the server does not take."""

    path: str
    body: dict[str, Any]
    remark: str = ""

    @property
    def is_chat(self) -> bool:
        return self.path == "chat/completions"


def make_call(
    dialect: Dialect,
    model: str,
    prompt: Prompt,
    params: SamplingParams,
    max_model_len: int | None = None,
) -> Call:
    """Raises TargetError for a prompt that the dialect does not take."""
    is_chat = not isinstance(prompt, str) and not (prompt and isinstance(prompt[0], int))
    fields = sampling_fields(params, dialect, is_chat=is_chat)
    usage = {"include_usage": True}
    if dialect in COUNTS_ALWAYS:
        usage["continuous_usage_stats"] = True
    body = {"model": model, "stream": True, "stream_options": usage, **fields.body}
    if dialect in TELLS_IDS:
        body["return_token_ids"] = True
    if is_chat:
        messages = cast(ChatMessages, prompt)
        body["messages"] = [dict(message) for message in messages]
        return Call("chat/completions", body, remark(dialect, fields.not_taken))
    if not isinstance(prompt, str) and dialect not in TAKES_IDS:
        raise TargetError(f"{dialect} does not accept token ids as a prompt.", "Send text instead.")
    body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    if "max_tokens" not in body:
        is_known = max_model_len is not None and not isinstance(prompt, str)
        body["max_tokens"] = max((max_model_len or 0) - len(prompt), 1) if is_known else UNBOUNDED
    return Call("completions", body, remark(dialect, fields.not_taken))
