"""The fields of request bodies, declared once each: parsing, messages and the OpenAPI schema come
from here. `null` is "not given" everywhere, as in OpenAI's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.server.errors import bad_request

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value. `read` returns it or raises ValueError; `words` say what is wanted."""

    words: str
    schema: Schema
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    help: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A field of other servers that would change the reply and is not honoured: its harmless
    values are let through, any other is refused with `why`."""

    name: str
    why: str
    harmless: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """The fields that a route takes. `ignored` are known and change nothing; others that are not
    known are ignored as well, and reported by `unknown`."""

    fields: tuple[Field, ...]
    required: frozenset[str] = frozenset()
    refused: tuple[Refused, ...] = ()
    ignored: frozenset[str] = frozenset()
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(f.name for f in self.fields))

    def read(self, given: Any) -> dict[str, Any]:
        """The values that were given, by name. Raises ApiError 400 naming the field."""
        if not isinstance(given, dict):
            raise bad_request(f"The body is {_kind_of(given)}; it must be a JSON object.")
        values = {}
        for one in self.fields:
            value = given.get(one.name)
            if value is None:
                if one.name in self.required:
                    raise bad_request(
                        f"{one.name} is missing; it must be {one.kind.words}.", one.name
                    )
                continue
            try:
                values[one.name] = one.kind.read(value)
            except (ValueError, OverflowError) as error:
                detail = f" ({error})" if str(error) else ""
                raise bad_request(
                    f"{one.name} is {_shown(value)}; it must be {one.kind.words}{detail}.", one.name
                ) from None
        for refused in self.refused:
            value = given.get(refused.name)
            if value is not None and not any(_same(value, one) for one in refused.harmless):
                raise bad_request(f"{refused.name} is not supported: {refused.why}", refused.name)
        return values

    def unknown(self, given: Mapping[str, Any]) -> list[str]:
        known = self.names | self.ignored | {one.name for one in self.refused}
        return [name for name in given if name not in known]

    def schema(self) -> dict[str, Any]:
        properties = {}
        for one in self.fields:
            schema = dict(one.kind.schema)
            if one.name not in self.required:
                schema = {"anyOf": [schema, {"type": "null"}]}
            properties[one.name] = {**schema, "description": one.help} if one.help else schema
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(self.required),
        }


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# -- kinds ------------------------------------------------------------------------------------


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise ValueError
    return int(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError
        return tuple(map(read, value))

    return read_all


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _list_of(_text)(value)


def _bias(value: Any) -> dict[int, float]:
    return {int(key): _number(bias) for key, bias in _object(value).items()}


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise ValueError
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) for item in value):
        return tuple(map(_list_of(_integer), value))
    return (_list_of(_integer)(value),)


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_INTEGER: Schema = {"type": "integer"}
_STRING: Schema = {"type": "string"}

NUMBER = Kind("a number", {"type": "number"}, _number)
INTEGER = Kind("a whole number", _INTEGER, _integer)
BOOLEAN = Kind("true or false", {"type": "boolean"}, _boolean)
TEXT = Kind("a text", _STRING, _text)
OBJECT = Kind("an object", {"type": "object"}, _object)
TEXTS = Kind("a text or a list of texts", {"anyOf": [_STRING, _array(_STRING)]}, _texts)
TOKEN_IDS = Kind("a list of token ids", _array(_INTEGER), _list_of(_integer))
OBJECTS = Kind("a list of objects", _array({"type": "object"}), _list_of(_object))
BIASES = Kind(
    "an object of token ids and numbers",
    {"type": "object", "additionalProperties": {"type": "number"}},
    _bias,
)
PROMPTS = Kind(
    "a text, a list of texts, token ids, or a list of lists of token ids, and not empty",
    {"anyOf": [_STRING, _array(_STRING), _array(_INTEGER), _array(_array(_INTEGER))]},
    _prompts,
)


def choose(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Those of `names` that were given."""
    return {name: values[name] for name in names if name in values}


SAMPLING = (
    Field("temperature", NUMBER, "0 is greedy; default 1"),
    Field("top_p", NUMBER, "keep the fewest tokens whose probabilities add up to it"),
    Field("top_k", INTEGER, "keep the most probable tokens; 0 or -1 keeps all"),
    Field("min_p", NUMBER, "keep tokens at least so many times as probable as the best"),
    Field("repetition_penalty", NUMBER, "above 1: tokens seen before become less probable"),
    Field("presence_penalty", NUMBER, "off the logit of a token generated before, once"),
    Field("frequency_penalty", NUMBER, "off the logit for each time the token was generated"),
    Field("logit_bias", BIASES, "added to the logits of tokens"),
    Field("seed", INTEGER, "with it the reply is the same whatever runs beside it"),
    Field("min_tokens", INTEGER, "no end before so many tokens"),
    Field("stop", TEXTS, "end before one of these texts"),
    Field("stop_token_ids", TOKEN_IDS, "end at one of these tokens"),
    Field("ignore_eos", BOOLEAN, "go on after the model's end of text"),
    Field("include_stop_str_in_output", BOOLEAN, "keep the stop text in the reply"),
)
"""Fields of SamplingParams under the same names."""

