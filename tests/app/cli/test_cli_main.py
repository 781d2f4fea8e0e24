"""The entry point: quick help, exit codes, and errors in words on stderr."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

from app.__main__ import main
from app.cli import doctor
from app.cli.main import build_parser
from engine.errors import (
    CheckpointError,
    ConfigError,
    InferdeckError,
    InvalidRequestError,
    OutOfMemoryError,
    UnsupportedModelError,
)
from tests import ROOT
from tests.tiers import first_fast

HEAVY = ("torch", "transformers", "numpy", "PySide6", "shiboken6", "pyqtgraph")


@pytest.fixture
def failing_doctor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `inferdeck doctor` raise."""

    def fail_with(error: BaseException) -> int:
        def run(args: object) -> int:
            raise error

        monkeypatch.setattr(doctor, "run", run)
        return main(["doctor"])

    return fail_with


@pytest.mark.parametrize(
    "command",
    first_fast(2, ["", "bench", "generate", "serve", "evaluate", "doctor", "docs", "screenshot"]),
)
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys\n"
        "from app.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    argv = [command, "--help"] if command else ["--help"]
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: inferdeck {command}".strip() in done.stdout


def test_main_help_shows_examples_and_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for text in ("examples:", "generate", "bench", "serve", "doctor", "screenshot"):
        assert text in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"inferdeck {version('inferdeck')}\n"


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["explode"], "inferdeck"),
        (["--no-such-flag"], "inferdeck"),
        (["generate"], "inferdeck generate"),
        *(
            ([name, *needed, "--no-such-flag"], f"inferdeck {name}")
            for name, needed in {
                "generate": ["--prompt", "x"], "bench": [], "serve": [], "doctor": [], "docs": [],
                "quantize": ["--output", "D"], "evaluate": ["--text", "starter"],
                "screenshot": ["--output", "D"],
            }.items()
        ),
    ],
)  # fmt: skip
def test_what_the_parser_refuses_is_one_line_and_a_hint(
    argv: list[str], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    what, hint = err.splitlines()
    assert what.startswith(f"{program}: ") and hint == f"See `{program} --help`."


def test_flags_are_not_abbreviated() -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "--work", "voice-bot"])
    assert end.value.code == 2


def test_pictures_have_the_size_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    parse = build_parser().parse_args
    assert parse(["screenshot", "--output", "D"]).size == (1600, 1000)
    assert parse(["screenshot", "--output", "D", "--size", "2560x1440"]).size == (2560, 1440)
    for wrong in ("1280", "1280x", "x800", "wide", "-1280x800", "1280x800x2", "10x10", "9000x800"):
        with pytest.raises(SystemExit) as end:
            parse(["screenshot", "--output", "D", f"--size={wrong}"])
        assert end.value.code == 2
        assert wrong in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("Bad.", "Mend it."), 2),
        (InvalidRequestError("Bad.", "Mend it."), 2),
        (CheckpointError("Bad.", "Mend it."), 2),
        (UnsupportedModelError("Bad.", "Mend it."), 2),
        (OutOfMemoryError("Bad.", "Mend it."), 1),
        (InferdeckError("Bad.", "Mend it."), 1),
    ],
)
def test_our_errors_are_cause_and_remedy(
    failing_doctor: Any, error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing_doctor(error) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "inferdeck: Bad.\nMend it.\n")


def test_names_in_errors_do_not_steer_the_terminal(
    failing_doctor: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_doctor(CheckpointError("x\x1b[2J\r\u202ey 漢 is missing.\nz", "Mend it."))
    err = capsys.readouterr().err
    assert err == "inferdeck: x\\x1b[2J\\r\\u202ey 漢 is missing.\nz\nMend it.\n"


def test_a_full_disk_is_named(failing_doctor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing_doctor(OSError(28, "No space left on device", "report.json")) == 1
    assert "report.json: No space left on device." in capsys.readouterr().err


def test_a_lack_of_memory_is_named(failing_doctor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing_doctor(MemoryError()) == 1
    assert "memory" in capsys.readouterr().err


def test_a_fault_shows_where_it_happened(
    failing_doctor: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing_doctor(ZeroDivisionError("by zero")) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "ZeroDivisionError: by zero" in err


def test_ctrl_c_ends_with_130(failing_doctor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing_doctor(KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_went_away_is_no_traceback() -> None:
    code = (
        "import sys, os\n"
        "from app.__main__ import main\n"
        "from app.cli import doctor\n"
        "read, write = os.pipe()\n"
        "os.close(read)\n"
        "os.dup2(write, 1)\n"
        "doctor.run = lambda args: print('much ' * 100_000)\n"
        "sys.exit(main(['doctor']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (1, "")
