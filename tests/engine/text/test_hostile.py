"""Hostile tokenizers, templates and texts end as an error of that text, in time and within memory,
and the next text is encoded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from engine.errors import (
    CheckpointError,
    ContextLengthError,
    InvalidRequestError,
)
from engine.text import work
from engine.text.lanes import SHORT_CHARACTERS
from engine.text.length import CHARACTERS_PER_TOKEN
from engine.text.tokenizer import CheckpointTokenizer, chat
from engine.text.work import Text
from tests import ROOT
from tests.engine.small_tokenizers import CHATML, byte_level, save
from tests.tiers import first_fast

HI = chat([{"role": "user", "content": "hi"}])
NESTED = "{% for i in range(99999) %}" * 4 + "{% endfor %}" * 4
ENDS_S = 60.0
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


def with_pattern(pattern: str) -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def exploding(character: str) -> Tokenizer:
    made = byte_level()
    steps = [normalizers.Replace(character, character * 50)] * 8
    made.normalizer = normalizers.Sequence(steps)
    return made


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Opens a tokenizer whose texts may take a second, and one more per million characters."""
    monkeypatch.setattr(work, "_OWN_S", 1.0)
    monkeypatch.setattr(work, "_BYTES_PER_S", 1_000_000)
    made = []

    def open_one(tokenizer: Tokenizer, template: str | None = None) -> CheckpointTokenizer:
        folder = tmp_path / str(len(made))
        save(tokenizer, folder, template=template, eos_token="<|end|>")
        made.append(CheckpointTokenizer(folder))
        return made[-1]

    yield open_one
    for tokenizer in made:
        tokenizer.close()


@pytest.mark.parametrize(
    ("tokenizer", "template", "given"),
    first_fast(4, [
        (with_pattern(r"(?:a|a|aa)+$"), None, Text("a" * 128 + "b")),  # a panic in Rust
        (with_pattern(r"\s*[\r\n]+|\s+"), None, Text(" " * 11_000_000)),
        (exploding("\u2603"), None, Text("\u2603")),
        (byte_level(), NESTED, HI),
        (byte_level(), "{{ 'x' * 10000000000 }}", HI),
        (byte_level(), "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", HI),
        (byte_level(), "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", HI),
        (byte_level(), "{{ raise_exception('x' * 10000000) }}", HI),
    ]),
    ids=["panic", "blanks", "explosion", "endless", "huge", "huge loop", "recursion", "long error"],
)
def test_a_text_that_is_too_much(opened: Any, tokenizer: Any, template: Any, given: Any) -> None:
    tokenizer = opened(tokenizer, template)
    began = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        tokenizer.submit(given).result(ENDS_S + given.num_characters / 50_000)
    assert time.monotonic() - began < ENDS_S
    assert caught.value.remedy and len(caught.value.cause) < 700
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_others_are_encoded_meanwhile(opened: Any) -> None:
    tokenizer = opened(byte_level(), NESTED)
    long = chat([{"role": "user", "content": "x" * (SHORT_CHARACTERS + 1)}])
    endless = [tokenizer.submit(long, client) for client in ("a", "b", "a")]
    for _ in range(5):
        assert tokenizer.encode("hello")
    assert not endless[-1].done()
    for future in endless:
        with pytest.raises(InvalidRequestError):
            future.result(ENDS_S)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json"])
def test_a_folder_that_explodes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save(exploding("\u2603"), tmp_path)
    file = tmp_path / name
    written = json.loads(file.read_text())
    added = {"content": "\u2603", "normalized": True, "special": False, "lstrip": False,
             "rstrip": False, "single_word": False}  # fmt: skip
    if name == "tokenizer.json":
        written["added_tokens"].append({"id": 420, **added})
    else:
        written["added_tokens_decoder"] = {"420": added}
    file.write_text(json.dumps(written))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        CheckpointTokenizer(Path("."))
    assert str(tmp_path) in caught.value.cause and "tokenizer.json" in caught.value.remedy


