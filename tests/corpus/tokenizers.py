"""Hostile tokenizers: damaged tables, texts that explode, patterns that do not end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.commands import text
from tests.corpus.configs import MISSING, WRONG, rewrite
from tests.corpus.controls import LONG, TEXT

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
Json = dict[str, Any]
NUM_TOKENS = 420
BACKTRACKS = "(a+)+$"

SECTIONS = ("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
            "post_processor", "decoder", "model")  # fmt: skip
TYPES = ("null", "text", "fraction", "true", "list", "object", "list_of_null")
SETTING_FIELDS = ("tokenizer_class", "eos_token", "bos_token", "unk_token", "pad_token",
                  "model_max_length", "added_tokens_decoder", "extra_special_tokens",
                  "chat_template", "clean_up_tokenization_spaces", "add_bos_token",
                  "padding_side", "backend", "auto_map", "model_input_names")  # fmt: skip


def _replace(pattern: Any, content: Any) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _sequence(*normalizers: Json) -> Json:
    return {"type": "Sequence", "normalizers": list(normalizers)}


def _split(pattern: Json) -> Json:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _nested(depth: int) -> Json:
    one: Json = {"type": "Lowercase"}
    for _ in range(depth):
        one = _sequence(one)
    return one


def _template(single: list[Json], special: Json) -> Json:
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


def _special(token_id: int) -> Json:
    return {"[X]": {"id": "[X]", "ids": [token_id], "tokens": ["[X]"]}}


X, A = {"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
PADDED = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
          "pad_token": "!"}  # fmt: skip

PARTS: dict[str, tuple[str, Any, Expected]] = {
    "normalizer/unknown": ("normalizer", {"type": "Nope"}, "refused"),
    "normalizer/backtracks": ("normalizer", _replace({"Regex": BACKTRACKS}, "b"), "refused"),
    "normalizer/bad_pattern": ("normalizer", _replace({"Regex": "(["}, "b"), "refused"),
    "normalizer/doubles": ("normalizer", _sequence(*[_replace({"String": "a"}, "aa")] * 40),
                           "refused"),
    "normalizer/grows": ("normalizer", _replace({"String": "a"}, "b" * 10_000_000), "refused"),
    "normalizer/empty": ("normalizer", _replace({"String": ""}, "b"), "sound"),
    "normalizer/empty_regex": ("normalizer", _replace({"Regex": ""}, "b" * 100_000), "refused"),
    "normalizer/prepends": ("normalizer", {"type": "Prepend", "prepend": "b" * 5_000_000},
                            "refused"),
    "normalizer/charsmap": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
                            "refused"),
    "normalizer/charsmap_huge": (
        "normalizer", {"type": "Precompiled", "precompiled_charsmap": "////fwAA"}, "refused"),
    "normalizer/nested_40": ("normalizer", _nested(40), "sound"),
    "pre_tokenizer/unknown": ("pre_tokenizer", {"type": "Nope"}, "refused"),
    "pre_tokenizer/backtracks": ("pre_tokenizer", _split({"Regex": "(a|a)*b|(a+)+$"}), "refused"),
    "pre_tokenizer/bad_pattern": ("pre_tokenizer", _split({"Regex": "(?<"}), "refused"),
    "pre_tokenizer/huge_repeat": ("pre_tokenizer", _split({"Regex": "(a{1,999}){1,999}"}), "sound"),
    "pre_tokenizer/recursive": ("pre_tokenizer", _split({"Regex": r"(?<n>\g<n>a)"}), "refused"),
    "pre_tokenizer/behavior": (
        "pre_tokenizer", {**_split({"String": "a"}), "behavior": "Nope"}, "refused"),
    "pre_tokenizer/removes_all": (
        "pre_tokenizer", {**_split({"Regex": "[^b]"}), "behavior": "Removed"}, "refused"),
    "post_processor/unknown_token": ("post_processor", _template([X, A], {}), "refused"),
    "post_processor/foreign_id": ("post_processor", _template([X, A], _special(9999)), "refused"),
    "post_processor/million": ("post_processor", _template([A] + [X] * 10**6, _special(5)),
                               "refused"),
    "post_processor/text_twice": ("post_processor", _template([A] * 10_000, {}), "refused"),
    "post_processor/no_text": ("post_processor", _template([], {}), "refused"),
    "decoder/unknown": ("decoder", {"type": "Nope"}, "refused"),
    "decoder/grows": ("decoder", _replace({"Regex": ""}, "b" * 10_000_000), "refused"),
    "truncation/1": ("truncation", {"direction": "Right", "max_length": 1,
                                    "strategy": "LongestFirst", "stride": 0}, "sound"),
    "truncation/negative": ("truncation", {"direction": "Right", "max_length": -1,
                                           "strategy": "LongestFirst", "stride": 0}, "refused"),
    "truncation/stride": ("truncation", {"direction": "Right", "max_length": 1,
                                         "strategy": "LongestFirst", "stride": 5}, "sound"),
    "padding/fixed": ("padding", {**PADDED, "strategy": {"Fixed": 10**9}}, "sound"),
    "padding/small": ("padding", {**PADDED, "strategy": {"Fixed": 64}}, "sound"),
    "padding/multiple": (
        "padding", {**PADDED, "strategy": "BatchLongest", "pad_to_multiple_of": 10**9}, "sound"),
    "model/unknown": ("model", {"type": "Nope"}, "refused"),
    "model/empty": ("model", {"type": "BPE", "vocab": {}, "merges": []}, "refused"),
    "model/word_level": ("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"},
                         "refused"),
    "model/unigram_empty": ("model", {"type": "Unigram", "vocab": [], "unk_id": 0}, "refused"),
    "model/unigram_nan": ("model", {"type": "Unigram", "vocab": [["a", "x"]], "unk_id": 9},
                          "refused"),
}  # fmt: skip
"""One section of tokenizer.json."""

VOCABULARIES: dict[str, tuple[Callable[[Json], Any], Expected]] = {
    "null": (lambda vocab: None, "refused"),
    "list": (lambda vocab: list(vocab), "refused"),
    "text_ids": (lambda vocab: {token: str(i) for token, i in vocab.items()}, "refused"),
    "fractions": (lambda vocab: {token: i + 0.5 for token, i in vocab.items()}, "refused"),
    "negative": (lambda vocab: {**vocab, "a": -1}, "refused"),
    "too_large": (lambda vocab: {**vocab, "a": 2**32}, "refused"),
    "largest": (lambda vocab: {**vocab, "zzz": 2**32 - 1}, "sound"),
    "beyond_model": (lambda vocab: {t: i + 10_000 for t, i in vocab.items()}, "refused"),
    "all_zero": (lambda vocab: dict.fromkeys(vocab, 0), "refused"),
    "nulls": (lambda vocab: dict.fromkeys(vocab), "refused"),
    "without_a": (lambda vocab: {t: i for t, i in vocab.items() if t != "h"}, "refused"),
    "million": (lambda vocab: vocab | {f"x{i}": i for i in range(500, 10**6)}, "sound"),
}
MERGES: dict[str, tuple[Any, Expected]] = {
    "null": (None, "refused"),
    "text": ("a b", "refused"),
    "unknown_tokens": ([["qq", "zz"]], "refused"),
    "three": ([["a", "b", "c"]], "refused"),
    "one": ([["a"]], "refused"),
    "numbers": ([[1, 2]], "refused"),
    "result_unknown": ([["q", "z"]], "refused"),
}
ADDED: dict[str, tuple[Json, Expected]] = {
    "id_text": ({"id": "5"}, "refused"),
    "id_negative": ({"id": -1}, "refused"),
    "id_too_large": ({"id": 2**32}, "refused"),
    "id_far": ({"id": 10**9}, "sound"),
    "id_taken": ({"id": 5}, "sound"),
    "content_5": ({"content": 5}, "refused"),
    "content_null": ({"content": None}, "refused"),
    "content_empty": ({"content": ""}, "sound"),
    "content_blank": ({"content": " "}, "sound"),
    "content_huge": ({"content": "z" * 2_000_000}, "sound"),
    "special_text": ({"special": "yes"}, "refused"),
    "without_id": ({"id": MISSING}, "refused"),
    "without_content": ({"content": MISSING}, "refused"),
}


def cases() -> Iterator[Case]:
    yield _case("unchanged", FILE, lambda values: values, "same")
    for section in SECTIONS:
        for name in TYPES:
            change = partial(_with, {section: WRONG[name]})
            yield _case(f"{section}={name}", FILE, change, "sound")
    for key, (section, value, expected) in PARTS.items():
        # what only the text shows is the request's error
        yield _case(key, FILE, partial(_with, {section: value}), expected, prompt=LONG)
    yield Case("folder", "tokenizer/normalizer/nested", text(LONG), _nest, "chat", names=(FILE,))
    for key, (vocabulary, expected) in VOCABULARIES.items():
        yield _case(f"vocab/{key}", FILE, partial(_model, "vocab", vocabulary), expected)
    for key, (merges, expected) in MERGES.items():
        put = partial(_model, "merges", lambda _, merges=merges: merges)
        yield _case(f"merges/{key}", FILE, put, expected)
    for key, (entry, expected) in ADDED.items():
        yield _case(f"added/{key}", FILE, partial(_added, entry), expected)
    yield _case("added/many", FILE, _many_added, "sound")
    for field in SETTING_FIELDS:
        for name in (*TYPES, "-1", "10**30"):
            change = partial(_with, {field: WRONG[name]})
            yield _case(f"settings/{field}={name}", SETTINGS, change, "sound")


def _case(
    key: str, file: str, change: Callable[[Json], Any], expected: Expected, prompt: str = TEXT
) -> Case:
    def make(folder: Path) -> None:
        rewrite(folder / file, change)

    names = ("tokenizer",) if expected == "refused" and prompt == TEXT else ()
    return Case("folder", f"tokenizer/{key}", text(prompt), make, "chat", expected, names,
                answer="chat/text" if prompt == TEXT else "chat/long")  # fmt: skip


def _nest(folder: Path) -> None:
    """Deeper than json.dumps goes."""
    written = json.dumps(json.loads((folder / FILE).read_text()))
    outer, inner = json.dumps(_sequence({})).split("{}")
    nested = outer * 5_000 + '{"type": "Lowercase"}' + inner * 5_000
    assert '"normalizer": null' in written
    (folder / FILE).write_text(written.replace('"normalizer": null', f'"normalizer": {nested}'))


def _with(change: Json, values: Json) -> Json:
    return {**values, **change}


def _model(field: str, change: Callable[[Any], Any], values: Json) -> Json:
    values["model"][field] = change(values["model"][field])
    return values


def _added(change: Json, values: Json) -> Json:
    token = {"id": NUM_TOKENS, "content": "<|more|>", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True, **change}  # fmt: skip
    one = {key: value for key, value in token.items() if value is not MISSING}
    values["added_tokens"].append(one)
    return values


def _many_added(values: Json) -> Json:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    values["added_tokens"] += [
        {"id": NUM_TOKENS + i, "content": f"<x{i}>", **flags} for i in range(50_000)
    ]
    return values
