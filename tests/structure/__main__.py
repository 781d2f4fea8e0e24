"""The report: `python -m tests.structure --help` lists what can be asked for."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from tests import structure
from tests.structure import imports, sentences, source, token_path

ROOT = Path(__file__).parents[2]
SHORT = 60
"""A module of fewer lines is short."""


def measure(root: Path) -> dict[str, Any]:
    """Everything but the token's path, as JSON can hold it."""
    code = source.read(root)
    running, named = imports.imports(code)
    single = imports.with_one_importer(code, named)
    found = sentences.sentences(code)
    return {
        "sizes": source.sizes(code),
        "loose files": source.loose_files(code),
        "circles of modules": imports.circles(running),
        "circles of rooms": imports.circles(imports.between_rooms(running)),
        "one importer, in its folder": single,
        "of those short": [path for path in single if code.lines(path) < SHORT],
        "about servers": source.about_servers(code),
        "words of README.md": len((root / "README.md").read_text("utf-8").split()),
        "sentences": [tuple(sentence) for sentence in found],
        "words to avoid": {
            words: [tuple(sentence) for sentence in hits]
            for words, hits in sentences.avoided(found).items()
        },
    }


def show(report: dict[str, Any]) -> None:
    print("\nSize")
    for package, size in report["sizes"].items():
        print(f"  {package:8} {size['files']:4} files {size['lines']:7,} lines "
              f"{size['statements']:7,} statements")  # fmt: skip
    total = [sum(s[what] for s in report["sizes"].values())
             for what in ("files", "lines", "statements")]  # fmt: skip
    print("  {:8} {:4} files {:7,} lines {:7,} statements".format("all", *total))
    for size in report["sizes"].values():
        print("  " + ", ".join(f"{room} {lines:,}" for room, lines in size["lines of"].items()))
    print("\nLoose files")
    for package, paths in report["loose files"].items():
        print(f"  {package}: {len(paths)}")
    for what in ("modules", "rooms"):
        circles = report[f"circles of {what}"]
        print(f"\nCircles of {what}: {len(circles)}")
        for package in source.PACKAGES:
            own = [c for c in circles if any(p.startswith(package + "/") for p in c)]
            print(f"  {package}: sizes {[len(circle) for circle in own]}")
            for circle in own[:3]:
                print(f"    {len(circle)}: {', '.join(circle)}")
    single, short = report["one importer, in its folder"], report["of those short"]
    print(f"\nModules with one importer, which is in their folder: {len(single)}; "
          f"of fewer than {SHORT} lines: {len(short)}")  # fmt: skip
    print("  " + ", ".join(short))
    servers = report["about servers"]
    print(f"\nPackages about servers: {len(servers)}")
    print("  " + ", ".join(f"{path} {lines:,}" for path, lines in servers.items()))
    print(f"\nWords of README.md: {report['words of README.md']:,}")
    avoided = report["words to avoid"]
    places = {place for hits in avoided.values() for place, _ in hits}
    count = len(report["sentences"])
    print(f"\nSentences and labels: {count:,}; with words to avoid: {len(places)}")
    for words, hits in avoided.items():
        print(f"  {len(hits):4}  {words}")


def show_sample(found: list[tuple[str, str]], count: int, seed: int) -> None:
    """Some of the sentences, drawn at random, for a person to judge."""
    print(f"\n{count} of the sentences, seed {seed}")
    for place, text in sorted(random.Random(seed).sample(found, min(count, len(found)))):
        print(f"  {place}: {text}")


def show_trace(trace: dict[str, Any]) -> None:
    print(f"\nA token's path: {trace['ms to first paint']} ms from Send to the first paint "
          f"(profiled), {trace['idle files']} files ran in the idle time before")  # fmt: skip
    for name, part in trace["paths"].items():
        print(f"  {name}: {part['files']} files, {part['lines']:,} lines")
    first, more = trace["first"], trace["more"]
    print("  To the first paint (* ran when idle too):")
    print("\n".join(f"    {'*' if path in trace['idle'] else ' '} {path}" for path in first))
    print("  Only with the tokens after it:")
    print("\n".join(f"    {'*' if path in trace['idle'] else ' '} {path}" for path in more))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.structure", description=structure.__doc__
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--json", type=Path, help="write everything that was found to this file")
    parser.add_argument("--trace", action="store_true", help="also run the program once")
    parser.add_argument("--sentences", type=int, default=0, help="print so many, at random")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    root = args.root.resolve()
    report = measure(root)
    print(f"{root.name}:")
    show(report)
    if args.sentences:
        show_sample(report["sentences"], args.sentences, args.seed)
    if args.trace:
        report["trace"] = token_path.trace(root)
        show_trace(report["trace"])
    if args.json:
        args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
