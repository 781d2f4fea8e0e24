"""The chat's model without Qt: the tree of versions, prompts, titles, figures, sampling."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.chat.conversation import (
    CONTROLS,
    NEW_TITLE,
    Conversation,
    Role,
    State,
    sampling_from_dict,
    sampling_to_dict,
)
from app.features.chat.figures import Figures, figures_details, figures_line
from app.features.chat.open_reply import Progress
from app.features.chat.sampling import built_in_presets, shown_value, with_field
from app.features.chat.titles import title_of
from engine.messages import NO_STEP, OutputEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason, RequestTimes, TokenEvent
from engine.units import date_text


def exchange(conversation: Conversation, parent: str | None, text: str, reply: str) -> str:
    """Add a message and its reply; the reply's id."""
    user = conversation.add(Role.USER, parent, text)
    answer = conversation.add(Role.ASSISTANT, user.id)
    answer.text, answer.state = reply, State.COMPLETE
    return answer.id


def shown(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation.path()]


def test_an_edited_message_begins_another_branch_and_the_old_one_is_kept() -> None:
    c = Conversation()
    first = exchange(c, None, "one", "1")
    exchange(c, first, "two", "2")
    old = c.path()[0]
    edited = c.add(Role.USER, None, "uno")
    assert shown(c) == ["uno"]
    assert c.version_of(edited) == (2, 2)
    changed = c.show(old)
    assert shown(c) == ["one", "1", "two", "2"]
    assert set(changed) == {old.id}


def test_showing_a_message_shows_all_that_leads_to_it() -> None:
    c = Conversation()
    first = exchange(c, None, "a", "1")
    deep = exchange(c, first, "b", "2")
    again = c.add(Role.ASSISTANT, c.messages[first].parent_id)  # regenerated: hides b
    again.text = "1'"
    assert shown(c) == ["a", "1'"]
    c.show(c.messages[deep])
    assert shown(c) == ["a", "1", "b", "2"]
    assert c.show(c.messages[deep]) == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_the_path_follows_the_versions_shown_last(steps: list[tuple[int, bool]]) -> None:
    c = Conversation()
    for number, is_user in steps:
        parents = [None, *c.messages]
        c.add(Role.USER if is_user else Role.ASSISTANT, parents[number % len(parents)], "x")
    messages = list(c.messages.values())
    for number, _ in steps:
        target = messages[number % len(messages)]
        c.show(target)
        path = c.path()
        assert target in path
        assert [m.parent_id for m in path] == [None, *[m.id for m in path[:-1]]]
        assert all(m.shown == max(v.shown for v in c.versions(m.parent_id)) for m in path)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_all_versions_are_numbered_together_as_one_by_one(steps: list[tuple[int, bool]]) -> None:
    conversation = Conversation()
    ids: list[str | None] = [None]
    for place, is_user in steps:
        role = Role.USER if is_user else Role.ASSISTANT
        ids.append(conversation.add(role, ids[place % len(ids)]).id)
    numbers = conversation.numbering()
    assert numbers == {m.id: conversation.version_of(m) for m in conversation.messages.values()}


def test_a_prompt_alternates_and_begins_with_the_system_prompt() -> None:
    c = Conversation(system_prompt="Be brief.")
    failed = exchange(c, None, "one", "")
    user = c.add(Role.USER, failed, "two")
    reply = c.add(Role.ASSISTANT, user.id)
    assert [tuple(m.values()) for m in c.prompt_for(reply)] == [
        ("system", "Be brief."),
        ("user", "one\n\ntwo"),
    ]


def test_records_come_back_the_same() -> None:
    c = Conversation("t", False, "s", SamplingParams(temperature=0.2, stop=("x",)), "P")
    reply = exchange(c, None, "q", "a")
    c.messages[reply].figures = Figures(3, 10, 4, "m", "stop", 84.0, 3.0)
    back = Conversation.from_record(c.record())
    back.load(m.record() for m in c.messages.values())
    assert back.messages == c.messages
    assert (back.title, back.sampling, back.preset) == ("t", c.sampling, "P")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("What is TTFT?", "What is TTFT?"),
        ("# Heading\n\nmore", "Heading"),
        ("  \n**bold** `x` ", "bold x"),
        ("", NEW_TITLE),
        ("word " * 30, "word word word word word word word word word…"),
        ("x" * 90, "x" * 48 + "…"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title_of(text) == title


def finished(num_gaps: int = 211) -> OutputEvent:
    tokens = tuple(TokenEvent(10.084 + 0.0182 * n, 1) for n in range(num_gaps + 1))
    times = RequestTimes(10.0, 10.003, tokens, tokens[-1].time)
    return OutputEvent("r", "", (), 14.0, 9, 803, 768, finish_reason=FinishReason.STOP, times=times)


def test_the_line_of_figures() -> None:
    figures = Figures.of(finished(), 212, "Qwen3")
    assert figures_line(figures) == (
        "TTFT 84 ms (queue and tokenization 3 ms · prefill 81 ms, 768 of 803 tokens cached)"
        "    mean ITL 18.2 ms    decode 54.9 tok/s    212 tokens"
    )
    assert "p99 18.2 ms" in figures_details(figures)
    assert Figures.from_dict({**asdict(figures), "from_a_newer_version": 1}) == figures
    served = Figures.of(replace(finished(), step_index=NO_STEP), 212, "Qwen3")
    assert served == replace(figures, is_served=True)
    assert "queue and connection 3 ms" in figures_line(served)


def test_p99_needs_a_hundred_samples() -> None:
    assert Figures.of(finished(99), 100, "").itl_p99_ms is None
    assert Figures.of(finished(100), 101, "").itl_p99_ms == pytest.approx(18.2)
    alone = Figures.of(finished(0), 1, "")
    assert alone.itl_ms is None and figures_line(alone).endswith("cached)    1 token")


def test_progress_counts_gaps_after_the_first_event() -> None:
    progress = Progress()
    assert progress.itl_s is None
    for n, size in enumerate((1, 2, 2)):
        progress.add(OutputEvent("r", "x", (0,) * size, 5.0 + 0.04 * n, n, 7, 0))
    assert (progress.num_tokens, progress.num_prompt_tokens) == (5, 7)
    assert progress.itl_s == pytest.approx(0.020)


def test_every_sampling_field_is_a_parameter_and_survives_storing() -> None:
    params = SamplingParams()
    for name, control in CONTROLS.items():
        value = control.minimum + control.step if control.unset is None else control.unset + 1
        params = with_field(params, name, value)
        assert shown_value(params, name) == pytest.approx(value)
    params = with_field(params, "stop", ["###"])
    assert sampling_from_dict(sampling_to_dict(params)) == params
    for name, control in CONTROLS.items():
        if control.unset is not None:
            unset = with_field(params, name, control.unset)
            assert getattr(unset, name) == getattr(SamplingParams(), name)


def test_built_in_presets() -> None:
    presets = {preset.name: preset.params for preset in built_in_presets()}
    assert list(presets) == ["Precise", "Balanced", "Creative", "Greedy"]
    assert presets["Greedy"].temperature == 0 < presets["Precise"].temperature


def test_dates() -> None:
    now = 1_790_000_000.0
    day = 86_400
    assert ":" in date_text(now, now)
    assert date_text(now - day, now) == "yesterday"
    assert len(date_text(now - 3 * day, now)) == 3
    assert date_text(now - 400 * day, now).endswith("2025")