@posix
def test_a_fifo_is_no_tokenizer(tmp_path: Path) -> None:
    save(byte_level(), tmp_path)
    os.mkfifo(tmp_path / "added_tokens.json")
    with pytest.raises(CheckpointError) as caught:
        CheckpointTokenizer(tmp_path)
    assert "added_tokens.json" in caught.value.cause


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        (Text("x" * 10_000, context=100), ("10,000", "100")),
        (Text(" the cache" * 2000, context=1000), ("20,000", "1,000")),
        (Text("x" * 150, context=100), ("150 tokens", "100")),
        (chat([{"role": "user", "content": "z" * 200}], 100), ("100",)),
        (Text("x" * (100 * CHARACTERS_PER_TOKEN + 1), context=100), ("25,601", "25,600")),
    ],
)
def test_too_long_for_the_model(opened: Any, given: Any, numbers: tuple[str, ...]) -> None:
    tokenizer = opened(with_pattern("."), CHATML)
    with pytest.raises(ContextLengthError) as caught:
        tokenizer.submit(given).result(ENDS_S)
    assert all(number in caught.value.cause for number in numbers)
    assert "max_model_len" in caught.value.remedy


@posix
def test_a_killed_process_is_replaced(opened: Any) -> None:
    tokenizer = opened(byte_level())
    ids = tokenizer.encode("hello")
    (pid,) = tokenizer._pool.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert tokenizer.encode("hello") == ids
    assert tokenizer._pool.pids != [pid]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


def test_processes_threads_and_descriptors_end_with_the_tokenizer(tmp_path: Path) -> None:
    save(byte_level(), tmp_path)
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        tokenizer = CheckpointTokenizer(tmp_path)
        pool = tokenizer._pool
        tokenizer.encode("x" * (SHORT_CHARACTERS + 1))
        assert tokenizer.encode("hello")
        pids = pool.pids
        assert len(pids) == 2
        del tokenizer  # nobody closes it
        pool.join()
        assert not any(map(psutil.pid_exists, pids))
    assert descriptors() == before and threading.active_count() == threads


PARENT = """
import sys
from pathlib import Path
from engine.text.tokenizer import CheckpointTokenizer, chat
tokenizer = CheckpointTokenizer(Path(sys.argv[1]))
tokenizer.encode("x" * 100000)
tokenizer.encode("hello")
print(*tokenizer._pool.pids, flush=True)
sys.stdin.read()
"""


@posix
@pytest.mark.slow
@pytest.mark.parametrize("ends", ["killed", "by itself"])
def test_processes_end_with_the_program(tmp_path: Path, ends: str) -> None:
    save(byte_level(), tmp_path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        if ends == "killed":
            parent.kill()
    psutil.wait_procs(children, ENDS_S)
    assert not any(child.is_running() for child in children)


def test_processes_end_at_rest_and_start_again(opened: Any) -> None:
    tokenizer = opened(byte_level())
    ids, pool = tokenizer.encode("hello"), tokenizer._pool
    (pid,) = pool.pids
    waiting = [tokenizer.submit(Text("hello")) for _ in range(20)]
    tokenizer.rest()
    assert [future.result(ENDS_S) for future in waiting] == [ids] * 20
    pool.join()
    assert not psutil.pid_exists(pid) and not pool.pids
    assert tokenizer.encode("x" * (SHORT_CHARACTERS + 1)) and tokenizer.encode("hello") == ids


@posix
def test_a_process_that_does_not_read_is_ended(opened: Any) -> None:
    tokenizer = opened(byte_level())
    ids = tokenizer.encode("hello")
    (pid,) = tokenizer._pool.pids
    os.kill(pid, signal.SIGSTOP)
    more_than_a_pipe_takes = "\U0001f642" * SHORT_CHARACTERS * 4
    with pytest.raises(InvalidRequestError):
        tokenizer._pool._threads[0].process.ask(Text(more_than_a_pipe_takes))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert tokenizer.encode("hello") == ids


def test_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(byte_level(), tmp_path)
    for name in ("json.py", "msgspec.py", "engine.py", "tokenizers.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'evil')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    tokenizer = CheckpointTokenizer(Path("."))
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    tokenizer.close()
    assert not (tmp_path / "evil").exists()
