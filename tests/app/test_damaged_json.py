"""Damaged JSON files and recordings: a default with a notice, or an error with the place."""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from PySide6.QtCore import QSettings

from app.bench.workload import special_token_ids
from app.features.chat.files import ChatFileError, parse
from app.features.chat.reply_data import ReplyTokens, unpack_times
from app.features.models.downloads import DownloadQueue
from app.features.quantize.layers import read_result
from app.features.recording.file import RecordingError, read
from app.link.child_process import MARK, parse_ready, parse_record
from app.link.hardware_monitor import PeaksStore
from app.storage.json_file import NotWrittenError
from app.storage.profiles import Profile, ProfileError, ProfileStore
from app.storage.report_store import ReportStore
from app.storage.trash import Trash, TrashError
from app.window.crash_report import RunMarker
from app.window.keymap import KeyMap
from app.window.layouts import CHAT, Layout, LayoutError, LayoutStore
from app.window.settings_store import SettingsStore
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.quantize.recipe import RESULT_FILE

DEEP = b'{"a":' * 100_000
BAD: dict[str, bytes] = {
    "deep": DEEP,
    "deep list": b"[" * 100_000,
    "number": b"3",
    "text": b'"x"',
    "null": b"null",
    "list of numbers": b"[1, 2, 3]",
    "empty": b"",
    "binary": bytes(range(256)),
    "half": b'{"version": 1, "profiles": [{"name": "x"',
    "other version": b'{"version": {"a": 1}}',
    "wrong types": b'{"version": 1, "profiles": 3, "layouts": 3, "shortcuts": 3, "layers": 3}',
    "not a number": b'{"version": NaN, "x": [NaN, 1e999]}',
    "long number": b'{"version": ' + b"9" * 5000 + b"}",
}


