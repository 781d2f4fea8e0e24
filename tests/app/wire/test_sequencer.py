"""Whatever is cut and whenever: every message arrives once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire.protocol import MAX_UNACKNOWLEDGED_FRAMES, ProtocolError, read_frame
from app.wire.sequencer import Sequencer

STEPS = st.lists(
    st.tuples(st.sampled_from(["say", "say", "say", "answer", "cut"]), st.integers(0, 5)),
    max_size=60,
)


@given(STEPS)
def test_every_message_arrives_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    here, there = Sequencer(), Sequencer()
    on_the_way: list[bytes] = []
    said: list[bytes] = []
    heard: list[bytes] = []

    def arrive(data: bytes) -> None:
        heard.extend(bytes(body) for _, body in there.receive(read_frame(data)))

    for step, number in steps:
        if step == "say":
            body = encode_number(len(said))
            said.append(body)
            on_the_way.append(here.number([("x", body)]))
            if number:
                arrive(on_the_way.pop(0))
        elif step == "answer":
            here.receive(read_frame(there.unnumbered()))
        else:  # some of what was on the way arrived, the rest is lost; the other side comes back
            for data in on_the_way[:number]:
                arrive(data)
            on_the_way = list(here.resend_after(there.received))
    for data in on_the_way:
        arrive(data)
    assert heard == said
    here.receive(read_frame(there.unnumbered()))
    assert not here.unacknowledged


def encode_number(number: int) -> bytes:
    return number.to_bytes(1, "big") if number < 128 else b"\xcd" + number.to_bytes(2, "big")


def test_what_is_not_acknowledged_is_bounded() -> None:
    here, there = Sequencer(), Sequencer()
    frames = []
    while here.has_room:
        frames.append(here.number([("x", b"\x00")]))
    assert len(frames) == MAX_UNACKNOWLEDGED_FRAMES
    there.receive(read_frame(frames[0]))
    here.receive(read_frame(there.unnumbered()))
    assert here.has_room
    large = Sequencer()
    large.number([("x", b"\xc6\x00\x90\x00\x00" + bytes(0x900000))])
    assert not large.has_room


def test_gaps_and_acknowledgements_of_nothing_are_refused() -> None:
    here, there = Sequencer(), Sequencer()
    here.number([("x", b"\x00")])
    with pytest.raises(ProtocolError, match=r"frame 1, .* 2"):
        there.receive(read_frame(here.number([("x", b"\x01")])))
    with pytest.raises(ProtocolError, match="Frame 7"):
        here.acknowledge(7)
    here.acknowledge(2)
    with pytest.raises(ProtocolError, match="2"):
        here.resend_after(1)
    with pytest.raises(ProtocolError, match="9"):
        here.resend_after(9)
