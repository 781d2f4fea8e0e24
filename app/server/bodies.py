"""Request bodies: one struct per route defines parsing, errors and the OpenAPI schema.

`null` means "not given" everywhere, as in OpenAI's API. Fields of other servers that would change
the reply are `refused` (unsupported.py); unknown fields are ignored, as in vLLM, and reported by
`unknown`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from app.server.errors import ApiError, bad_request, refused
from app.server.options import Limits
from app.server.unsupported import GUIDED, HARMLESS, SAMPLERS, TOOLS, Refused
from engine.errors import InvalidRequestError
from engine.messages import Prompt
from engine.sampling_params import MAX_LOGPROBS, PARAMETERS, Parameter, SamplingParams

MAX_REPLIES = 128
COMPLETION_MAX_TOKENS = 16  # where none is given, as in OpenAI's API and vLLM
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
MAX_NAMED_TOKENS = 1024
"""Limit of stop_token_ids and logit_bias: the engine checks them for every token."""

T = TypeVar("T")
Given = Mapping[str, Any]
TokenIds = list[int]
StopText = Annotated[str, Meta(max_length=MAX_STOP_CHARACTERS)]


class Body(Struct, kw_only=True):
    """Fields that a route takes."""

    refused: ClassVar[tuple[Refused, ...]] = ()
    ignored: ClassVar[frozenset[str]] = frozenset()

    model: Annotated[str | None, Meta(description="name under /v1/models; optional")] = None

    @classmethod
    def read(cls, given: Any) -> Self:
        """Raises ApiError 400 naming the field."""
        try:
            body = msgspec.convert(given, cls, str_keys=True)
        except (msgspec.ValidationError, OverflowError) as error:
            raise _fault(str(error), given) from None
        for one in cls.refused:
            one.check(given)
        body.check()
        return body

    @classmethod
    def unknown(cls, given: Given) -> list[str]:
        """The names of fields that `read` ignored."""
        without_effect = (one.name for one in cls.refused if not one.only_with)
        known = {*cls.__struct_fields__, *cls.ignored, *without_effect}
        return [name for name in given if name not in known]

    def check(self) -> None:
        """Checks beyond the types. Raises ApiError 400."""


_PARAM = re.compile(r"messages\[\d+\]\.\w+|\w+(?:\.\w+)?")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def _fault(words: str, given: Any) -> ApiError:
    """msgspec's error as OpenAI's: "Expected `int` >= 1 - at `$.n`" names the param n."""
    words, _, where = words.partition(" - at ")
    path = where.rpartition("`$")[2].strip(".`")
    if missing := _MISSING.match(words):
        path, words = f"{path}.{missing[1]}".strip("."), "required field is missing"
    words = words.replace("`", "")
    found = _PARAM.match(path)
    if found is None:
        return bad_request(f"Invalid request body: {words}.")
    param = found[0]
    subject = f"{param} is {_shown(given[param])}" if param in given else param
    return bad_request(f"{subject}: {words[0].lower()}{words[1:]}.", param)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# Messages ---------------------------------------------------------------------------------------

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("text", "input_text", "output_text")


class Part(Struct):
    type: Annotated[str, Meta(extra_json_schema={"enum": TEXT_PARTS})]
    text: str | None = None


class Message(Struct):
    role: Annotated[str, Meta(extra_json_schema={"enum": tuple(ROLES)})]
    content: str | list[Part] | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None

    def plain(self, where: str) -> dict[str, str]:
        """For the chat template. Raises ApiError 400 naming `where`."""
        if self.role not in ROLES:
            raise bad_request(
                f"{where}.role is {self.role[:40]!r}. Use one of {', '.join(ROLES)}.",
                f"{where}.role",
            )
        for name in ("tool_calls", "function_call", "audio"):
            if getattr(self, name):
                raise bad_request(f"{where}.{name} is not supported.", f"{where}.{name}")
        return {"role": ROLES[self.role], "content": self._text(f"{where}.content")}

    def _text(self, where: str) -> str:
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            raise bad_request(f"{where} must be a string or a list of text parts.", where)
        for part in self.content:
            if part.type not in TEXT_PARTS:
                raise bad_request(
                    f"{where} has a part of type {part.type[:40]!r}. Only text is supported.", where
                )
            if part.text is None:
                raise bad_request(f"{where} has a part without a text field.", where)
        return "\n".join(part.text or "" for part in self.content)


Messages = Annotated[
    list[Message], Meta(min_length=1, description='objects with "role" and "content"')
]


def plain_messages(messages: Sequence[Message]) -> tuple[dict[str, str], ...]:
    """Messages with "role" and "content" alone. Raises ApiError 400 naming the message."""
    return tuple(message.plain(f"messages[{i}]") for i, message in enumerate(messages))


# Replies ----------------------------------------------------------------------------------------

_TYPES: dict[str, Any] = {
    "stop": StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)],
    "stop_token_ids": Annotated[TokenIds, Meta(max_length=MAX_NAMED_TOKENS)],
    "logit_bias": Annotated[dict[int, float], Meta(max_length=MAX_NAMED_TOKENS)],
}
_SAMPLING = [name for name in PARAMETERS if name not in ("max_tokens", "logprobs")]
"""The same in every body; those two differ by route."""


def _field(one: Parameter) -> tuple[str, Any, None]:
    low = {"gt" if one.excludes_minimum else "ge": one.minimum}
    limits: Any = {name: v for name, v in {**low, "le": one.maximum}.items() if v is not None}
    kind: Any = Annotated[_TYPES.get(one.name, one.type), Meta(**limits)]
    return one.name, Annotated[kind | None, Meta(description=one.help)], None


_SamplingBody: Any = msgspec.defstruct(
    "_SamplingBody", [_field(PARAMETERS[name]) for name in _SAMPLING], bases=(Body,), kw_only=True
)

_REFUSED = (
    *GUIDED,
    *SAMPLERS,
    Refused("prompt_logprobs", "logprobs are returned for generated tokens only."),
    Refused("truncate_prompt_tokens", "truncate the prompt before sending it."),
    Refused("skip_special_tokens", "special tokens are always stripped.", (True,)),
    Refused("spaces_between_special_tokens", "special tokens are always stripped.", (True,)),
    Refused("logits_processors", "the server does not run client code.", ([],)),
    Refused("cache_salt", "all requests share one prefix cache; "
            "disable it with --no-enable-prefix-caching."),
)  # fmt: skip


class StreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ReplyBody(_SamplingBody, kw_only=True):  # type: ignore[call-arg]
    """Fields that chat and text completions share."""

    ignored = HARMLESS

    max_tokens: Annotated[int | None, Meta(description="maximum tokens per reply")] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_REPLIES)] | None, Meta(description="replies per prompt")
    ] = None
    stream: Annotated[bool | None, Meta(description="send server-sent events")] = None
    stream_options: StreamOptions | None = None
    return_token_ids: Annotated[
        bool | None, Meta(description="report the token ids of prompt and reply")
    ] = None

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream: true.", "stream_options")

    @property
    def num_replies(self) -> int:
        return self.n or 1

    @property
    def usage_at_end(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_always(self) -> bool:
        options = self.stream_options
        return self.usage_at_end and bool(options and options.continuous_usage_stats)

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Alternatives reported per token; None: no logprobs."""

    @abstractmethod
    def prompts(self, limits: Limits) -> Sequence[Prompt]:
        """Raises ApiError 400."""

    def limit(self) -> int | None:
        """Tokens per reply that the client asks for."""
        return self.max_tokens

    def sampling(self, limits: Limits) -> SamplingParams:
        """Raises ApiError 400 naming the parameter."""
        max_tokens, most = self.limit(), limits.max_output_tokens
        if most is not None:
            if max_tokens is not None and max_tokens > most:
                raise bad_request(
                    f"max_tokens is {max_tokens:,}. The limit is {most:,} per reply.",
                    "max_tokens",
                )
            max_tokens = max_tokens or most
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        try:
            return SamplingParams(**given, max_tokens=max_tokens, logprobs=self.num_logprobs)
        except InvalidRequestError as error:
            raise refused(error.info()) from None


