"""Entries of a step, and output events of a request, in arrays are those that went in, and nothing
the collector has to look at."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.scheduling.request import Request
from engine.snapshot import (
    PackedEntries,
    PackedTokens,
    RequestTimes,
    StepEntry,
    StepRecord,
    TokenEvent,
    entry_of,
    packed,
    unpacked,
)
from engine.snapshot.steps import FEW_ENTRIES

NUMBER = st.integers(0, 2**31 - 1)
ENTRY = st.builds(
    StepEntry, st.text(max_size=3), st.sampled_from(["prefill", "decode"]), *[NUMBER] * 6,
    st.booleans(),
)  # fmt: skip


@given(st.lists(ENTRY, max_size=6, unique_by=lambda e: e.request_id), st.integers(-7, 7))
def test_what_is_packed_is_what_was_there(given: list[StepEntry], place: int) -> None:
    step = StepRecord(3, 0.5, 0.1, tuple(given), len(given), 0, kv_usage=0.5)
    kept = dataclasses.replace(step, entries=cast("Any", PackedEntries(given)))
    assert packed(kept) is kept and packed(step) == step
    assert isinstance(packed(step).entries, PackedEntries) == (len(given) > FEW_ENTRIES)
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


@given(st.lists(st.builds(TokenEvent, st.floats(0, 1e6), st.integers(1, 9)), max_size=6),
       st.integers(-7, 7))  # fmt: skip
def test_packed_output_events_are_those_that_were_there(
    given: list[TokenEvent], place: int
) -> None:
    plain, kept = tuple(given), PackedTokens(given)
    assert kept == plain and plain == kept and hash(kept) == hash(plain)
    assert tuple(kept) == plain and len(kept) == len(plain) and bool(kept) == bool(plain)
    assert kept[place:] == plain[place:] and kept[:place] == plain[:place]
    if -len(plain) <= place < len(plain):
        assert kept[place] == plain[place] and type(kept[place].num_tokens) is int
    times, packed_times = RequestTimes(0.0, 0.1, plain, 2e6), RequestTimes(0.0, 0.1, kept, 2e6)
    assert times == packed_times
    for name in ("first_token", "num_output_tokens", "ttft_s", "itl_s", "tpot_s"):
        assert getattr(packed_times, name) == getattr(times, name)


def test_the_times_of_a_request_that_has_ended_hold_no_object_for_each_token() -> None:
    request = Request("r", (1, 2), SamplingParams(), 0, 0.0, max_num_tokens=100)
    request.token_events += [TokenEvent(float(n), 1) for n in range(50)]
    assert isinstance(request.times().tokens, tuple)  # grows: what has been told is not copied
    request.finished = 60.0
    tokens = request.times().tokens
    assert isinstance(tokens, PackedTokens) and tokens == tuple(request.token_events)
    assert not any(isinstance(one, TokenEvent) for one in gc.get_referents(tokens))