def make_bad(file: Path, name: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(file) if name == "FIFO" else file.write_bytes(BAD[name])


def problem_of_downloads(file: Path) -> str:
    queue = DownloadQueue(None, file)  # type: ignore[arg-type] # none is started
    assert list(queue) == []
    return queue.problem


def problem_of_trash(file: Path) -> str:
    trash = Trash(file)
    assert trash.entries == []
    return trash.problem


def problem_of_layouts(file: Path) -> str:
    store = LayoutStore(file)
    assert store.own == ()
    return store.problem


KEPT: dict[str, Callable[[Path], str]] = {
    "profiles": lambda file: ProfileStore(file).problem,
    "shortcuts": lambda file: KeyMap(file).problem,
    "layouts": problem_of_layouts,
    "downloads": problem_of_downloads,
    "trash": problem_of_trash,
}


@pytest.mark.parametrize("name", [*BAD, "FIFO"])
@pytest.mark.parametrize("kind", KEPT)
def test_an_unreadable_file_is_named_and_kept_aside(tmp_path: Path, kind: str, name: str) -> None:
    file = tmp_path / f"{kind}.json"
    make_bad(file, name)
    problem = KEPT[kind](file)
    aside = tmp_path / f"{kind}.damaged-1.json"
    assert str(aside) in problem and os.path.lexists(aside) and not os.path.lexists(file)
    assert name == "FIFO" or aside.read_bytes() == BAD[name]


def write_profiles(file: Path) -> object:
    return ProfileStore(file).save(Profile("new"))


def write_shortcuts(file: Path) -> object:
    keys = KeyMap(file)
    keys.declare({"a": "Ctrl+N"})
    return keys.bind("a", "Ctrl+M")


def write_layouts(file: Path) -> object:
    return LayoutStore(file).save(Layout("new", CHAT, "Chat"))


def write_downloads(file: Path) -> object:
    queue = DownloadQueue(None, file)  # type: ignore[arg-type] # none is started
    return queue.close()


def write_trash(file: Path) -> object:
    folder = file.parent / "model"
    folder.mkdir()
    return Trash(file).put(folder)


HEALTHY: dict[str, tuple[str, Callable[[Path], object], type[Exception] | None]] = {
    "profiles": ('{"version": 1, "profiles": []}', write_profiles, ProfileError),
    "shortcuts": ('{"version": 1, "shortcuts": {}}', write_shortcuts, NotWrittenError),
    "layouts": ('{"version": 1, "layouts": []}', write_layouts, LayoutError),
    "downloads": ('{"acme/tiny": [1, 2]}', write_downloads, None),
    "trash": ('[["/x/model", "/x/.inferdeck-deleted-1"]]', write_trash, TrashError),
}
"""Content, what writes the file, and the error of that where the file was not read."""


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_file_that_cannot_be_read_at_the_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    file, (content, write, refusal) = tmp_path / f"{kind}.json", HEALTHY[kind]
    file.write_text(content)
    opened = os.open

    def fail(path: object, *given: int) -> int:
        if path == file:
            raise OSError(number, os.strerror(number), str(file))
        return opened(path, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert str(file) in KEPT[kind](file)
        if refusal is None:
            write(file)
        else:
            with pytest.raises(refusal):
                write(file)
    assert [f.name for f in tmp_path.iterdir() if f.is_file()] == [file.name]
    assert file.read_text() == content
    if kind == "trash":
        assert (tmp_path / "model").exists()
        assert [str(entry.original) for entry in Trash(file).entries] == ["/x/model"]
    if kind == "downloads":
        assert [d.repo_id for d in DownloadQueue(None, file)] == ["acme/tiny"]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_link_to_nothing_is_named_and_stays(tmp_path: Path, kind: str) -> None:
    file, (_, write, refusal) = tmp_path / f"{kind}.json", HEALTHY[kind]
    file.symlink_to(tmp_path / "not mounted" / file.name)
    assert str(file) in KEPT[kind](file)
    with suppress(*filter(None, [refusal])):
        write(file)
    assert file.is_symlink() and not file.exists()


@pytest.mark.parametrize("kind", HEALTHY)
def test_only_what_cannot_be_made_again_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    file, (content, write, _) = tmp_path / f"{kind}.json", HEALTHY[kind]
    file.write_text(content)
    write(file)
    assert len(synced) == (kind != "downloads")


@pytest.mark.parametrize("name", [*BAD, "FIFO"])
def test_other_files_become_defaults(tmp_path: Path, name: str) -> None:
    for file in ("peaks.json", "running-1.json", f"model/{RESULT_FILE}"):
        make_bad(tmp_path / file, name)
    assert PeaksStore(tmp_path / "peaks.json").find(EngineConfig(model="m"), "cpu") is None
    assert RunMarker(tmp_path).remains() == []
    assert read_result(tmp_path / "model") is None
    make_bad(tmp_path / "evaluations" / "one" / "report.json", name)
    shelf = ReportStore(tmp_path / "evaluations").list()
    assert shelf.reports == () and len(shelf.problems) == (name != "FIFO")


@pytest.mark.parametrize(
    "line",
    [DEEP.decode(), "[" * 100_000, '{"port": 1e999, "pid": 1}', '{"level": Infinity}', "3", "[]"],
)
def test_lines_of_a_child_process_that_are_damaged_are_other_output(line: str) -> None:
    assert parse_ready(line) is None and parse_record(MARK + line) is None


MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
WRONG = {
    "config.json": b'{"eos_token_id": ["x"]}',
    "generation_config.json": b'{"bos_token_id": {"a": 1}}',
    "tokenizer.json": b'{"added_tokens": [3]}',
    "tokenizer_config.json": b'{"added_tokens_decoder": {"x": 1}}',
}


@pytest.mark.parametrize("file", MODEL_FILES)
@pytest.mark.parametrize("name", ["deep", "list of numbers", "binary", "FIFO", "wrong"])
def test_special_tokens_name_a_damaged_file(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": [1, 2]}')
    assert special_token_ids(tmp_path) == {1, 2}
    (tmp_path / file).unlink(missing_ok=True)
    if name == "wrong":
        (tmp_path / file).write_bytes(WRONG[file])
    else:
        make_bad(tmp_path / file, name)
    with pytest.raises(CheckpointError, match=file):
        special_token_ids(tmp_path)


VALUES = {
    "models/recent": DEEP.decode(),
    "models/switch-times": '{"a": "b"}',
    "quantize/rates": '{"gptq": -1}',
    "tune/load": "[" * 5000,
    "connections/list": "[" * 100_000,
    "server/choice": DEEP.decode(),
}


def test_unreadable_settings_are_defaults_and_can_be_found_again(tmp_path: Path) -> None:
    path = tmp_path / "window.ini"
    ini = QSettings(str(path), QSettings.Format.IniFormat)
    for key, text in VALUES.items():
        ini.setValue(key, text)
    ini.setValue("version", "9" * 5000)
    ini.setValue("docks/chat-height", "²")
    ini.setValue("preferences/notices_kept", "[" * 100_000)
    ini.sync()
    del ini
    settings = SettingsStore(path)
    default = SettingsStore(tmp_path / "other.ini")
    names = ("recent", "switch_times", "quantize_rates", "load_choice", "connections", "serving")
    assert [getattr(settings, n) for n in names] == [getattr(default, n) for n in names]
    assert settings.dock_height_of("Chat") is None
    assert settings.preferences.get("notices_kept") == default.preferences.get("notices_kept")
    for key, text in VALUES.items():
        assert settings.text(f"unreadable/{key}", "") == text and key in settings.problem
    settings.sync()


@pytest.mark.parametrize(
    "text",
    ['{"format": NaN}', DEEP.decode(), "[" * 100_000, "9" * 5000]
    + [
        json.dumps({"format": "inferdeck-chats", "version": 2, "chats": [
            {"id": "c", "title": "t", "messages": [
                {"id": "m", "parent_id": None, "role": "user", "text": "x", name: value}
            ]}
        ]})
        for name, value in (("created", 10**30), ("shown", 2**63), ("shown", -(2**70)))
    ],
)  # fmt: skip
def test_chats_with_impossible_numbers_are_refused(text: str) -> None:
    with pytest.raises(ChatFileError) as caught:
        parse(text)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "data",
    [b"", b"x", zlib.compress(DEEP), zlib.compress(b"[" * 100_000), zlib.compress(b"\xff"),
     zlib.compress(b'{"ids": 3}'), zlib.compress(b"0" * 2**20)],
)  # fmt: skip
def test_damaged_data_of_replies_is_refused(data: bytes) -> None:
    for unpack in (ReplyTokens.unpack, unpack_times):
        with pytest.raises(ValueError):
            unpack(data)


def segment(lines: bytes) -> bytes:
    packed = zlib.compress(lines)
    return struct.pack("<II", len(packed), zlib.crc32(packed)) + packed


HEAD = b"INFERDECK-FLIGHT 1\n{}\n"
GOOD_LINE = b'{"t": 1.0, "k": "unloaded"}\n'
FRAMES = {
    "deep": b'{"t": 2.0, "k": "unloaded", "x":' + b"[" * 100_000 + b"\n",
    "NaN": b'{"t": NaN, "k": "unloaded"}\n',
    "huge": b'{"t": 1e999, "k": "unloaded"}\n',
    "list": b"[]\n",
    "wrong kind": b'{"t": 2.0, "k": []}\n',
    "wrong event": b'{"t": 2.0, "k": "loaded", "config": 3}\n',
    "wrong snapshot": b'{"t": 2.0, "k": "snapshot", "steps": 3}\n',
    "wrong times": b'{"t": 2.0, "k": "ended", "id": 3, "times": [1, 2, 3, 4]}\n',
    "binary": b"\xff\xfe\n",
    "empty lines": b"\n" * 10**6,
    "bomb": b"0" * (2**27 + 1),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_recording_is_shown_up_to_its_first_damaged_line(tmp_path: Path, name: str) -> None:
    file = tmp_path / "one.inferdeck-flight"
    file.write_bytes(HEAD + segment(GOOD_LINE) + segment(FRAMES[name]))
    recording = read(file)
    assert len(recording.frames) == 1 and recording.notice


HEADS = {
    "deep": b"INFERDECK-FLIGHT 1\n" + DEEP + b"\n",
    "list": b"INFERDECK-FLIGHT 1\n[]\n",
    "no end": b"INFERDECK-FLIGHT 1\n{}",
    "long version": b"INFERDECK-FLIGHT " + b"9" * 5000 + b"\n{}\n",
    "no frames": HEAD,
    "no magic": b"RIFF",
    "empty": b"",
}


@pytest.mark.parametrize("name", [*HEADS, "FIFO", "folder"])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "one.inferdeck-flight"
    if name in HEADS:
        file.write_bytes(HEADS[name])
    else:
        os.mkfifo(file) if name == "FIFO" else file.mkdir()
    with pytest.raises(RecordingError, match=file.name) as caught:
        read(file)
    assert caught.value.remedy
