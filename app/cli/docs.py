"""`inferdeck docs`: the documentation in the terminal."""

from __future__ import annotations

import argparse
import json

from app.documents import NAMES, Document, documents, read

NAME = "docs"
HELP = "list or print the documentation"
DESCRIPTION = "List the documents that are installed with the program, or print one of them."
EPILOG = """\
examples:
  inferdeck docs
  inferdeck docs gpu
  inferdeck docs command-line | less
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "document", nargs="?", choices=NAMES, metavar="NAME",
        help=f"document to print: {', '.join(NAMES)}",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    if args.document:
        document = read(args.document)
        print(json.dumps(_plain(document)) if args.json else document.text.rstrip("\n"))
        return 0
    found = documents()
    print(json.dumps({"documents": list(map(_plain, found))}) if args.json else as_list(found))
    return 0


def as_list(found: list[Document]) -> str:
    """A line for each with its subject, and its path below."""
    width = max(len(document.name) for document in found)
    indent = " " * (width + 2)
    return "\n".join(
        f"{document.name.ljust(width)}  {document.summary}\n{indent}{document.path}"
        for document in found
    )


def _plain(document: Document) -> dict[str, str]:
    return {**document._asdict(), "path": str(document.path)}
