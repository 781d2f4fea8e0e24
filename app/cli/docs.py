"""`inferdeck docs`: list or print the documentation."""

from __future__ import annotations

import argparse
import json

from app.cli.options import add_json_option
from app.paths import NAMES, Document, documents, read

NAME = "docs"
HELP = "List or print the documentation."
DESCRIPTION = "List the installed documents with their paths, or print one."
EPILOG = """\
examples:
  inferdeck docs
  inferdeck docs gpu
  inferdeck docs command-line | less
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "document", nargs="?", choices=NAMES, metavar="NAME",
        help=f"Document to print: {', '.join(NAMES)}.",
    )  # fmt: skip
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    if args.document:
        document = read(args.document)
        print(json.dumps(_plain(document)) if args.json else document.text.rstrip("\n"))
        return 0
    found = documents()
    print(json.dumps({"documents": list(map(_plain, found))}) if args.json else as_list(found))
    return 0


def as_list(found: list[Document]) -> str:
    """Name, summary and path of each document."""
    width = max(len(document.name) for document in found)
    indent = " " * (width + 2)
    return "\n".join(
        f"{document.name.ljust(width)}  {document.summary}\n{indent}{document.path}"
        for document in found
    )


def _plain(document: Document) -> dict[str, str]:
    return {**document._asdict(), "path": str(document.path)}
