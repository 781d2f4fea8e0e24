"""Incremental text equals decoding everything at once, and stop strings cut where find says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.text.detokenizer import IncrementalDetokenizer, TokenWindow
from engine.text.tokenizer import ByteTokenizer, CheckpointTokenizer, Tokenizer
from tests.engine.small_tokenizers import byte_fallback, byte_level, save
from tests.tiers import examples

KINDS = ("byte level", "byte fallback", "bytes")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    level = save(byte_level(), folder / "level", eos_token="<|end|>")
    fallback = save(byte_fallback(), folder / "fallback", bos_token="<s>", eos_token="</s>")
    return {
        "byte level": CheckpointTokenizer(level),
        "byte fallback": CheckpointTokenizer(fallback),
        "bytes": ByteTokenizer(),
    }


class Letters:
    """Every token is a given piece of text."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in token_ids)

    def is_silent(self, token_id: int) -> bool:
        return False


def run(tokenizer, tokens, params=None, prompt=()) -> str:
    """All text of `tokens`, up to a stop string."""
    return outcome(tokenizer, tokens, params or SamplingParams(), prompt)[0]


def outcome(tokenizer, tokens, params, prompt=()) -> tuple[str, str | None, int]:
    """The text, the stop string that ended it, and how many tokens were used."""
    detokenizer = IncrementalDetokenizer(tokenizer, params, prompt)
    text = ""
    for count, token in enumerate(tokens, start=1):
        text += detokenizer.push(token)
        if detokenizer.stopped_by is not None:
            return text + detokenizer.flush(), detokenizer.stopped_by, count
    return text + detokenizer.flush(), detokenizer.stopped_by, len(tokens)


pieces = st.sampled_from(
    [
        *(" ", "  ", "\n", "the", " cache", "ing ", "é", "e\u0301", "你好", "世", "🙂", "𝔘"),
        *("👩\u200d👩\u200d👧", "🇩🇪", "\u200d", "한", "ß", "▁", "\ufffd", "<s>"),
    ]
)
texts = st.one_of(st.text(max_size=40), st.lists(pieces, max_size=40).map("".join))


@pytest.mark.parametrize("kind", KINDS)
class TestWholeText:
    @settings(max_examples=examples(80), deadline=None)
    @given(text=texts)
    def test_pieces_add_up_to_the_decoded_whole(self, tokenizers, kind, text):
        tokenizer = tokenizers[kind]
        tokens = tokenizer.encode(text)
        assert run(tokenizer, tokens) == tokenizer.decode(tokens)

    @settings(max_examples=examples(80), deadline=None)
    @given(text=texts, cut=st.integers(0, 60))
    def test_the_output_continues_the_prompt(self, tokenizers, kind, text, cut):
        tokenizer = tokenizers[kind]
        tokens = tokenizer.encode(text)
        prompt, output = tokens[:cut], tokens[cut:]
        before, whole = tokenizer.decode(prompt), tokenizer.decode(tokens)
        if whole.startswith(before):  # the cut is not inside a character
            assert before + run(tokenizer, output, prompt=prompt) == whole


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_any_tokens_of_a_byte_level_tokenizer(tokenizers, data):
    """Also broken bytes, special tokens, and ids that the tokenizer does not know."""
    for kind, top in (("byte level", 440), ("bytes", 300)):
        broken = st.integers(120, 260)
        tokens = data.draw(
            st.lists(st.one_of(st.integers(0, top), broken), max_size=60), label=kind
        )
        assert run(tokenizers[kind], tokens) == tokenizers[kind].decode(tokens)


class TestPieces:
    def test_a_split_character_waits_and_comes_whole(self, tokenizers):
        window = TokenWindow(tokenizers["bytes"], [])
        assert [window.push(b) for b in "a🙂b".encode()] == ["a", "", "", "", "🙂", "b"]

    def test_an_unfinished_character_is_flushed_as_a_replacement(self, tokenizers):
        window = TokenWindow(tokenizers["bytes"], [])
        assert [window.push(b) for b in "é".encode()[:1]] == [""]
        assert window.flush() == "\ufffd"
        assert window.flush() == ""

    def test_broken_bytes_do_not_wait_for_ever(self, tokenizers):
        window = TokenWindow(tokenizers["bytes"], [])
        text = "".join(window.push(0xE2) for _ in range(100))
        assert len(text) == 99
        assert text + window.flush() == "\ufffd" * 100

    def test_text_comes_with_its_token(self, tokenizers):
        for kind in ("byte level", "byte fallback"):
            tokenizer = tokenizers[kind]
            prompt, *tokens = tokenizer.encode("The scheduler grants tokens to blocks")
            window = TokenWindow(tokenizer, [prompt])
            assert "" not in [window.push(token) for token in tokens]

    def test_a_word_after_a_prompt_keeps_its_space_and_at_the_start_has_none(self, tokenizers):
        tokenizer = tokenizers["byte fallback"]
        prompt, word = tokenizer.encode("the cache"), tokenizer.encode("blocks")
        assert run(tokenizer, word, prompt=prompt) == " blocks"
        assert run(tokenizer, word, prompt=[1]) == "blocks"  # after BOS alone
        assert run(tokenizer, word, prompt=[*prompt, 1, 1, 1, 1, 1, 1, 1, 2]) == " blocks"

    def test_special_tokens_leave_no_text(self, tokenizers):
        tokenizer = tokenizers["byte fallback"]
        word = tokenizer.encode("cache")
        assert run(tokenizer, [1, *word, 2, 2]) == "cache"

    def test_the_window_stays_small(self, tokenizers):
        longest = 0

        class Watched:
            def __init__(self, tokenizer: Tokenizer) -> None:
                self.is_silent = tokenizer.is_silent
                self._decode = tokenizer.decode

            def decode(self, token_ids: Sequence[int]) -> str:
                nonlocal longest
                longest = max(longest, len(token_ids))
                return self._decode(token_ids)

        space = tokenizers["byte fallback"].encode(" ")[-1:]
        for kind, tokens in (
            ("byte level", tokenizers["byte level"].encode("the cache 🙂 你好 " * 60)),
            ("byte fallback", tokenizers["byte fallback"].encode("the cache 🙂 你好 " * 60)),
            ("byte fallback", space * 200),
            ("bytes", [0xE2] * 300),
            ("byte level", [0] * 300),
        ):
            assert run(Watched(tokenizers[kind]), tokens) == tokenizers[kind].decode(tokens)
        assert longest <= 32


