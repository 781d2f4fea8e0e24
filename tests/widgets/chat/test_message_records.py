"""The records of a conversation are made when they are looked at, and keep what came meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from widgets.chat.records import MessageRecord, MessageRecords

COUNT = 6
STEPS = st.lists(
    st.tuples(st.sampled_from(("look", "update", "append")), st.integers(0, COUNT)), max_size=30
)


@given(STEPS)
def test_a_record_has_what_its_message_has(steps: list[tuple[str, int]]) -> None:
    texts = [f"{place}" for place in range(COUNT)]  # of the messages, as their owner has them
    made: list[int] = []

    def record_of(place: int) -> MessageRecord:
        made.append(place)
        return MessageRecord(f"m{place}", False, texts[place])

    records = MessageRecords([f"m{place}" for place in range(COUNT)], record_of)
    for step, place in steps:
        known = f"m{place}"  # the last one is of another conversation
        if place < COUNT and step != "look":
            texts[place] += "!"
        if step == "append":
            records.append_text(known, "!")
        elif step == "update":
            records.update(MessageRecord(known, False, texts[place] if place < COUNT else ""))
        elif place < COUNT:
            assert records[place].text == texts[place]
    looked_at = len(made)
    assert looked_at == len(set(made)) <= len(records) == COUNT
    assert [records[place].text for place in range(COUNT)] == texts
