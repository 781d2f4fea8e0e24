"""Damaged chats, recordings and settings: what can be read is shown, and what cannot is named."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.files import DAMAGE, PLACES
from tests.corpus.stores import CHATS, RECORDING, open_chats, open_recording, open_settings

SETTINGS = ("profiles.json", "shortcuts.json", "layouts.json", "window.ini")
Change = Callable[[Path], object]
RUNS: dict[str, Callable[[Path], int]] = {
    "chats": open_chats, "recording": open_recording, "settings": open_settings,
}  # fmt: skip


def cases() -> Iterator[Case]:
    for control, run in RUNS.items():
        yield Case("storage", f"{control}/unchanged", run, control=control, expected="same")
    for key, change, expected in _chat_changes():
        yield _case("chats", CHATS, key, change, expected)
    for key, change in _recording_changes():
        yield _case("recording", RECORDING, key, change)
    for name in SETTINGS:
        for key, (damage, _) in DAMAGE.items():
            yield _case("settings", name, f"{name}/{key}", partial(_rewrite, damage))
        for key in (
            "folder",
            "fifo",
            "link_to_itself",
            "link_to_zeros",
            "empty",
            "link_to_nothing",
        ):
            yield _case("settings", name, f"{name}/{key}", partial(_replace, PLACES[key]))
    for name, entries in ENTRIES.items():
        for key, value in entries.items():
            change = partial(_put, {"version": 1, **value})
            yield _case("settings", name, f"{name}/entry/{key}", change)


def _case(control: str, name: str, key: str, change: Change, expected: Expected = "sound") -> Case:
    # of an ini file every key has a default; a value that was moved is told
    own: Expected = "usable" if name == "window.ini" else expected
    names = () if name == "window.ini" else (Path(name).stem,)
    return Case("storage", f"{control}/{key}", RUNS[control], lambda folder: change(folder / name),
                control, own, names)  # fmt: skip


def _rewrite(damage: Callable[[bytes], bytes], file: Path) -> None:
    file.write_bytes(damage(file.read_bytes()))


def _replace(place: Change, file: Path) -> None:
    file.unlink()
    place(file)


def _put(content: Any, file: Path) -> None:
    file.write_text(json.dumps(content))


ENTRIES: dict[str, dict[str, Any]] = {
    "profiles.json": {
        "null": {"profiles": None}, "5": {"profiles": 5}, "of_5": {"profiles": [5]},
        "name_5": {"profiles": [{"name": 5, "settings": {}}]},
        "settings_list": {"profiles": [{"name": "a", "settings": []}]},
        "without_name": {"profiles": [{"settings": {}}]},
        "newer": {"version": 99, "profiles": []}, "version_text": {"version": "1"},
    },
    "shortcuts.json": {
        "null": {"keys": None}, "5": {"keys": 5}, "of_5": {"keys": [5]},
        "nothing": {}, "newer": {"version": 99}, "version_list": {"version": []},
    },
    "layouts.json": {
        "null": {"layouts": None}, "5": {"layouts": 5}, "of_5": {"layouts": [5]},
        "name_5": {"layouts": [{"name": 5}]}, "newer": {"version": 99, "layouts": []},
    },
}  # fmt: skip
PAGE = 4096


def _chat_changes() -> Iterator[tuple[str, Change, Expected]]:
    yield from ((key, partial(_replace, place), "sound") for key, place in PLACES.items()
                if key not in ("nothing", "link_to_nothing"))  # fmt: skip
    for kept in (1, 15, 16, 99, 100, 512, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE, 20 * PAGE):
        yield f"cut/{kept}", partial(_cut, kept), "sound"
    for name, offset, content in (
        ("magic", 0, b"SQLite format 4\0"), ("page_size_0", 16, b"\0\0"),
        ("page_size_3", 16, b"\0\3"), ("write_version", 18, b"\x09"), ("reserved", 20, b"\xff"),
        ("fractions", 21, b"\0\0\0"), ("num_pages", 28, b"\xff\xff\xff\xff"),
        ("freelist", 32, b"\0\0\0\5\0\0\0\5"), ("schema_format", 44, b"\0\0\0\x63"),
        ("encoding", 56, b"\0\0\0\x09"), ("user_version", 60, b"\0\0\0\x63"),
        ("negative_version", 60, b"\xff\xff\xff\xff"), ("version_0", 60, b"\0\0\0\0"),
        ("application_id", 68, b"nope"),
    ):  # fmt: skip
        yield f"header/{name}", partial(_bytes_at, offset, content), "sound"
    for page in range(12):
        yield f"zero_page/{page}", partial(_bytes_at, page * PAGE, bytes(PAGE)), "sound"
    for seed in range(24):
        yield f"noise/{seed}", partial(_noise, seed), "sound"
    for key, sql in STATEMENTS.items():
        # a title or a time that is lost: the chat is there, by another name or in another place
        is_lost = key.startswith(("conversations.title", "conversations.updated"))
        yield f"sql/{key}", partial(_sql, sql), "usable" if is_lost else "sound"
    for suffix in ("-wal", "-shm", "-journal"):
        yield (
            f"beside/{suffix}",
            partial(_beside, suffix, b"\x37\x7f\x06\x82" + b"x" * 5000),
            "sound",
        )
    for suffix in ("-wal", ".lock"):
        yield f"beside/{suffix}_folder", partial(_folder_beside, suffix), "sound"
    yield "beside/lock_rubbish", partial(_beside, ".lock", b"rubbish" * 100), "sound"


def _cut(kept: int, file: Path) -> None:
    os.truncate(file, kept)


def _bytes_at(offset: int, content: bytes, file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)


def _noise(seed: int, file: Path) -> None:
    """64 bytes somewhere."""
    source = random.Random(seed)
    place = source.randrange(file.stat().st_size - 64)
    _bytes_at(place, source.randbytes(64), file)


def _sql(statements: str, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.create_function("contains", 2, lambda a, b: 0, deterministic=True)
        connection.executescript(f"PRAGMA writable_schema = ON; {statements}")


def _beside(suffix: str, content: bytes, file: Path) -> None:
    file.with_name(file.name + suffix).write_bytes(content)


def _folder_beside(suffix: str, file: Path) -> None:
    beside = file.with_name(file.name + suffix)
    beside.unlink(missing_ok=True)
    beside.mkdir()


COLUMNS = {
    "conversations": ("title", "system_prompt", "sampling", "preset", "created", "updated",
                      "is_pinned", "title_is_automatic"),
    "messages": ("parent_id", "role", "text", "state", "shown", "created", "figures", "error",
                 "attachments", "passages"),
}  # fmt: skip
WRONG = {"number": "5.5", "rubbish": "'{'", "blob": "x'fffe'", "list": "'[]'"}
STATEMENTS = {
    **{f"no_{table}": f"DROP TABLE {table};" for table in (
        "conversations", "messages", "messages_fts", "presets", "reply_tokens", "reply_times",
        "unsent")},
    **{f"no_column_{column}": f"ALTER TABLE messages DROP COLUMN {column};"
       for column in ("text", "role", "figures", "passages")},
    **{
        f"{table}.{column}={name}": f"UPDATE {table} SET {column} = {value} WHERE rowid = 7;"
        for table, columns in COLUMNS.items() for column in columns for name, value in WRONG.items()
        if column != "title" or name == "blob"  # else it is a text
    },
    "own_parent": "UPDATE messages SET parent_id = id;",
    "foreign_parent": "UPDATE messages SET parent_id = 'nobody';",
    "giant_text": "UPDATE messages SET text = zeroblob(50000000) WHERE rowid = 7;",
    "other_program": "DROP TABLE messages; DROP TABLE conversations; PRAGMA user_version = 0;"
    " CREATE TABLE contacts(name TEXT);",
    "view_for_table": "DROP TABLE unsent; CREATE VIEW unsent AS SELECT 1 AS a;",
    "preset_rubbish": "UPDATE presets SET sampling = '{';",
    "preset_list": "UPDATE presets SET sampling = '[]';",
    "raising_trigger": "CREATE TRIGGER t BEFORE INSERT ON messages BEGIN"
    " SELECT RAISE(ABORT, 'no'); END;",
}  # fmt: skip


def _recording_changes() -> Iterator[tuple[str, Change]]:
    yield from ((key, partial(_replace, place)) for key, place in PLACES.items())
    for kept in (1, 16, 17, 19, 30, 50, 60, 100, 500, 1000):
        yield f"cut/{kept}", partial(_cut, kept)
    for seed in range(24):
        yield f"noise/{seed}", partial(_noise, seed)
    for key, head in HEADS.items():
        yield f"head/{key}", partial(_other_head, head)
    for key, lines in LINES.items():
        yield f"lines/{key}", partial(_other_lines, lines)
    for field in FRAME_FIELDS:
        for name, value in VALUES.items():
            if field == "t" and isinstance(value, int):
                continue  # a time like any other
            yield f"frame/{field}={name}", partial(_other_field, field, value)


HEADS = {
    "version_0": b"INFERDECK-FLIGHT 0\n{}\n", "version_99": b"INFERDECK-FLIGHT 99\n{}\n",
    "version_text": b"INFERDECK-FLIGHT x\n{}\n",
    "version_digits": b"INFERDECK-FLIGHT \xc2\xb2\n{}\n",
    "version_long": b"INFERDECK-FLIGHT " + b"9" * 10_000 + b"\n{}\n",
    "about_list": b"INFERDECK-FLIGHT 1\n[]\n", "about_rubbish": b"INFERDECK-FLIGHT 1\n{\n",
    "about_deep": b"INFERDECK-FLIGHT 1\n" + b'{"a":' * 100_000 + b"\n",
    "about_number": b'INFERDECK-FLIGHT 1\n{"a":' + b"9" * 10_000 + b"}\n",
    "no_lines": b"INFERDECK-FLIGHT 1",
}  # fmt: skip
LINES = {
    "empty": b"", "rubbish": b"rubbish\n", "list": b"[]\n", "null": b"null\n",
    "deep": b"[" * 100_000 + b"\n", "number": b"9" * 10_000 + b"\n",
    "kind_unknown": b'{"t": 1, "k": "nope"}\n', "kind_list": b'{"t": 1, "k": []}\n',
    "time_text": b'{"t": "x", "k": "unloaded"}\n', "time_nan": b'{"t": NaN, "k": "unloaded"}\n',
    "time_list": b'{"t": [], "k": "unloaded"}\n', "not_utf-8": b'{"t": "\xff"}\n',
    "bomb": b" " * (2**28 + 10),
}  # fmt: skip
FRAME_FIELDS = ("t", "k", "steps", "requests", "memory", "blocks", "counters", "gpus", "threads",
                "speculation", "samples")  # fmt: skip
VALUES: dict[str, Any] = {"text": "x", "-1": -1, "list": [], "object": {}, "deep": [[[[[5]]]]],
                          "huge": 10**30}  # fmt: skip


def _other_head(head: bytes, file: Path) -> None:
    rest = file.read_bytes().split(b"\n", 2)[2]
    file.write_bytes(head + rest)


def _other_lines(lines: bytes, file: Path) -> None:
    """A segment with a right checksum."""
    packed = zlib.compress(lines, 1)
    head = b"INFERDECK-FLIGHT 1\n{}\n"
    file.write_bytes(head + struct.pack("<II", len(packed), zlib.crc32(packed)) + packed)


def _other_field(field: str, value: Any, file: Path) -> None:
    """Of the second frame's line."""
    from app.features.recording import file as recordings
    from app.wire.recording import encode

    first, second, *rest = encode(recordings.read(file).frames).splitlines()
    changed = json.dumps({**json.loads(second), field: value}).encode()
    _other_lines(b"\n".join((first, changed, *rest, b"")), file)
