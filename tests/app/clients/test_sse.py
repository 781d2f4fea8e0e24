"""Events out of bytes, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients import stream as sse
from app.clients.stream import SseParser


def parsed(*parts: bytes) -> list[str]:
    parser = SseParser()
    found = [event for part in parts for event in parser.feed(part)]
    last = parser.close()
    return found + ([last] if last is not None else [])


LINES = st.text(
    st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=8
)
EVENTS = st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=5)


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(
    events: list[list[str]], end: str, data: st.DataObject
) -> None:
    text = ""
    for lines in events:
        text += f": a comment{end}id: 7{end}"
        text += "".join(f"data: {line}{end}" for line in lines) + end
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert parsed(*parts) == ["\n".join(lines) for lines in events]


def test_an_event_is_given_with_its_last_byte() -> None:
    parser = SseParser()
    assert list(parser.feed(b"data: a\r\n\r")) == ["a"]
    assert list(parser.feed(b"\ndata: b\n\n")) == ["b"]


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"event: x\n\n", []),  # no data
        (b"data: end", ["end"]),  # the server left out the empty line
        (b": ping\n\n: ping\n\n", []),
        (b"data: \xff\n\n", ["\N{REPLACEMENT CHARACTER}"]),
    ],
)
def test_small_print(raw: bytes, events: list[str]) -> None:
    assert parsed(raw) == events


def test_bytes_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_PENDING", 100)
    with pytest.raises(ValueError, match="100 B"):
        parsed(b"data: " + b"x" * 101)
    with pytest.raises(ValueError, match="100 B"):
        parsed(*[b"data: 0123456789\n"] * 12)
