"""Hostile chat templates: loops, giant texts, ways out of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.commands import MARK, chat
from tests.corpus.configs import rewrite

CALL = f"os.system('touch {MARK}')"
HOSTILE: dict[str, str] = {
    "loop": "{% for i in range(1000000000) %}x{% endfor %}",
    "nested_loops": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "silent_loops": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% set x = a + b %}{% endfor %}{% endfor %}",
    "giant": "{{ 'x' * 10000000000 }}",
    "giant_by_steps": "{% set a = 'x' * 100000 %}{% set b = a * 100000 %}{{ b }}",
    "giant_list": "{{ ([0] * 1000000000) | length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "shift": "{{ (7 ** 9999999) % 10 }}",
    "grows": "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}"
    "{% endfor %}{{ n.a }}",
    "list_grows": "{% set n = namespace(a=[1]) %}{% for i in range(60) %}"
    "{% set n.a = n.a + n.a %}{% endfor %}{{ n.a | length }}",
    "recursive_macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "branching_macro": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "recursive_loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "center": "{{ 'x' | center(10000000000) }}",
    "indent": "{{ 'x\n' * 100000 | int }}{{ 'x\ny' | indent(10000000000) }}",
    "ljust": "{{ 'x'.ljust(10000000000) }}",
    "zfill": "{{ 'x'.zfill(10000000000) }}",
    "format": "{{ '%9999999999d' % 5 }}",
    "format_method": "{{ '{:>9999999999}'.format(5) }}",
    "format_filter": "{{ '%9999999999s' | format('x') }}",
    "tojson": "{{ messages | tojson(indent=1000000000) }}",
    "replace": "{{ ('x' * 100000) | replace('x', 'x' * 100000) }}",
    "join": "{{ range(99999) | join('x' * 1000000) }}",
    "lipsum": "{{ lipsum(n=100000000) }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list | length }}",
    "strftime": "{{ strftime_now('%c' * 100000000) }}",
    "long_output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "attr": "{{ '' | attr('__class__') }}",
    "format_class": "{{ '{0.__class__}'.format(messages) }}{{ x.y }}",
    "cycler": "{{ cycler.__init__.__globals__." + CALL + " }}",
    "joiner": "{{ joiner.__init__.__globals__." + CALL + " }}",
    "namespace": "{{ namespace.__init__.__globals__." + CALL + " }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ " + CALL + " }}",
    "extends": "{% extends 'config.json' %}",
    "syntax": "{% for m in messages %}",
    "unclosed": "{{ messages",
    "unknown_filter": "{{ messages | nope }}",
    "unknown_test": "{{ messages is nope }}",
    "unknown_tag": "{% nope %}",
    "undefined_call": "{{ nope() }}",
    "undefined_attribute": "{{ messages[0].a.b }}",
    "raises": "{{ raise_exception('Conversation roles must alternate') }}",
    "raises_nothing": "{{ raise_exception('') }}",
    "raises_giant": "{{ raise_exception('x' * 10000000) }}",
    "divides": "{{ 1 // 0 }}",
    "index": "{{ messages[99].content }}{{ messages[99].content.x }}",
    "types": "{{ messages + 5 }}",
    "deep_brackets": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "deep_lists": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "deep_if": "{% if 1 %}" * 3_000 + "x" + "{% endif %}" * 3_000,
    "long_sum": "{{ " + "+".join(["1"] * 50_000) + " }}",
    "empty_output": "{# nothing #}",
    "surrogate": "{{ '\\ud800' }}{{ messages[9].x }}",
}
"""Refused."""
TYPES: dict[str, tuple[Any, Expected]] = {
    "5": (5, "sound"),
    "object": ({}, "ok"),
    "empty_list": ([], "ok"),
    "list_of_5": ([5], "sound"),
    "unnamed": ([{"template": "x"}], "sound"),
    "name_5": ([{"name": 5, "template": "x"}], "refused"),
    "template_5": ([{"name": "default", "template": 5}], "sound"),
    "true": (True, "sound"),
}
FILES: dict[str, bytes] = {
    "not_utf-8": b"\xff\xfe{{ messages }}",
    "zeros": bytes(1000),
    "giant": b"{#" + b"x" * 5_000_000,
}
"""chat_template.jinja."""


def cases() -> Iterator[Case]:
    yield _case("unchanged", None, "same")
    for key, template in HOSTILE.items():
        # an undefined value is an empty text, and so is the prompt
        named = () if key in ("globals", "attr", "empty_output") else ("template",)
        yield _case(key, template, "refused", *named)
    for key, (value, expected) in TYPES.items():
        yield _case(f"type/{key}", value, expected)
    for key, content in FILES.items():
        named = () if key == "zeros" else ("template",)  # a text like any other
        yield Case("folder", f"template/file/{key}", chat, _file(content), "chat", "refused",
                   named)  # fmt: skip


def _case(key: str, template: Any, expected: Expected, *names: str) -> Case:
    def make(folder: Path) -> None:
        if template is not None:
            file = folder / "tokenizer_config.json"
            rewrite(file, lambda values: {**values, "chat_template": template})

    answer = "chat/template"
    return Case("folder", f"template/{key}", chat, make, "chat", expected, names, answer=answer)


def _file(content: bytes) -> Any:
    return lambda folder: (folder / "chat_template.jinja").write_bytes(content)
