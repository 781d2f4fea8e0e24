"""Token ids are transformers' own, for texts and chats, whatever the template uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from transformers import AutoTokenizer, ByT5Tokenizer

from engine.errors import InvalidRequestError
from engine.text.chat import by_template
from engine.text.tokenizer import CheckpointTokenizer, Tokenizer
from engine.text.work import Text
from tests.engine.small_tokenizers import CHATML, byte_fallback, byte_level, save, with_bos
from tests.tiers import examples

TEMPLATES = {
    "chatml": CHATML,
    "bos and eos": (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]\n{{- m['content'] | trim }}"
        "{{ eos_token }}{% endfor %}{{ unk_token is defined }}"
    ),
    "generation": (
        "{%- for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 'in' %}"
        "{{ m.content }}\n{% endgeneration %}{{ x }}{% else %}{{ m.content }}{% endif %}\n"
        "{%- endfor %}"
    ),
    "date": "{{ strftime_now('%Y %d %b') }} {% for m in messages %}{{ m.content }}{% endfor %}",
    "controls": (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
        "{{ m.content }}{% if loop.index0 == 2 %}{% break %}{% endif %}{% endfor %}"
    ),
    "json": (
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ tools is none }}{{ documents }}"
    ),
    "namespace": (
        "{% set ns = namespace(a=1, self='s') %}{% for m in messages %}{% set ns.a = ns.a + 1 %}"
        "{{ ns.a }}{{ m.content }}{% endfor %}{{ ns.self }}{{ dict(a=1) }}"
        "{{ dict.fromkeys(['a'], 2) }}"
    ),
    "reasoning": (
        "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{{ m }}{% endfor %}"
    ),
    "blocks": (
        "{% macro turn(m) %}\n  <{{ m.role | upper }}>{{ m.content }}\n{% endmacro %}\n"
        "{# a comment #}\n{% for m in messages if m.content %}\n    {{ turn(m) }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}\n  >>\n{% endif %}\n"
    ),
}
REFUSED = {
    "by name": "{{ raise_exception('no such role') }}",
    "private name": "{% set ns = namespace(_a=1) %}{{ ns._a }}",
    "private name later": "{% set ns = namespace() %}{% set ns._a = 1 %}{{ ns._a }}",
    "change": "{{ messages.append(1) }}",
    "class": "{{ messages.__class__.__mro__ }}",
    "dict's class": "{{ dict.mro() }}",
    "syntax": "{% for %}",
    "type": "{{ 1 + 'a' }}",
    "range": "{% for i in range(10000000) %}{% endfor %}",
}


class Pair(NamedTuple):
    ours: CheckpointTokenizer
    theirs: Any


def kinds() -> dict[str, Any]:
    composing = byte_level()
    composing.normalizer = normalizers.NFC()
    composing.add_special_tokens([AddedToken("<|user|>", rstrip=True)])
    return {
        "byte level": byte_level(),
        "NFC": composing,
        "byte fallback": with_bos(byte_fallback(), "<s>"),
    }


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    made = {}
    for kind, tokenizer in kinds().items():
        folder = tmp_path_factory.mktemp("pair")
        bos = "<s>" if kind == "byte fallback" else "<|end|>"
        save(tokenizer, folder, template=TEMPLATES["bos and eos"], bos_token=bos, eos_token=bos)
        made[kind] = Pair(CheckpointTokenizer(folder), AutoTokenizer.from_pretrained(folder))
    yield made
    for pair in made.values():
        pair.ours.close()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    ["the cache ", "<|im_start|>x", "<s> a</s>", " <|user|> \n b", "e\u0301 Ａ", "▁▁", "\x00"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXTS},
        optional={"reasoning_content": st.none() | TEXTS, "thinking": TEXTS},
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("kind", kinds())
@settings(max_examples=examples(100))
@given(text=TEXTS)
def test_texts(pairs: dict[str, Pair], kind: str, text: str) -> None:
    ours, theirs = pairs[kind]
    assert ours.encode(text) == theirs.encode(text)
    assert ours.encode_bare(text) == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", kinds())
@settings(max_examples=examples(50))
@given(messages=MESSAGES)
def test_chats(pairs: dict[str, Pair], kind: str, messages: list[dict[str, Any]]) -> None:
    ours, theirs = pairs[kind]
    assert ours.apply_chat(messages) == theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(50))
@given(messages=MESSAGES)
def test_templates(pairs: dict[str, Pair], name: str, messages: list[dict[str, Any]]) -> None:
    theirs, template = pairs["byte fallback"].theirs, TEMPLATES[name]
    assert by_template(template, theirs.special_tokens_map, messages) == (
        theirs.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=True, tokenize=False
        )
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_refuses_is_refused(pairs: dict[str, Pair], name: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(Exception):  # noqa: B017 - templates raise anything
        pairs["NFC"].theirs.apply_chat_template(
            messages, chat_template=REFUSED[name], tokenize=False
        )
    with pytest.raises(InvalidRequestError):
        by_template(REFUSED[name], {}, messages)


def test_named_templates(tmp_path: Path) -> None:
    named = [("default", CHATML), ("tool_use", "tools")]
    save(byte_level(), tmp_path / "both", template=dict(named))  # type: ignore[arg-type]
    save(byte_level(), tmp_path / "other", template=dict(named[1:]))  # type: ignore[arg-type]
    messages = [{"role": "user", "content": "hi"}]
    ours = Tokenizer.from_folder(tmp_path / "both", allow_missing=False)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "both")
    assert ours.apply_chat(messages) == theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert not Tokenizer.from_folder(tmp_path / "other", allow_missing=False).has_chat_template


def test_special_tokens_are_split_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, eos_token="<|end|>", split_special_tokens=True)  # type: ignore[arg-type]
    ours = Tokenizer.from_folder(tmp_path, allow_missing=False)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode("a<|end|>b") == theirs.encode("a<|end|>b")
    assert 0 not in ours.encode("a<|end|>b")


def test_surrogates_in_texts_and_chats(tmp_path: Path) -> None:
    ours = Tokenizer.from_folder(save(byte_level(), tmp_path, template=CHATML), allow_missing=False)
    assert ours.decode(ours.encode("a\ud83dz")) == "a\ufffdz"
    assert ours.encode("\ud83d\ude42") == ours.encode("🙂")
    chat = [{"role": "user", "content": "\ud83d\ude42 \udc00"}]
    assert ours.apply_chat(chat) == ours.apply_chat([{"role": "user", "content": "🙂 \ufffd"}])


@pytest.mark.slow  # it imports transformers again
def test_a_tokenizer_in_python_alone(tmp_path: Path) -> None:
    theirs = ByT5Tokenizer()
    theirs.chat_template = CHATML
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("")  # one of the names by which a tokenizer is found
    ours = Tokenizer.from_folder(tmp_path, allow_missing=False)
    messages = [{"role": "user", "content": "Größe 🙂"}]
    assert ours.encode("Größe 🙂") == theirs.encode("Größe 🙂")
    assert ours.apply_chat(messages) == theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    with pytest.raises(InvalidRequestError):
        ours.submit(Text("x" * 100, context=20)).result()
