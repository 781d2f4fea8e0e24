"""Chats of version 0.1 are there with all that belongs to them, exported and imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app import paths
from app.features.chat.conversation import Message, sampling_from_dict
from app.features.chat.figures import note_of
from app.features.chat.files import Bundle, collect, dump, keep, parse
from app.features.chat.markdown import from_markdown
from app.features.chat.reply_data import ReplyTokens, unpack_times
from app.storage import NEW, TIMES, TOKENS, ChatStore
from tests.app.older_files import ANSWER, NOTES, chats, conversation, older
from widgets.tokens.record import Alternative, Origin

__all__ = ["older"]


def tokens_of(store: ChatStore, message: Message) -> ReplyTokens:
    packed = store.packed(TOKENS, message.id)
    assert packed is not None
    return ReplyTokens.unpack(packed)


def test_the_chats_are_there_with_their_settings(older: Path) -> None:
    with chats() as store:
        assert store.problem is None
        found = {one.title: one for one in store.conversations()}
        assert list(found) == [  # the last used first
            "Count to ten", "Say hello", "What is paging?", "Notes, in short",
            "Why is the sky blue?",
        ]  # fmt: skip
        paging, notes = found["What is paging?"], found["Notes, in short"]
        assert [one.title for one in found.values() if one.is_pinned] == [paging.title]
        assert [t for t, one in found.items() if one.is_archived] == ["Why is the sky blue?"]
        assert paging.title_is_automatic and not notes.title_is_automatic
        assert paging.system_prompt == "Answer in one sentence."
        sampling = sampling_from_dict(paging.sampling)
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.35, 0.9, 0)
        assert (sampling.max_tokens, sampling.seed, sampling.stop) == (512, 11, ("END", "\n\n"))
        assert sampling.logprobs == 5  # of every chat where it was not changed
        assert (paging.preset, notes.preset) == ("Short and dry", "")
        assert sampling_from_dict(store.presets()["Short and dry"]) == sampling
        assert sampling_from_dict(notes.sampling).top_k == 40
        assert store.unsent() == {
            NEW: "A question that waits", paging.id: "and how large is a block?"
        }  # fmt: skip
        assert all(0 < one.created <= one.updated for one in found.values())


def test_branches_are_there_with_the_one_that_was_shown(older: Path) -> None:
    with chats() as store:
        paging = conversation(store, "What is paging?")
        assert len(paging.messages) == 8
        asked, answer = paging.path()
        assert (asked.text, answer.text) == ("What is paging?", ANSWER)
        assert paging.version_of(asked) == (1, 2) and paging.version_of(answer) == (1, 3)
        texts = [version.text for version in paging.versions(asked.id)]
        assert texts == [ANSWER, "Another answer.", "Another Segments follow."]
        other = paging.versions(None)[1]
        paging.show(other)
        assert [message.text for message in paging.path()] == [
            "What is paging, in German?", "Seitenverwaltung: Blöcke. 🙂",
            "And in French?", "La pagination.",
        ]  # fmt: skip


def test_replies_have_their_figures_tokens_and_times(older: Path) -> None:
    with chats() as store:
        paging = conversation(store, "What is paging?")
        first, cut, branch = paging.versions(paging.path()[0].id)
        figures = first.figures
        assert figures is not None and figures.model == "Qwen3-0.6B"
        assert (figures.num_tokens, figures.num_prompt_tokens) == (5, 803)
        assert (figures.num_cached_tokens, figures.finish_reason) == (768, "stop")
        assert figures.ttft_ms == pytest.approx(84) and figures.queue_ms == pytest.approx(3)
        assert figures.itl_ms == pytest.approx(18.2) and figures.itl_p99_ms is None
        assert cut.figures is not None and cut.figures.finish_reason == "length"
        assert branch.figures is not None and branch.figures.num_given_tokens == 2

        packed = store.packed(TIMES, first.id)
        assert packed is not None
        times = unpack_times(packed)
        assert (times.first_scheduled, times.finished) == (0.003, 0.175)
        assert [event.num_tokens for event in times.tokens] == [1] * 5
        assert times.ttft_s == 0.084 and times.itl_s == pytest.approx([0.0182] * 4)

        records = tokens_of(store, branch).records
        assert [record.text for record in records] == [
            "Another ", "Segments", "Another Segments", " follow."
        ]  # fmt: skip
        assert [r.origin for r in records[:3]] == [Origin.KEPT, Origin.CHOSEN, Origin.SAMPLED]
        assert (records[1].token_id, records[1].logprob, records[1].rank) == (7001, -1.5, 2)
        assert records[1].alternatives[2] == Alternative(7002, "Swap", -2.25)
        has_tokens, has_times = (
            sum(len(store.messages_with(table, one.id)) for one in store.conversations())
            for table in (TOKENS, TIMES)
        )
        assert (has_tokens, has_times) == (9, 7)

        hello = conversation(store, "Say hello").path()[-1]
        drafted = tokens_of(store, hello)
        assert drafted.model == "Tiny"
        assert [record.is_draft for record in drafted.records] == [False, True, False]
        assert drafted.records[2].rejected == (" friend", "!")


def test_files_precisions_and_ends_of_replies_are_there(older: Path) -> None:
    with chats() as store:
        asked, answer = conversation(store, "Notes, in short").path()
        assert [file["name"] for file in asked.attachments] == ["notes.md", "data.csv"]
        assert asked.attachments[0]["text"] == NOTES
        assert [(p.start, p.num_tokens, p.precision) for p in answer.passages] == [
            (0, 0, "bf16"), (11, 2, "bf16 · int8 weights")
        ]  # fmt: skip
        words = "Written in bf16, from token 3 on in bf16 · int8 weights."
        assert note_of(answer.passages) == words
        _, failed, _, stopped = conversation(store, "Why is the sky blue?").path()
        assert (failed.state.value, failed.text) == ("error", "")
        assert failed.error is not None and "9,000 tokens" in failed.error.cause
        assert failed.error.remedy == "Shorten it."
        assert (stopped.state.value, stopped.text) == ("stopped", "It is ")
        counted = conversation(store, "Count to ten").path()[-1]  # it was being written
        assert (counted.state.value, counted.text) == ("interrupted", "one two three")


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("größe", ["Notes, in short"]),  # in a file that was given
        ("Segments follow", ["What is paging?"]),  # in a branch that is not shown
        ("two three", ["Count to ten"]),
        ("forget", []),  # deleted
    ],
)
def test_the_chats_are_searched(older: Path, words: str, titles: list[str]) -> None:
    with chats() as store:
        found = {one.id: one.title for one in store.conversations()}
        assert [found[hit.conversation_id] for hit in store.search(words)] == titles


def of_bundle(bundle: Bundle) -> tuple[Any, ...]:
    return bundle.conversation, bundle.messages, dict(bundle.tokens), dict(bundle.times)


def test_exported_chats_are_what_is_stored_and_are_exported_the_same(older: Path) -> None:
    text = (older / "exports" / "chats.json").read_text(encoding="utf-8")
    bundles = parse(text)
    assert len(bundles) == 4 and dump(bundles) == text
    with chats() as store:
        stored = {one.id: one for one in store.conversations()}
        for bundle in bundles:
            there = collect(store, stored[bundle.conversation.id])
            assert of_bundle(there) == of_bundle(bundle)
    with_times = {i: times for bundle in bundles for i, times in bundle.times.items()}
    assert len(with_times) == 7


def test_exported_chats_are_imported_where_there_are_none(older: Path) -> None:
    paths.chats_file().unlink()
    text = (older / "exports" / "chats.json").read_text(encoding="utf-8")
    with chats() as store:
        for bundle in parse(text):
            assert of_bundle(keep(store, bundle)) == of_bundle(bundle)
        assert conversation(store, "What is paging?").path()[-1].text == ANSWER


def test_chats_as_markdown_are_imported(older: Path) -> None:
    read = lambda name: from_markdown((older / "exports" / name).read_text(encoding="utf-8"))
    paging, notes = read("chat.md"), read("chat_with_files.md")
    assert paging.conversation.title == "What is paging?"
    assert paging.conversation.system_prompt == "Answer in one sentence."
    asked, answer = paging.messages
    assert asked.text == "What is paging?"
    assert answer.text.replace("\n", "") == ANSWER.replace("\n", "")  # lines of thought apart
    asked, answer = notes.messages
    assert [file["name"] for file in asked.attachments] == ["notes.md", "data.csv"]
    assert asked.attachments[0]["text"] == NOTES
    assert (asked.text, answer.text) == ("Summarize both files.", "Two files: notes and figures.")
