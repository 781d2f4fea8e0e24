"""A text never has fewer tokens than its bound says; what is surely too long is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from engine.errors import ContextLengthError
from engine.text.length import CHARACTERS_PER_TOKEN, LengthBound, check_characters
from tests.engine.small_tokenizers import byte_fallback, byte_level, with_bos
from tests.figures import numbers


def composing() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.NFC()
    return made


def split() -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\p{L}+|\s+|."), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.add_tokens([" " * 64, "=" * 40])
    return made


def eats_blanks() -> Tokenizer:
    made = byte_level()
    made.add_special_tokens([AddedToken("<|user|>", rstrip=True, lstrip=True)])
    return made


BOUNDED = {
    "byte level": byte_level(),
    "byte fallback": byte_fallback(),
    "with BOS": with_bos(byte_fallback(), "<s>"),
    "NFC": composing(),
    "long tokens": split(),
    "blanks beside tokens": eats_blanks(),
}
PARTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["the scheduler ", "=" * 50, " " * 70, "<|user|>", "\n\n  ", "▁", "<s>", "e\u0301", "1234",
         "\u00a0\u3000", "你好世界", "🙂", "<0x41>", "\u1112\u1161\u11ab", "<|end|>"]
    ),
)  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
@given(parts=st.lists(PARTS, max_size=12))
def test_no_text_has_fewer_tokens(name: str, parts: list[str]) -> None:
    text, tokenizer = "".join(parts), BOUNDED[name]
    bound = LengthBound(json.loads(tokenizer.to_str()))
    assert bound.fewest(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_bound_of_prose_is_some_of_its_tokens(name: str) -> None:
    text, tokenizer = "the scheduler grants tokens to running requests " * 50, BOUNDED[name]
    fewest = LengthBound(json.loads(tokenizer.to_str())).fewest(text)
    assert fewest > len(tokenizer.encode(text).ids) / 15


def shrinking(kind: str) -> Tokenizer:
    made = byte_level()
    match kind:
        case "strip":
            made.normalizer = normalizers.Strip()
        case "collapse":
            made.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
        case "compatibility":
            made.normalizer = normalizers.NFKC()
        case "removed":
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), made.pre_tokenizer]
            )
        case "blanks":
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), made.pre_tokenizer]
            )
        case "unknown":
            made = Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True))
        case "words":
            made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    return made


@pytest.mark.parametrize(
    "kind", ["strip", "collapse", "compatibility", "removed", "blanks", "unknown", "words"]
)
def test_no_bound_where_the_tokenizer_may_shorten_a_text(kind: str) -> None:
    tokenizer = shrinking(kind)
    assert LengthBound(json.loads(tokenizer.to_str())).fewest("z " * 5000) == 0


def test_a_composed_text_is_not_counted_as_it_is_written() -> None:
    bound = LengthBound(json.loads(composing().to_str()))
    assert bound.fewest("e" * 5000) > 0
    assert bound.fewest("e\u0301" * 5000) == 0


def test_refusals_name_characters_and_limit() -> None:
    bound = LengthBound(json.loads(byte_level().to_str()))
    text = "the cache " * 3000
    fewest = bound.fewest(text)
    bound.check(text, fewest + 1)
    with pytest.raises(ContextLengthError) as caught:
        bound.check(text, fewest)
    assert numbers(caught.value.cause) == [len(text), fewest]  # a bound is no count
    assert "max_model_len" in caught.value.remedy
    check_characters(10 * CHARACTERS_PER_TOKEN, 10)
    check_characters(10**9, None)
    with pytest.raises(ContextLengthError) as caught:
        check_characters(10 * CHARACTERS_PER_TOKEN + 1, 10)
    assert f"{10 * CHARACTERS_PER_TOKEN + 1:,}" in caught.value.cause
