"""Entries of a step in arrays are those that went in, and nothing the collector has to look at."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from engine.snapshot import PackedEntries, StepEntry, StepRecord, entry_of, packed, unpacked

NUMBER = st.integers(0, 2**31 - 1)
ENTRY = st.builds(
    StepEntry, st.text(max_size=3), st.sampled_from(["prefill", "decode"]), *[NUMBER] * 6,
    st.booleans(),
)  # fmt: skip


@given(st.lists(ENTRY, max_size=6, unique_by=lambda e: e.request_id), st.integers(-7, 7))
def test_what_is_packed_is_what_was_there(given: list[StepEntry], place: int) -> None:
    step = StepRecord(3, 0.5, 0.1, tuple(given), len(given), 0, kv_usage=0.5)
    kept = packed(step)
    assert isinstance(kept.entries, PackedEntries) and packed(kept) is kept
    assert kept == step and step == kept and hash(kept) == hash(step)
    assert unpacked(kept).entries == step.entries and unpacked(step) is step
    assert len(kept.entries) == len(given) and kept.entries[place:] == tuple(given[place:])
    if -len(given) <= place < len(given):
        assert kept.entries[place] == given[place] and kept.entries[place] in kept.entries
    for entry in [*given, StepEntry("nobody", "decode", 1)]:
        expected = entry if entry in given else None
        assert entry_of(kept, entry.request_id) == entry_of(step, entry.request_id) == expected
    for field in ("num_tokens", "num_context"):
        assert kept.entries.numbers(field).tolist() == [getattr(e, field) for e in given]


def test_the_collector_sees_a_few_objects_however_many_requests_there_are() -> None:
    entries = PackedEntries([StepEntry(f"r{n}", "decode", 1) for n in range(256)])
    gc.collect()  # a tuple of texts is no longer looked at
    seen = [each for each in gc.get_referents(entries) if gc.is_tracked(each)]
    assert all(isinstance(each, type) for each in seen)
