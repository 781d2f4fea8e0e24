"""The desktop entry: read back as a desktop reads it."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import desktop_entry as entry
from app.cli.main import main
from app.paths import app_icon

if sys.platform != "linux":
    pytest.skip("desktop entries are a standard of Linux", allow_module_level=True)

VALIDATOR = shutil.which("desktop-file-validate")
ARGUMENTS = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f"), max_size=30)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("PATH", "")  # no update-desktop-database
    return tmp_path / "share"


def read(text: str) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, delimiters=("=",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return dict(parser["Desktop Entry"])


def command_of(text: str) -> list[str]:
    """As the specification reads Exec: the string's escapes, then quotes, then field codes."""
    value = read(text)["Exec"].replace("\\\\", "\\")
    return [argument.replace("%%", "%") for argument in shlex.split(value)]


@given(st.lists(ARGUMENTS.filter(lambda text: text.strip() == text), min_size=1, max_size=4))
def test_the_command_is_read_back_as_it_was_given(command: list[str]) -> None:
    assert command_of(entry.entry_text(command)) == command


@pytest.mark.skipif(VALIDATOR is None, reason="desktop-file-validate is not installed")
def test_the_validator_of_the_specification_has_no_remark(tmp_path: Path) -> None:
    file = tmp_path / "inferdeck.desktop"
    file.write_text(entry.entry_text(["/opt/my programs/inferdeck", "100%"]))
    done = subprocess.run([str(VALIDATOR), str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_install_writes_entry_and_icon_and_remove_deletes_them(home: Path) -> None:
    places = entry.install()
    assert all(place.is_relative_to(home) for place in places)
    assert places.icon.read_bytes() == app_icon().read_bytes()
    found = read(places.entry.read_text())
    assert found["Icon"] == places.icon.stem == found["StartupWMClass"] == places.entry.stem
    assert entry.install() == places  # again: replaced
    entry.remove()
    assert not any(place.exists() for place in places)
    assert entry.remove() == places


def test_a_folder_that_cannot_be_written_is_named(home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(entry.DesktopError, match=str(home)):
        entry.install()


def test_the_command_prints_the_places(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-desktop", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["entry"]).exists() and Path(told["icon"]).exists()
    assert main(["install-desktop"]) == 0
    assert "install-desktop --remove" in capsys.readouterr().out
    assert main(["install-desktop", "--remove"]) == 0
    assert not Path(told["entry"]).exists()


def test_the_entry_starts_this_program(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/nowhere/pytest"])
    command = command_of(entry.install().entry.read_text())
    assert Path(command[0]).is_absolute() and Path(command[0]).exists()
