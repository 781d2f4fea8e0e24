"""The files of a checkout, and how much there is of what."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("app", "engine", "widgets")
SUFFIXES = (".py", ".c", ".h")
ABOUT_SERVERS = {
    "client", "clients", "connection", "connections", "dialects", "isolated", "link", "remote",
    "server", "servers", "serving", "wire",
}  # fmt: skip
"""A folder of app is about servers, or about engines elsewhere, if it has one of these names."""


class Source(NamedTuple):
    """The product's files by their path below the root, and the syntax trees of the Python ones."""

    texts: dict[str, str]
    trees: dict[str, ast.Module]

    def lines(self, path: str) -> int:
        return self.texts[path].count("\n")


@cache
def parse(text: str) -> ast.Module:
    """`ast.parse`, once for all checks in a process: seconds for every file of the product."""
    return ast.parse(text)


def read(root: Path) -> Source:
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--", *PACKAGES],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = sorted(path for path in set(listing.stdout.split("\0")) if path.endswith(SUFFIXES))
    texts = {
        path: (root / path).read_text("utf-8") for path in paths if (root / path).is_file()
    }  # what was deleted and not committed is still listed
    trees = {path: parse(text) for path, text in texts.items() if path.endswith(".py")}
    return Source(texts, trees)


def room_of(path: str) -> str:
    """The direct subfolder of a package, or the file itself where it lies loose. What lies below
    app/features is a level deeper: each feature is a room."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[:2] == ["app", "features"] else 2])


def sizes(source: Source) -> dict[str, Any]:
    """Files and lines (as `wc -l` counts) of each package and each room, loose files together, and
    statements: the nodes of the syntax tree that are `ast.stmt`, docstrings among them."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        paths = [path for path in source.texts if path.startswith(package + "/")]
        statements = (
            isinstance(node, ast.stmt)
            for path in paths
            if path in source.trees
            for node in ast.walk(source.trees[path])
        )
        rooms: Counter[str] = Counter()
        for path in paths:
            room = room_of(path)
            rooms[f"{package}/(loose)" if room == path else room] += source.lines(path)
        found[package] = {
            "files": len(paths), "lines": sum(map(source.lines, paths)),
            "statements": sum(statements), "lines of": dict(rooms.most_common()),
        }  # fmt: skip
    return found


def loose_files(source: Source) -> dict[str, list[str]]:
    """The *.py that lie directly in each package, `__init__.py` among them."""
    return {p: [path for path in source.trees if path.rpartition("/")[0] == p] for p in PACKAGES}


def about_servers(source: Source) -> dict[str, int]:
    """The folders of app with a name in ABOUT_SERVERS, and the lines below each."""
    lines: Counter[str] = Counter()
    for path in source.texts:
        parts = path.split("/")
        for depth in range(1, len(parts) - 1):
            if parts[0] == "app" and parts[depth] in ABOUT_SERVERS:
                lines["/".join(parts[: depth + 1])] += source.lines(path)
    return dict(sorted(lines.items()))
