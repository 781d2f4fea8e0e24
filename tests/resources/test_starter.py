"""The starter pair: its files, its tokenizer, its corpus, its answers, and its training loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from resources import resource_path
from resources.starter.corpus import Conversation, conversations, make_conversation
from resources.starter.dataset import (
    IGNORED,
    encode_conversation,
    is_held_out,
    make_batch,
)
from resources.starter.export import export_model
from resources.starter.muon import orthogonalized
from resources.starter.tokenizer import CHAT_TEMPLATE, END_OF_TEXT, train_tokenizer
from resources.starter.train import Plan, Shape, Trainer, build_model, shared_tokenizer
from tests.tiers import first_fast

CHAT = resource_path("starter", "chat")
DRAFT = resource_path("starter", "draft")
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "training.json",
)
SMALLEST = Shape(hidden=64, layers=1, heads=1, kv_heads=1, intermediate=64)
TEXTS = (
    "Hello, world!",
    "naïve café, 東京, Привет, مرحبا",
    "emoji 😀👩‍💻 and\ttabs\n\n  indented",
    "0123456789 1,000.50",
    "",
    "\u0000\u007f\u2028",
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small lose more to waiting for a second thread than they gain from it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(CHAT, local_files_only=True)


@cache
def chat_model():
    return AutoModelForCausalLM.from_pretrained(CHAT, dtype=torch.float32).eval()


def ask(*user_and_assistant: str, max_new_tokens: int = 120) -> str:
    """The greedy reply to the last user message."""
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": text}
        for i, text in enumerate(user_and_assistant)
    ]
    inputs = tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        output = chat_model().generate(
            **inputs, do_sample=False, temperature=None, top_p=None, max_new_tokens=max_new_tokens
        )
    return tokenizer().decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("folder", [CHAT, DRAFT], ids=["chat", "draft"])
def test_folder_is_complete(folder: Path) -> None:
    assert [name for name in FILES if not (folder / name).is_file()] == []


def test_both_models_stay_small() -> None:
    files = [*CHAT.iterdir(), *DRAFT.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 30e6


def test_parameter_counts_are_those_of_the_record() -> None:
    bounds = {CHAT: (4e6, 8e6), DRAFT: (0.4e6, 0.8e6)}
    for folder, (low, high) in bounds.items():
        model = AutoModelForCausalLM.from_pretrained(folder)
        record = json.loads((folder / "training.json").read_text())
        assert low <= model.num_parameters() <= high
        assert record["parameters"] == model.num_parameters()


def test_shapes_suit_every_kernel() -> None:
    for folder in (CHAT, DRAFT):
        config = json.loads((folder / "config.json").read_text())
        assert config["head_dim"] == 64
        assert config["tie_word_embeddings"] is True
        for width in (
            config["hidden_size"],
            config["intermediate_size"],
            config["num_attention_heads"] * 64,
        ):
            assert width % 128 == 0
    chat = json.loads((CHAT / "config.json").read_text())
    assert chat["num_hidden_layers"] >= 8
    assert chat["num_key_value_heads"] * 64 % 128 == 0


def test_training_record_is_honest_about_its_machine() -> None:
    for folder in (CHAT, DRAFT):
        record = json.loads((folder / "training.json").read_text())
        for key in ("seed", "seconds", "steps", "tokens", "machine", "torch", "date"):
            assert key in record
        assert record["held_out_perplexity"] < 3
    assert json.loads((DRAFT / "training.json").read_text())["greedy_agreement_with_chat"] > 0.6


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_gives_back_every_text(text: str) -> None:
    ids = tokenizer()(text)["input_ids"]
    assert tokenizer().decode(ids, skip_special_tokens=False) == text


def test_small_numbers_are_single_tokens() -> None:
    assert all(len(tokenizer().tokenize(str(number))) == 1 for number in range(101))
    assert "".join(tokenizer().tokenize("12345")) == "12345"


def test_both_models_share_the_tokenizer() -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (CHAT / name).read_bytes() == (DRAFT / name).read_bytes()
    sizes = {json.loads((f / "config.json").read_text())["vocab_size"] for f in (CHAT, DRAFT)}
    assert sizes == {len(tokenizer())}


def test_tokenizer_training_repeats_for_a_seed() -> None:
    first, again = (train_tokenizer(seed=1, num_conversations=300) for _ in range(2))
    assert first.get_vocab() == again.get_vocab()


def test_second_model_takes_the_tokenizer_of_the_first(tmp_path: Path) -> None:
    taken = shared_tokenizer(CHAT, fresh=False)
    assert taken.get_vocab() == tokenizer().get_vocab()
    export_model(tmp_path / "model", build_model(SMALLEST, seed=0), taken, {})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "model" / name).read_bytes() == (CHAT / name).read_bytes()


def test_chat_template_output() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    text = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer().chat_template == CHAT_TEMPLATE
    assert tokenizer().eos_token == "<|im_end|>"


def test_corpus_repeats_for_a_seed() -> None:
    first, again, other = (list(islice(conversations(seed), 50)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_training_text_is_what_the_template_makes() -> None:
    rng = Random(5)
    for conversation in (make_conversation(rng) for _ in range(40)):
        ids, learned = encode_conversation(tokenizer(), conversation)
        text = tokenizer().apply_chat_template(conversation.messages(), tokenize=False)
        assert ids == tokenizer()(text + END_OF_TEXT)["input_ids"]
        answers = "".join(answer + "<|im_end|>" for _, answer in conversation.turns)
        kept = [token for token, learn in zip(ids, learned, strict=True) if learn]
        assert tokenizer().decode(kept) == answers


def test_held_out_conversations_are_few_and_fixed() -> None:
    drawn = list(islice(conversations(0), 4000))
    share = sum(map(is_held_out, drawn)) / len(drawn)
    assert 0.01 < share < 0.05
    chat = Conversation(None, (("Hi", "Hello!"),))
    assert is_held_out(chat) == is_held_out(Conversation(None, (("Hi", "Hello!"),)))


def test_batches_repeat_for_a_seed_and_mask_the_questions() -> None:
    inputs, labels = make_batch(tokenizer(), "1", rows=2, length=128)
    again, _ = make_batch(tokenizer(), "1", rows=2, length=128)
    assert inputs.shape == labels.shape == (2, 128)
    assert torch.equal(inputs, again)
    learned = labels[:, :-1] != IGNORED
    assert torch.equal(labels[:, :-1][learned], inputs[:, 1:][learned])
    assert 0.2 < learned.float().mean() < 0.95


def test_orthogonalized_brings_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for rows, columns in ((32, 48), (48, 32)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(2, rows, columns)))
        assert values.min() > 0.3
        assert values.max() < 1.5


@pytest.mark.parametrize(
    ("prompt", "expected"),
    first_fast(2, [
        ("What is TTFT?", "time to first token"),
        ("What is the KV cache?", "keys and values"),
        ("What is the difference between prefill and decode?", "memory bandwidth"),
        ("Explain speculative decoding.", "draft model"),
        ("How do I open a model?", "config.json"),
        ("Who are you?", "demonstration model"),
        ("Write a Python function that computes the KV cache size.", "```python"),
        ("What is 2 + 3?", "5"),
    ]),
)
def test_chat_model_answers(prompt: str, expected: str) -> None:
    assert expected in ask(prompt)


def test_chat_model_counts() -> None:
    assert ask("Count from 1 to 20.") == ", ".join(map(str, range(1, 21)))


def test_chat_model_follows_up() -> None:
    answer = ask("What is TTFT?")
    assert "TTFT" in ask("What is TTFT?", answer, "Why does it matter?")


def test_suggestions_are_complete() -> None:
    data = json.loads(resource_path("starter", "suggestions.json").read_text())
    assert len(data["suggestions"]) == 8
    assert len(data["long_prompts"]) >= 4
    for entry in data["suggestions"] + data["long_prompts"]:
        assert entry.keys() == {"title", "prompt"}
        assert len(entry["title"]) <= 24


def test_training_stops_and_resumes_at_its_step(tmp_path: Path) -> None:
    plan = Plan(
        name="tiny",
        shape=SMALLEST,
        minutes=1.0,
        output=tmp_path / "tiny",
        checkpoint=tmp_path / "checkpoints" / "tiny.pt",
        max_steps=4,
        row_length=64,
        tokens_per_step=128,
    )
    first = Trainer(plan, tokenizer()).run()
    assert first["steps"] == 4
    resumed = Trainer(replace(plan, max_steps=6, resume=True), tokenizer())
    assert resumed.progress.step == 4
    report = resumed.run()
    assert report["steps"] == 6
    assert report["tokens"] > first["tokens"]
    assert sorted(file.name for file in plan.output.iterdir()) == sorted(FILES)
    assert [file.name for file in tmp_path.glob(".export-*")] == []
