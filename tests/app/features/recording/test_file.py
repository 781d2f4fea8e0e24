"""The file of a recording: read as far as it goes, or refused with the reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.recording import file
from app.features.recording.file import RecordingError
from app.wire.recording import Frame
from engine import messages as m
from tests.app.features.recording.samples import CONFIG, LOADED
from tests.figures import numbers
from tests.widgets import synthetic


def make_file(folder: Path, segments: int = 3) -> Path:
    path = folder / f"a{file.SUFFIX}"
    snapshot = dataclasses.replace(synthetic.snapshot(1.0, num_running=2), config=CONFIG)
    frames = [Frame(float(i), m.SnapshotEvent(snapshot)) for i in range(4)]
    parts = [file.pack([Frame(0.0, LOADED), *frames])] * segments
    file.write(path, {"created": "2026-11-21T13:00:00"}, parts)
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = file.read(make_file(tmp_path))
    assert len(recording.frames) == 15 and recording.notice == ""
    assert recording.about["created"] == "2026-11-21T13:00:00"
    assert list(tmp_path.iterdir()) == [recording.path]  # no part is left


def test_a_file_cut_anywhere_is_opened_as_far_as_it_goes_or_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    data = path.read_bytes()
    lengths = set()
    for cut in range(1, len(data), 37):
        path.write_bytes(data[:cut])
        try:
            recording = file.read(path)
        except RecordingError as error:
            assert error.cause and error.remedy
            continue
        assert len(recording.frames) <= 15
        lengths.add(len(recording.frames))
        assert len(recording.frames) % 5 == 0 or "readable" in recording.notice
    assert {5, 10} < lengths


@given(st.integers(0, 5000), st.integers(1, 255))
def test_a_damaged_file_never_raises_anything_else(place: int, flip: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = make_file(Path(folder), 2)
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= flip
        path.write_bytes(bytes(data))
        try:
            assert len(file.read(path).frames) <= 10
        except RecordingError as error:
            assert error.cause


@pytest.mark.parametrize(
    ("data", "figures", "part"),
    [
        (b"GIF89a....", [], ""),
        (b"", [], ""),
        (b"INFERDECK-FLIGHT 99\n{}\n", [99, file.VERSION], "format"),
        (b"INFERDECK-FLIGHT 1\n{\n", [], "header"),
        (b"INFERDECK-FLIGHT 1\n{}\n", [], "data"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, figures: list[int], part: str
) -> None:
    path = tmp_path / "x.inferdeck-flight"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=f"inferdeck-flight.*{part}") as raised:
        file.read(path)
    assert numbers(raised.value.cause) == figures and raised.value.remedy
    with pytest.raises(RecordingError, match="none"):
        file.read(tmp_path / "none")
