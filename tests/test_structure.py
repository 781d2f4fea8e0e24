"""What `python -m tests.structure` counts, on a small checkout of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.structure import imports, sentences, source
from tests.structure.__main__ import measure

FILES = {
    "README.md": "Three words, and\nfive more.",
    "engine/__init__.py": "",
    "engine/steps.py": "from engine.cache import pool\n",
    "engine/cache/__init__.py": "",
    "engine/cache/pool.py": "def use():\n"
    "    from engine.cache import blocks\n    from engine import steps\n",
    "engine/cache/blocks.py": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from engine.cache.pool import use\n",
    "app/__init__.py": "",
    "app/features/__init__.py": "",
    "app/features/chat/__init__.py": "from app.features.chat.page import show\n",
    "app/features/chat/page.py": "from app.features.chat import words\ndef show(): ...\n",
    "app/features/chat/words.py": "",
    "app/features/server/__init__.py": '"""Nothing of ours."""\n',
    "app/features/server/switch.py": "from app.features.chat.words import x\n",
    "widgets/label.py": '''"""No sentence: a docstring."""
import re
NAME = "kind"
HINT = "Turn a knob to see more."
PATTERN = re.compile("a b")
SQL = "SELECT a FROM b"
def show(n: "a type"):
    raise ValueError("no sentence either")
def many(n):
    return f"{n} chats of their own" + f"{n} {n}"
''',
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def test_files_lines_and_statements(root: Path) -> None:
    report = measure(root)
    widgets = report["sizes"]["widgets"]
    assert (widgets["files"], widgets["lines"], widgets["statements"]) == (1, 10, 10)
    assert report["sizes"]["app"]["lines of"] == {
        "app/features/chat": 3, "app/features/server": 2,
        "app/(loose)": 0,
    }  # fmt: skip
    assert report["loose files"]["engine"] == ["engine/__init__.py", "engine/steps.py"]
    assert report["about servers"] == {"app/features/server": 2}
    assert report["words of README.md"] == 5


def test_late_imports_close_a_circle_and_those_of_types_do_not(root: Path) -> None:
    running, _ = imports.imports(source.read(root))
    assert imports.circles(running) == [["engine/cache/pool.py", "engine/steps.py"]]
    assert imports.circles(imports.between_rooms(running)) == [["engine/cache", "engine/steps.py"]]


def test_an_init_is_imported_where_it_does_something(root: Path) -> None:
    running, _ = imports.imports(source.read(root))
    assert running["app/features/server/switch.py"] == {
        "app/features/chat/words.py", "app/features/chat/__init__.py",
    }  # fmt: skip
    assert running["app/features/chat/page.py"] == {"app/features/chat/words.py"}  # it is below


def test_modules_with_one_importer_in_their_folder(root: Path) -> None:
    code = source.read(root)
    _, named = imports.imports(code)
    assert imports.with_one_importer(code, named) == {
        "app/features/chat/page.py": "app/features/chat/__init__.py",
        "engine/cache/blocks.py": "engine/cache/pool.py",
    }


def test_circles_of_any_depth() -> None:
    chain = {str(n): [str(n + 1)] for n in range(3000)} | {"3000": ["0"], "a": ["b", "0"]}
    assert [len(circle) for circle in imports.circles(chain)] == [3001]
    assert imports.circles({"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c"]}) == [
        ["a", "b"], ["c", "d"],
    ]  # fmt: skip


def test_sentences_that_a_user_reads(root: Path) -> None:
    found = sentences.sentences(source.read(root))
    assert [(s.place, s.text) for s in found] == [
        ("widgets/label.py:4", "Turn a knob to see more."),
        ("widgets/label.py:10", "{} chats of their own"),
    ]
    hits = {words: len(some) for words, some in sentences.avoided(found).items() if some}
    assert hits == {"knobs?": 1, "of (?:its|their|your) own": 1}


@pytest.mark.parametrize("room", ["engine", "app"])
def test_the_files_that_a_readme_names_are_there(room: str) -> None:
    text = (ROOT / room / "README.md").read_text("utf-8")
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    missing = {
        name for name in named if not ((ROOT / room / name).exists() or (ROOT / name).exists())
    }
    assert len(named) > 10 and missing == set()