PromptField = Annotated[
    str | Annotated[list[str | int | TokenIds], Meta(min_length=1)],
    Meta(description="text, texts, token ids, or lists of token ids"),
]


class CompletionBody(ReplyBody, kw_only=True):  # type: ignore[call-arg]
    """/v1/completions"""

    refused = (
        *_REFUSED,
        Refused("echo", "replies never include the prompt.", (False,)),
        Refused("suffix", "fill-in-the-middle is not implemented.", ("",)),
        Refused("add_special_tokens", "to omit special tokens, send token ids.", (True,)),
        Refused("prompt_embeds", "send text or token ids."),
    )

    prompt: PromptField
    logprobs: Annotated[int | None, Meta(description="alternatives to report per token")] = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def limit(self) -> int | None:
        return COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def check(self) -> None:
        super().check()
        if not isinstance(self.prompt, str) and len(set(map(type, self.prompt))) > 1:
            raise bad_request("prompt must not mix strings, token ids and lists.", "prompt")

    def prompts(self, limits: Limits) -> Sequence[Prompt]:
        prompt: Any = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            prompt = [prompt]
        if len(prompt) > limits.max_prompts:
            raise bad_request(
                f"prompt has {len(prompt):,} entries. Send at most {limits.max_prompts:,}.",
                "prompt",
            )
        return [one if isinstance(one, str) else tuple(one) for one in prompt]