SAMPLING_NAMES = tuple(field.name for field in SAMPLING)

_COMMON = (
    Field("model", TEXT, "the name under /v1/models; may be left out"),
    *SAMPLING,
    Field("max_tokens", INTEGER, "most tokens of a reply"),
    Field("n", INTEGER, "replies to each prompt"),
    Field("stream", BOOLEAN, "send the reply as server-sent events while it is written"),
    Field("stream_options", OBJECT, "include_usage, continuous_usage_stats"),
    Field("return_token_ids", BOOLEAN, "report the token ids of prompt and reply"),
)

_IGNORED = frozenset(
    (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "parallel_tool_calls", "reasoning_effort", "verbosity",
        "request_id", "priority",
    )
)  # fmt: skip
"""Fields of OpenAI and vLLM that do not change what a reply is here."""

_GUIDED = "replies cannot be held to a grammar or schema."
_TOOLS = "tools are not called here. Describe them in the prompt instead."

_REFUSED = (
    Refused("response_format", _GUIDED, ({"type": "text"},)),
    *(Refused(name, _GUIDED) for name in (
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    )),
    Refused("use_beam_search", "replies are sampled.", (False,)),
    Refused("best_of", "ask for n replies and choose.", (1,)),
    Refused("length_penalty", "it belongs to beam search.", (1, 1.0)),
    Refused("bad_words", "give logit_bias for their tokens.", ([],)),
    Refused("allowed_token_ids", "give logit_bias for the others."),
    Refused("prompt_logprobs", "log probabilities are those of the reply."),
    Refused("truncate_prompt_tokens", "shorten the prompt."),
    Refused("skip_special_tokens", "special tokens are never part of the text.", (True,)),
    Refused("spaces_between_special_tokens", "special tokens are never part of the text.", (True,)),
    Refused("logits_processors", "code of requests is not run.", ([],)),
    Refused("cache_salt", "prefixes are shared among all requests; "
            "start the server with --no-enable-prefix-caching."),
)  # fmt: skip

COMPLETION = Body(
    fields=(
        Field("prompt", PROMPTS, "a text, texts, token ids, or lists of token ids"),
        *_COMMON,
        Field("logprobs", INTEGER, "report log probabilities, with so many alternatives"),
    ),
    required=frozenset({"prompt"}),
    refused=(
        *_REFUSED,
        Refused("echo", "the reply comes without its prompt; put it before yourself.", (False,)),
        Refused("suffix", "text is continued, not filled in.", ("",)),
        Refused("add_special_tokens", "send token ids for a prompt without them.", (True,)),
        Refused("prompt_embeds", "prompts are texts or token ids."),
    ),
    ignored=_IGNORED,
)

CHAT = Body(
    fields=(
        Field("messages", OBJECTS, 'objects with "role" and "content"'),
        *_COMMON,
        Field("max_completion_tokens", INTEGER, "goes before max_tokens"),
        Field("logprobs", BOOLEAN, "report log probabilities"),
        Field("top_logprobs", INTEGER, "alternatives beside each token, with logprobs"),
    ),
    required=frozenset({"messages"}),
    refused=(
        *_REFUSED,
        Refused("tools", _TOOLS, ([],)),
        Refused("tool_choice", _TOOLS, ("none", "auto")),
        Refused("functions", _TOOLS, ([],)),
        Refused("function_call", _TOOLS, ("none", "auto")),
        Refused("modalities", "replies are text.", (["text"],)),
        Refused("audio", "replies are text."),
        Refused("prediction", "start the engine with speculative decoding instead."),
        Refused("web_search_options", "nothing is looked up."),
        Refused("documents", "put them into a message.", ([],)),
        Refused("echo", "the reply comes without its prompt.", (False,)),
        Refused("add_generation_prompt", "the reply is the assistant's next message.", (True,)),
        Refused("continue_final_message", "send the prompt to /v1/completions.", (False,)),
        Refused("chat_template", "the model's own is used."),
        Refused("chat_template_kwargs", "the model's own template is used as it is.", ({},)),
        Refused("add_special_tokens", "the chat template writes them.", (False,)),
    ),
    ignored=_IGNORED,
)

TOKENIZE = Body(
    fields=(
        Field("model", TEXT),
        Field("prompt", TEXT, "a text, or give messages"),
        Field("messages", OBJECTS, "for the chat template"),
        Field("add_special_tokens", BOOLEAN, "those before a prompt; default true"),
        Field("return_token_strs", BOOLEAN, "report each token as text"),
    ),
    refused=(
        Refused("add_generation_prompt", "the reply is the assistant's next message.", (True,)),
        Refused("continue_final_message", "send the prompt as text.", (False,)),
        Refused("chat_template", "the model's own is used."),
        Refused("chat_template_kwargs", "the model's own template is used as it is.", ({},)),
        Refused("tools", _TOOLS, ([],)),
    ),
)

DETOKENIZE = Body(
    fields=(Field("model", TEXT), Field("tokens", TOKEN_IDS)), required=frozenset({"tokens"})
)
