"""`inferdeck docs`: every document is listed, printed, linked and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.__main__ import main
from app.cli.main import build_parser
from app.paths import NAMES, docs_dir, documents, read
from engine.config import SETTINGS
from tests.test_imports import ROOT

LINK = re.compile(r"\]\(([^)#\s]+)\)")


def test_the_list_has_every_document_with_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    shown = capsys.readouterr().out
    for document in documents():
        assert document.name in shown and document.summary in shown and str(document.path) in shown
    assert main(["docs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["documents"]
    assert [document["name"] for document in listed] == list(NAMES)


def test_one_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "gpu"]) == 0
    text = read("gpu").text
    assert capsys.readouterr().out.strip() == text.strip()
    assert main(["docs", "gpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == text


def test_an_unknown_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["docs", "nothing"])
    assert end.value.code == 2
    assert "command-line" in capsys.readouterr().err


def test_every_file_is_a_document_with_a_title_and_a_summary() -> None:
    assert {path.stem for path in docs_dir().glob("*.md")} == set(NAMES)
    for document in documents():
        assert document.text.startswith(f"# {document.title}\n\n")
        assert 0 < len(document.summary) <= 100 and document.summary.endswith(".")


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(docs_dir().glob("*.md"))], ids=str)
def test_links_lead_to_files(path: Path) -> None:
    links = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if ":" not in link]
    missing = [link for link in links if not (path.parent / link).is_file()]
    assert not missing


def test_the_command_line_document_has_every_command_and_engine_option() -> None:
    text = read("command-line").text
    commands = next(a.choices for a in build_parser()._actions if a.metavar == "COMMAND")
    assert commands
    assert not [name for name in commands if f"inferdeck {name}" not in text]
    names = [setting.flag.removeprefix("--") for setting in SETTINGS.values()]
    assert not [name for name in names if not re.search(rf"`--(\[no-\])?{name}[ `]", text)]
