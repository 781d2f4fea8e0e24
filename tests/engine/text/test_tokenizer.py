"""Tokenizers of checkpoint folders: chat prompts, what is missing, what is shown."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from engine.errors import CheckpointError, InvalidRequestError
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import (
    ByteTokenizer,
    Tokenizer,
    encode_prompt,
    plain_transcript,
)
from tests.engine.small_tokenizers import CHATML, byte_fallback, byte_level, save, with_bos

BOS_TEMPLATE = (
    "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }};"
    "{% endif %}{% endfor %}"
)
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "how?"},
]


def load(folder) -> Tokenizer:
    return Tokenizer.from_folder(folder, allow_missing=False)


class TestEncoding:
    def test_plain_prompts_get_the_special_tokens_that_the_tokenizer_adds(self, tmp_path):
        folder = save(with_bos(byte_fallback(), "<s>"), tmp_path, bos_token="<s>", eos_token="</s>")
        tokenizer, reference = load(folder), AutoTokenizer.from_pretrained(folder)
        for text in ("the cache", "", "  two  spaces\n", "你好 🙂", "x" * 3000):
            tokens = tokenizer.encode(text)
            assert tokens == reference(text)["input_ids"]
            assert tokens[0] == 1 and 1 not in tokens[1:]
            assert tokenizer.decode(tokens) == reference.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )

    def test_no_clean_up_of_spaces(self, tmp_path):
        tokenizer = load(save(byte_level(), tmp_path))
        text = "a , b . c 's  d n't !"
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_a_lone_surrogate_becomes_a_replacement_character(self, tmp_path):
        for tokenizer in (load(save(byte_level(), tmp_path)), ByteTokenizer()):
            assert tokenizer.decode(tokenizer.encode("a\ud83dz 🙂")) == "a\ufffdz 🙂"

    def test_what_the_tokenizer_knows(self, tmp_path):
        tokenizer = load(save(byte_level(), tmp_path, eos_token="<|end|>"))
        assert tokenizer.vocab_size == byte_level().get_vocab_size()
        assert tokenizer.eos_token_ids == {0}
        assert tokenizer.notice is None
        assert tokenizer.is_silent(0) and tokenizer.is_silent(tokenizer.vocab_size)
        assert not tokenizer.is_silent(200)
        assert tokenizer.decode([0, 10**6]) == ""
        assert load(save(byte_level(), tmp_path / "no_eos")).eos_token_ids == frozenset()


class TestTokenText:
    def test_byte_level(self, tmp_path):
        tokenizer = load(save(byte_level(), tmp_path, eos_token="<|end|>"))
        ids = tokenizer.encode("the cache")
        assert [tokenizer.token_text(i) for i in ids] == [tokenizer.decode([i]) for i in ids]
        assert tokenizer.token_text(0) == "<|end|>"
        assert tokenizer.token_text(10**6) == "⟨1000000⟩"
        first, *_ = tokenizer.encode("𝔘")
        assert tokenizer.token_text(first) == "\\xf0"

    def test_byte_fallback_keeps_the_leading_space(self, tmp_path):
        tokenizer = load(save(byte_fallback(), tmp_path, bos_token="<s>"))
        ids = tokenizer.encode("the cache")
        assert "".join(tokenizer.token_text(i) for i in ids) == " the cache"
        assert tokenizer.token_text(1) == "<s>"
        assert tokenizer.token_text(3 + 0xF0) == "<0xF0>"

    def test_the_bytes_of_tokens_are_those_of_the_text(self, tmp_path):
        text = "the cache, Grüße \\xe2 𝔘 🙂"
        for made, bos in ((byte_level(), "<|end|>"), (byte_fallback(), "<s>")):
            folder = save(with_bos(made, bos), tmp_path / bos.strip("<|>"), bos_token=bos)
            tokenizer = load(folder)
            ids = tokenizer.encode_bare(text)
            assert tokenizer.encode(text) == [*tokenizer.encode(""), *ids]
            data = b"".join(tokenizer.token_bytes(i) for i in ids)
            assert data.decode().lstrip(" ") == text
            assert tokenizer.token_bytes(10**6) is None
        assert ByteTokenizer().token_bytes(0xE2) == b"\xe2"
        assert ByteTokenizer().token_bytes(300) is None


class TestChat:
    def test_the_checkpoints_own_template(self, tmp_path):
        folder = save(byte_level(), tmp_path, template=CHATML, eos_token="<|im_end|>")
        tokenizer, reference = load(folder), AutoTokenizer.from_pretrained(folder)
        assert tokenizer.has_chat_template
        chat = tokenizer.apply_chat(CONVERSATION)
        assert chat == reference.apply_chat_template(
            CONVERSATION, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert chat.count(1) == 5  # <|im_start|> of four messages and the reply

    def test_one_bos_and_not_two(self, tmp_path):
        folder = save(
            with_bos(byte_fallback(), "<s>"), tmp_path, template=BOS_TEMPLATE, bos_token="<s>"
        )
        tokens = load(folder).apply_chat(CONVERSATION)
        assert tokens.count(1) == 1 and tokens[0] == 1

    @pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM], ids=["refuses", "drops"])
    def test_a_system_prompt_that_the_template_does_not_take_goes_to_the_user(
        self, tmp_path, template
    ):
        tokenizer = load(save(byte_level(), tmp_path, template=template))
        token_ids = tokenizer.apply_chat(CONVERSATION)
        text = tokenizer.decode(token_ids)
        assert text == "user: Be brief.\n\nhello;assistant: hi;user: how?;"
        only = tokenizer.apply_chat(CONVERSATION[:1])
        assert tokenizer.decode(only) == "user: Be brief.;"

    def test_what_the_template_refuses_is_an_error_with_its_words(self, tmp_path):
        template = "{{ raise_exception('Roles must alternate') }}"
        tokenizer = load(save(byte_level(), tmp_path, template=template))
        with pytest.raises(InvalidRequestError, match="Roles must alternate"):
            tokenizer.apply_chat(CONVERSATION[1:])
        with pytest.raises(InvalidRequestError, match="Roles must alternate"):
            tokenizer.apply_chat(CONVERSATION)

    def test_without_a_template_a_plain_transcript(self, tmp_path):
        folder = save(with_bos(byte_fallback(), "<s>"), tmp_path, bos_token="<s>")
        tokenizer = load(folder)
        assert not tokenizer.has_chat_template
        tokens = tokenizer.apply_chat(CONVERSATION)
        transcript = "Be brief.\n\nUser: hello\nAssistant: hi\nUser: how?\nAssistant:"
        assert plain_transcript(CONVERSATION) == transcript
        assert tokens == tokenizer.encode(transcript) and tokens.count(1) == 1
        encoded = encode_prompt(CONVERSATION, tokenizer, SamplingParams(stop="END"))
        assert encoded.token_ids == tokens and encoded.params.stop == ("END", "\nUser:")

    def test_with_a_template_no_stop_string_is_added(self, tmp_path):
        tokenizer = load(save(byte_level(), tmp_path, template=CHATML, eos_token="<|im_end|>"))
        assert encode_prompt(CONVERSATION, tokenizer, SamplingParams()).params.stop == ()

    @pytest.mark.parametrize(
        "messages",
        [[], [{"role": "user"}], [{"role": "user", "content": None}], [{"content": "x"}]],
        ids=str,
    )
    @pytest.mark.parametrize("template", [None, CHATML], ids=["transcript", "template"])
    def test_messages_without_text_are_refused(self, tmp_path, messages, template):
        tokenizer = load(save(byte_level(), tmp_path, template=template))
        with pytest.raises(InvalidRequestError):
            tokenizer.apply_chat(messages)


class TestMissing:
    def broken(self, tmp_path, kind):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        if kind == "damaged":
            save(byte_level(), tmp_path)
            whole = (tmp_path / "tokenizer.json").read_text()
            (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
        elif kind == "empty":
            (tmp_path / "tokenizer.json").write_text("")
        elif kind == "settings only":
            (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
        return tmp_path

    @pytest.mark.parametrize("kind", ["missing", "settings only", "damaged", "empty"])
    def test_an_error_that_says_what_to_do(self, tmp_path, kind):
        folder = self.broken(tmp_path, kind)
        with pytest.raises(CheckpointError) as caught:
            load(folder)
        assert str(folder) in caught.value.cause and caught.value.remedy
        assert "tokenizer.json" in f"{caught.value.cause} {caught.value.remedy}"

    @pytest.mark.parametrize("kind", ["missing", "damaged"])
    def test_bytes_where_a_tokenizer_may_be_missing(self, tmp_path, kind):
        tokenizer = Tokenizer.from_folder(self.broken(tmp_path, kind), allow_missing=True)
        assert isinstance(tokenizer, ByteTokenizer)
        assert tokenizer.notice is not None
        assert str(tmp_path) in tokenizer.notice and "bytes" in tokenizer.notice

    def test_the_real_one_where_there_is_one(self, tmp_path):
        tokenizer = Tokenizer.from_folder(save(byte_level(), tmp_path), allow_missing=True)
        assert tokenizer.notice is None


class TestBytes:
    def test_round_trip_and_numbers(self):
        tokenizer = ByteTokenizer()
        assert tokenizer.encode("é🙂") == list("é🙂".encode())
        assert tokenizer.decode([*"é🙂".encode(), 8123, 65]) == "é🙂⟨8123⟩ A"
        assert tokenizer.decode([0xE2, 300]) == "\ufffd⟨300⟩ "
        assert tokenizer.token_text(65) == "A"
        assert tokenizer.token_text(0xE2) == "\\xe2"
        assert tokenizer.token_text(8123) == "⟨8123⟩"
        assert tokenizer.vocab_size == 256
        assert tokenizer.eos_token_ids == frozenset()
        assert not tokenizer.is_silent(8123)

    def test_chat_is_a_transcript(self):
        tokens = ByteTokenizer().apply_chat(CONVERSATION[1:2])
        assert bytes(tokens) == b"User: hello\nAssistant:"
