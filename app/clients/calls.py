"""Requests to other servers: SamplingParams as the fields of each API.

Servers have defaults of their own (llama.cpp a top_k of 40, vLLM those of the model's
generation_config): every field that a server accepts is sent, even where it changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from app.clients.errors import TargetError
from app.clients.target import ServerType
from engine.messages import ChatMessages, Prompt
from engine.sampling_params import PARAMETERS, SamplingParams


class Field(NamedTuple):
    """A field of SamplingParams in one server's terms. `value`: what to send; None: omit it.
    is_always_sent: even if it changes nothing."""

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

TAKEN: Mapping[ServerType, Mapping[str, Field]] = {
    ServerType.OPENAI: _OPENAI,
    ServerType.VLLM: _VLLM,
    ServerType.INFERDECK: _VLLM,
    ServerType.ROUTER: _VLLM,  # it passes on what it does not know
    # sglang/srt/entrypoints/openai/protocol.py: a stop text is kept by not trimming it
    ServerType.SGLANG: {
        **_VLLM,
        "include_stop_str_in_output": Field("no_stop_trim", is_always_sent=False),
    },
    # tensorrt_llm/serve/openai_protocol.py refuses what it does not know
    ServerType.TENSORRT_LLM: {
        **_OPENAI,
        **_sent("top_p"),
        **_if_asked(
            "top_k", "min_p", "repetition_penalty", "stop_token_ids", "min_tokens", "ignore_eos",
            "include_stop_str_in_output",
        ),
    },
    # tools/server: top_k 0 keeps all, its repetition penalty has a name of its own
    ServerType.LLAMA_CPP: {
        **_OPENAI,
        **_sent("top_p", "min_p", "presence_penalty", "frequency_penalty"),
        "top_k": Field("top_k", lambda k: max(k, 0)),
        "repetition_penalty": Field("repeat_penalty"),
        "ignore_eos": Field("ignore_eos", is_always_sent=False),
    },
    # router/src/lib.rs: ChatRequest documents logit_bias as unused, and its presence
    # penalty is another formula
    ServerType.TGI: {
        name: field
        for name, field in _OPENAI.items()
        if name not in ("logit_bias", "presence_penalty")
    },
}  # fmt: skip


class Fields(NamedTuple):
    """Fields of a request body, and the names of parameters that cannot be sent."""

    body: dict[str, Any]
    not_taken: tuple[str, ...]


def sampling_fields(params: SamplingParams, server_type: ServerType, *, is_chat: bool) -> Fields:
    taken = TAKEN[server_type]
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


def remark(server_type: ServerType, names: tuple[str, ...]) -> str:
    """Names parameters that were not sent; "" when all were."""
    if not names:
        return ""
    return f"{server_type} does not support {', '.join(names)}; omitted from the request."


TAKES_IDS = frozenset(ServerType) - {ServerType.TGI, ServerType.OPENAI}
"""Servers that accept token ids as a prompt of /v1/completions."""

COUNTS_ALWAYS = TAKES_IDS - {ServerType.LLAMA_CPP, ServerType.ROUTER}
"""Servers that report the token count with every chunk (continuous_usage_stats)."""

RETURNS_IDS = frozenset((ServerType.INFERDECK, ServerType.VLLM, ServerType.ROUTER))
"""Servers that report token ids on request (return_token_ids)."""

CONTINUES: Mapping[ServerType, Mapping[str, Any]] = {
    # vllm/entrypoints/openai/protocol.py, sglang/srt/entrypoints/openai/protocol.py
    ServerType.VLLM: {"continue_final_message": True, "add_generation_prompt": False},
    ServerType.SGLANG: {"continue_final_message": True},
    ServerType.LLAMA_CPP: {},  # tools/server/README.md: it prefills a last assistant message
}
"""Servers that continue a last message of the assistant, and the parameters that request it."""

UNBOUNDED = 2048
"""max_tokens of a completion without a limit, if the context length is unknown: the servers'
default is 16."""


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
    server_type: ServerType,
    model: str,
    prompt: Prompt,
    params: SamplingParams,
    max_model_len: int | None = None,
) -> Call:
    """Raises TargetError for a prompt that this type of server does not accept."""
    is_chat = not isinstance(prompt, str) and not (prompt and isinstance(prompt[0], int))
    fields = sampling_fields(params, server_type, is_chat=is_chat)
    usage = {"include_usage": True}
    if server_type in COUNTS_ALWAYS:
        usage["continuous_usage_stats"] = True
    body = {"model": model, "stream": True, "stream_options": usage, **fields.body}
    if server_type in RETURNS_IDS:
        body["return_token_ids"] = True
    if is_chat:
        messages = cast(ChatMessages, prompt)
        body["messages"] = [dict(message) for message in messages]
        if messages[-1]["role"] == "assistant":
            body |= CONTINUES.get(server_type, {})
        return Call("chat/completions", body, remark(server_type, fields.not_taken))
    if not isinstance(prompt, str) and server_type not in TAKES_IDS:
        cause = f"{server_type} does not accept token ids as a prompt."
        raise TargetError(cause, "Send text instead.")
    body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    if "max_tokens" not in body:
        is_known = max_model_len is not None and not isinstance(prompt, str)
        body["max_tokens"] = max((max_model_len or 0) - len(prompt), 1) if is_known else UNBOUNDED
    return Call("completions", body, remark(server_type, fields.not_taken))