def expected_with_stops(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """By definition: the shortest beginning of `text` that contains a stop string, cut there."""
    for end in range(len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


class TestStopStrings:
    @settings(max_examples=examples(200), deadline=None)
    @given(
        tokens=st.lists(st.integers(0, 5), max_size=25),
        stops=st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=3),
    )
    def test_cut_at_the_first_one_however_the_text_comes(self, tokens, stops):
        decoder = Letters("a", "b", "ab", "\n", "bba", "abaab\nba")
        text = decoder.decode(tokens)
        params = SamplingParams(stop=tuple(stops))
        expected, _ = expected_with_stops(text, stops)
        assert run(decoder, tokens, params) == expected
        if len(set(stops)) == 1:
            at = text.find(stops[0])
            assert expected == (text if at < 0 else text[:at])

    @settings(max_examples=examples(100), deadline=None)
    @given(text=texts, data=st.data())
    def test_with_real_tokenizers(self, tokenizers, text, data):
        for kind in KINDS:
            tokenizer = tokenizers[kind]
            tokens = tokenizer.encode(text)
            whole = tokenizer.decode(tokens)
            start = data.draw(st.integers(0, max(0, len(whole) - 1)))
            stop = whole[start : start + data.draw(st.integers(1, 6))] or "never"
            at = whole.find(stop)
            expected = whole if at < 0 else whole[:at]
            assert run(tokenizer, tokens, SamplingParams(stop=stop)) == expected

    def test_across_tokens_and_inside_one(self):
        decoder = Letters("one ", "ST", "OP", " two", "x STOP y")
        params = SamplingParams(stop="STOP")
        assert outcome(decoder, [0, 1, 2, 3], params) == ("one ", "STOP", 3)
        assert outcome(decoder, [0, 4, 3], params) == ("one x ", "STOP", 2)

    def test_held_back_only_while_it_can_still_match(self):
        decoder = Letters("a\n", "Us", "er", "ful", "er:")
        detokenizer = IncrementalDetokenizer(decoder, SamplingParams(stop="\nUser:"), [])
        out = [detokenizer.push(t) for t in (0, 1, 2, 3, 0, 1)]
        assert out == ["a", "", "", "\nUserful", "a", ""]
        assert detokenizer.flush() == "\nUs"
        assert detokenizer.flush() == ""

    def test_included_when_asked(self):
        decoder = Letters("go", " END", " on")
        params = SamplingParams(stop=("END",), include_stop_str_in_output=True)
        assert outcome(decoder, [0, 1, 2], params) == ("go END", "END", 2)

    def test_of_several_the_one_that_is_complete_first(self):
        decoder = Letters("a", "b", "c", "d")
        params = SamplingParams(stop=("abcd", "bc"))
        assert run(decoder, [0, 1, 2, 3], params) == "a"
        longest = SamplingParams(stop=("c", "bc"), include_stop_str_in_output=True)
        assert outcome(decoder, [0, 1, 2, 3], longest) == ("abc", "bc", 3)

    def test_not_before_min_tokens(self):
        decoder = Letters("x", "##", "#")
        params = SamplingParams(stop="##", min_tokens=3)
        detokenizer = IncrementalDetokenizer(decoder, params, [])
        assert [detokenizer.push(token) for token in (0, 1, 1)] == ["x", "#", "##"]
        # One "#" was held back, and the first one of the fourth token completes the pair.
        assert (detokenizer.push(1), detokenizer.stopped_by) == ("", "##")
        assert run(decoder, [0, 1, 1, 1], params) == "x###"

    def test_not_in_the_prompt(self):
        decoder = Letters("STO", "P", " more")
        assert run(decoder, [1, 2], SamplingParams(stop="STOP"), prompt=[0]) == "P more"

    def test_a_stop_string_in_the_flushed_end_cuts_too(self, tokenizers):
        params = SamplingParams(stop="\ufffd")
        assert run(tokenizers["bytes"], [97, 0xE2], params) == "a"
