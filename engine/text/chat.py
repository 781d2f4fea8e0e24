"""Chat messages to text: by a checkpoint's chat template, or as a plain transcript.

Templates are written by strangers. They render in a process of their own (see `worker`); here is
what they may call, the same as in transformers, whose import takes a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from engine.errors import InvalidRequestError

Messages = Sequence[Mapping[str, Any]]
_MAX_QUOTED = 500
_REASONING = ("reasoning_content", "thinking", "reasoning")


def checked(messages: Messages) -> Messages:
    """The messages, each with a role and a text; raises InvalidRequestError."""
    if not messages:
        raise InvalidRequestError("The conversation has no messages.", "Add a message.")
    for i, message in enumerate(messages):
        if not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InvalidRequestError(
                f"Message {i + 1} has no valid role or content.",
                'Each message needs a "role" string and a "content" string.',
            )
    return messages


def plain_transcript(messages: Messages) -> str:
    """The conversation as text that ends where the assistant speaks next.

    System messages stand above the turns, without a name.
    """
    names = {"user": "User: ", "assistant": "Assistant: ", "system": ""}
    parts = []
    for message in messages:
        name = names.get(message["role"], f"{message['role'].capitalize()}: ")
        end = "\n\n" if message["role"] == "system" else "\n"
        parts.append(f"{name}{message['content'].strip()}{end}")
    return "".join(parts) + "Assistant:"


def by_template(template: str, special_tokens: Mapping[str, str], messages: Messages) -> str:
    """The prompt whose continuation is the assistant's next message. A template that takes no
    system prompt gets it before the first user message."""
    system = [m["content"].strip() for m in messages if m["role"] == "system"]
    try:
        text = _render(template, special_tokens, messages)
        refused = any(content not in text for content in system)  # some drop it without a word
    except InvalidRequestError:
        if not system:
            raise
        refused = True
    return _render(template, special_tokens, _merge_system(messages)) if refused else text


def _render(template: str, special_tokens: Mapping[str, str], messages: Messages) -> str:
    try:
        return str(
            _compiled(template).render(
                messages=[_message(m) for m in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **special_tokens,
            )
        )
    except MemoryError:
        raise
    except Exception as error:  # whatever a template written by strangers may raise
        text = str(error)[:_MAX_QUOTED] or "no reason given."
        raise InvalidRequestError(
            f"The chat template rejected this conversation: {text}",
            "Alternate user and assistant messages, starting with a user message.",
        ) from None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates find it: without keys that are None, and reasoning under the names
    that they know."""
    known = {key: value for key, value in message.items() if value is not None}
    reasoning = next((known[name] for name in _REASONING if name in known), None)
    if reasoning is None:
        return known
    return {"thinking": reasoning, **known, "reasoning_content": reasoning}


def _merge_system(messages: Messages) -> list[dict[str, Any]]:
    """The conversation with its system messages before the text of the first user message."""
    system = "\n\n".join(m["content"].strip() for m in messages if m["role"] == "system")
    merged = [dict(m) for m in messages if m["role"] != "system"]
    for message in merged:
        if message["role"] == "user":
            message["content"] = f"{system}\n\n{message['content']}"
            return merged
    return [{"role": "user", "content": system}, *merged]


@lru_cache(maxsize=4)
def _compiled(template: str) -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """{% generation %} marks what the assistant wrote: its body is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_body")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> Any:
            return caller()

    class PlainNamespace(Namespace):
        """A namespace without the names by which Python's own objects are reached."""

        def __init__(*args: Any, **values: Any) -> None:  # a value may be called "self"
            for name in dict(*args[1:], **values):
                _check(name)
            Namespace.__init__(*args, **values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check(name)
            super().__setitem__(name, value)

    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}")

    class PlainDict:
        """`dict` without the attributes of a class."""

        def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
            return dict(*args, **values)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
        sort_keys: bool = False,
    ) -> str:  # fmt: skip
        options = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    known = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    known.filters["tojson"] = tojson
    known.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": PlainDict(),
        "namespace": PlainNamespace,
    }
    return known.from_string(template)