class ChatBody(ReplyBody, kw_only=True):  # type: ignore[call-arg]
    """/v1/chat/completions"""

    refused = (
        *_REFUSED,
        *TOOLS,
        Refused("modalities", "only text output is supported.", (["text"],)),
        Refused("audio", "only text output is supported."),
        Refused("prediction", "enable speculative decoding on the server instead."),
        Refused("web_search_options", "web search is not available."),
        Refused("documents", "include documents in a message instead.", ([],)),
        Refused("echo", "replies never include the prompt.", (False,)),
        Refused("add_generation_prompt", "the generation prompt is always added.", (True,)),
        Refused("continue_final_message", "send the full prompt to /v1/completions.", (False,)),
        Refused("chat_template", "the server always uses the model's chat template."),
        Refused("chat_template_kwargs", "the chat template takes no extra arguments.", ({},)),
        Refused("add_special_tokens", "the chat template already adds special tokens.", (False,)),
    )

    messages: Messages
    max_completion_tokens: Annotated[int | None, Meta(description="overrides max_tokens")] = None
    logprobs: Annotated[bool | None, Meta(description="report logprobs")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description="alternatives per token; needs logprobs"),
    ] = None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def limit(self) -> int | None:
        own = self.max_completion_tokens
        return self.max_tokens if own is None else own

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs: true.", "top_logprobs")

    def prompts(self, limits: Limits) -> Sequence[Prompt]:
        return [plain_messages(self.messages)]


# Tokens -----------------------------------------------------------------------------------------


class TokenizeBody(Body, kw_only=True):
    """/tokenize"""

    refused = (
        Refused("add_generation_prompt", "the generation prompt is always added.", (True,)),
        Refused("continue_final_message", "send the prompt as text.", (False,)),
        Refused("chat_template", "the server always uses the model's chat template."),
        Refused("chat_template_kwargs", "the chat template takes no extra arguments.", ({},)),
        *TOOLS[:1],
    )

    prompt: Annotated[str | None, Meta(description="text; or give messages")] = None
    messages: Annotated[Messages | None, Meta(description="for the chat template")] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="with the prompt's special tokens; default true")
    ] = None
    return_token_strs: Annotated[bool | None, Meta(description="report each token as text")] = None

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("Provide either prompt or messages.", "prompt")


class DetokenizeBody(Body, kw_only=True):
    """/detokenize"""

    tokens: TokenIds
