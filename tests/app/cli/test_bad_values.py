"""Every option of every command refuses impossible values with its own name: exit code 2, no
traceback, no name of a function."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import values
from app.cli.main import build_parser, main
from app.cli.options import check_writable, write_report
from engine.config import SETTINGS
from engine.errors import ConfigError
from tests import ROOT

UNREADABLE = ("", " ", "\0", "a\0b", "\udcff", "--")
NOT_NUMBERS = (*UNREADABLE, "nan", "inf", "-inf", "1e400", "-1e400", "9" * 25, "9" * 5000, "many",
               "1,2", "0x10", "1 2")  # fmt: skip
NEEDED = {"generate": ["--prompt", "x"], "quantize": ["--method", "rtn", "--output", "D"],
          "screenshot": ["--output", "D"]}  # fmt: skip
FREE = {"prompt", "chat", "system", "stop", "keep"}
"""Texts of the user: any that can be encoded."""


PARSER = build_parser()


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building it takes longer than parsing."""
    monkeypatch.setattr("app.cli.main.build_parser", lambda: PARSER)


def options() -> Iterator[tuple[str, argparse.Action]]:
    """Each option that takes a value, with its command."""
    (commands,) = (a for a in PARSER._actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in {"": PARSER, **commands.choices}.items():
        for action in parser._actions:
            if action.option_strings and action.nargs != 0 and action is not commands:
                yield name, action


OPTIONS = [pytest.param(*pair, id=f"{pair[0]}{pair[1].option_strings[-1]}") for pair in options()]


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message."""
    with pytest.raises(SystemExit) as end:
        main(argv)
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "" and "Traceback" not in err
    return err


def is_number(action: argparse.Action) -> bool:
    """Whether the help names a number (or a size) as the value."""
    return action.metavar in ("N", "X", "R", "S", "SIZE")


@pytest.mark.parametrize(("command", "action"), OPTIONS)
def test_bad_values_are_refused_by_name(
    command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = action.option_strings[-1]
    bad = NOT_NUMBERS if is_number(action) else UNREADABLE
    for value in bad:
        if action.dest in FREE and not value.strip():
            continue
        argv = [*([command] if command else []), *NEEDED.get(command, []), f"{flag}={value}"]
        if command == "generate" and action.dest in ("prompt", "chat", "prompt_token_ids"):
            argv = [command, f"{flag}={value}"]
        message = refused(argv, capsys)
        assert f"argument {flag}: " in message, (value, message)
        assert not re.search(r"invalid \S+ value|lambda|Reader|object at", message), message
        assert len(message) < 1000


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("serve --shutdown-timeout nan", ("--shutdown-timeout", "86,400")),
        ("serve --shutdown-timeout -1", ("--shutdown-timeout", "0 to")),
        ("serve --shutdown-timeout 1e9", ("--shutdown-timeout", "86,400 seconds")),
        ("serve --port 65536", ("--port", "65,535")),
        ("serve --port -1", ("--port", "65,535")),
        ("serve --host http://here", ("--host", "http://here")),
        ("serve --host a..b", ("--host", "a..b")),
        ("serve --max-body-bytes 0", ("--max-body-bytes", "4096")),
        ("serve --max-connections 0", ("--max-connections", "1")),
        ("serve --max-num-seqs 0", ("--max-num-seqs", "1 to 1,024 requests")),
        ("serve --max-model-len 9999999999", ("--max-model-len", "tokens")),
        ("generate --prompt-token-ids -1", ("--prompt-token-ids", "-1")),
        ("generate --prompt-token-ids 1,x", ("--prompt-token-ids", "'x'")),
        ("generate --prompt x --top-p 0", ("--top-p", "0")),
        ("generate --prompt x --max-tokens 0", ("--max-tokens", "1 to ")),
        ("generate --prompt x --max-tokens -4", ("--max-tokens", "-4")),
        ("generate --prompt x --top-k 99999999999", ("--top-k", "99999999999")),
        ("generate --prompt x --logit-bias 5=1e400", ("--logit-bias", "1e400")),
        ("generate --prompt x --logit-bias 5", ("--logit-bias", "ID=BIAS")),
        ("generate --prompt x --logit-bias 5=1e31", ("--logit-bias", "-1e30 to 1e30")),
        ("generate --prompt x --temperature abc", ("--temperature", "0 to 100")),
        (f"generate --prompt x --seed {10**20}", ("--seed", f"{2**63 - 1:,}")),
        ("bench --request-rate 0", ("--request-rate", "0.001 to 1,000,000")),
        ("bench --request-rate 1_0", ("--request-rate", "1_0")),
        ("serve --max-model-len ٣", ("--max-model-len", "٣")),
        ("serve --num-threads 1_000", ("--num-threads", "1_000")),
        ("serve --watermark 0.0_1", ("--watermark", "0.0_1")),
        ("serve --kv-cache-memory-bytes ٣MiB", ("--kv-cache-memory-bytes", "٣MiB")),
        ("bench --base-url ftp://x", ("--base-url", "ftp://")),
        ("bench --base-url http://h:99999", ("--base-url", "99999")),
        ("evaluate --reference-dtype float8", ("--reference-dtype", "bfloat16")),
        ("quantize --method rtn --output D --bits 0", ("--bits", "1")),
        ("--attach http://", ("--attach", "http://")),
        ("--gpu-layers 0", ("--gpu-layers", "0")),
    ],
)
def test_numbers_out_of_range_and_malformed_text(
    argv: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(argv.split(), capsys)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("bench --workload voice-bot --quantization int8 --quantization-group-size 64",
         ("--quantization-group-size", "--quantization int8", "int4")),
        ("serve --quantization-group-size 64", ("--quantization-group-size", "int4")),
        ("generate --prompt x --prompt-lookup-min 6", ("--prompt-lookup-min", "6", "5")),
        ("generate --prompt x --prompt-lookup-max 1", ("--prompt-lookup-max", "1", "2")),
        ("serve --speculative-model DIR", ("--speculative-model", "draft_model", "eagle3")),
        ("serve --gpu-layers 5 --device cpu", ("--gpu-layers", "5", "CPU")),
        ("quantize --method int8 --output D --group-size 64", ("--group-size", "int8")),
        ("quantize --method rtn --output D --calibration F", ("--calibration", "rtn")),
        ("--prompt-lookup-min 6", ("--prompt-lookup-min", "6", "5")),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other(
    argv: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and all(word in err for word in words)


@pytest.mark.parametrize("argv", [[], ["generate", "--prompt", "x"], ["serve"]])
def test_layers_on_a_gpu_need_one(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.hardware.devices.gpus", lambda: ())
    assert main([*argv, "--gpu-layers", "5"]) == 2
    assert "--gpu-layers" in capsys.readouterr().err


@pytest.mark.parametrize("name", [n for n, s in SETTINGS.items() if s.maximum is not None])
def test_the_bounds_of_a_setting_are_said_with_their_unit(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.maximum is not None
    with pytest.raises(ConfigError) as refusal:
        setting.check(setting.type(setting.maximum * 2 + 1))
    assert name in refusal.value.cause and setting.unit in refusal.value.remedy
    digits = refusal.value.remedy.replace(",", "")
    assert str(setting.maximum if setting.type is int else f"{setting.maximum:g}") in digits


@pytest.mark.parametrize("text", ["localhost", "127.0.0.1", "::1", "[::1]", "fe80::1%eth0",
                                  "0.0.0.0", "my-host.example.org", "a_b"])  # fmt: skip
def test_hosts(text: str) -> None:
    assert values.host(text) == text


class TestReports:
    @pytest.mark.parametrize("name", ["folder", "missing/report.json", "file/report.json",
                                      "x" * 256])  # fmt: skip
    def test_a_report_that_cannot_be_written_is_refused_first(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
        path = tmp_path / name
        if name == "folder":
            path = path / "inside"
            path.mkdir()
        found = sorted(tmp_path.rglob("*"))
        for command in (["bench", "--workload", "voice-bot"], ["evaluate", "--text", "starter"]):
            argv = [*command, "--model", "none", "--output-json", str(path)]
            assert main(argv) == 2
            assert "--output-json" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == found

    def test_a_link_and_a_pipe_stay_what_they_are(self, tmp_path: Path) -> None:
        target, link = tmp_path / "target", tmp_path / "link"
        link.symlink_to(target)
        check_writable(link)
        write_report(link, {"a": 1})
        assert link.is_symlink() and json.loads(target.read_text()) == {"a": 1}
        check_writable(Path("/dev/null"))
        write_report(Path("/dev/null"), {"a": 1})
        assert not Path("/dev/null").is_file()

    def test_files_beside_the_report_stay(self, tmp_path: Path) -> None:
        file, beside = tmp_path / "report.json", tmp_path / "report.json.part"
        beside.write_text("of the user")
        check_writable(file)
        assert list(tmp_path.iterdir()) == [beside]
        write_report(file, {"a": 1})
        assert sorted(tmp_path.iterdir()) == [file, beside]
        assert beside.read_text() == "of the user"
        assert file.stat().st_mode == beside.stat().st_mode

    def test_a_full_disk_keeps_the_old_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "report.json"
        write_report(file, {"a": 1})

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
            patch.setattr("os.fsync", fail)
            write_report(file, {"a": 2})
        assert json.loads(file.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [file]


def command(*argv: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "app", *argv], cwd=ROOT, timeout=60, stderr=subprocess.PIPE, **more
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    "argv", [("docs",), pytest.param(("doctor", "--json"), marks=pytest.mark.slow)]
)
def test_a_full_disk_behind_stdout_is_reported(argv: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = command(*argv, stdout=full)
    assert done.returncode == 1
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_closed_streams_are_no_traceback() -> None:
    done = command("docs", preexec_fn=lambda: os.closerange(0, 2), close_fds=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("given", [b"\xff\xfe", b"a" * 70_000_000])
def test_stdin_is_bounded_utf8_text(given: bytes) -> None:
    done = command("generate", "--prompt", "-", input=given, stdout=subprocess.DEVNULL)
    assert done.returncode == 2 and b"stdin" in done.stderr and b"Traceback" not in done.stderr


def test_text_is_escaped_where_the_terminal_cannot_show_it() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = command("docs", "gpu", stdout=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.isascii()


def test_a_panic_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Panic(BaseException):
        """As a compiled library raises it."""

    def run(args: object) -> int:
        raise Panic("retry limit")

    monkeypatch.setattr("app.cli.doctor.run", run)
    monkeypatch.setattr("app.cli.main.build_parser", build_parser)
    assert main(["doctor"]) == 1
    assert "Panic: retry limit" in capsys.readouterr().err
