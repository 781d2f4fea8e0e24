"""`inferdeck install-desktop`: the entry in the desktop's menu."""

from __future__ import annotations

import argparse
import json

from app import desktop_entry as entry
from app.cli.options import add_json_option

NAME = "install-desktop"
HELP = "Add Inferdeck to the desktop's application menu."
DESCRIPTION = "Add Inferdeck with its icon to the application menu of this user (Linux)."
EPILOG = """\
examples:
  inferdeck install-desktop
  inferdeck install-desktop --remove"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--remove", action="store_true", help="Remove the entry and its icon.")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    places = entry.remove() if args.remove else entry.install()
    if args.json:
        print(json.dumps({name: str(path) for name, path in places._asdict().items()}))
        return 0
    verb = "Removed" if args.remove else "Installed"
    print(f"{verb}: {places.entry}\n{' ' * len(verb)}  {places.icon}")
    if not args.remove:
        print("To remove both: inferdeck install-desktop --remove")
    return 0
