"""The outcomes as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests import ROOT
from tests.architectures.trial import EQUAL, REFUSED, TOLERANCE, Outcome

FILE = ROOT / "resources" / "docs" / "architectures.md"


def versions() -> dict[str, str]:
    import torch
    import transformers

    return {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]}


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.outcome for outcome in outcomes)
    return ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"versions": versions(), "outcomes": [outcome._asdict() for outcome in outcomes]}


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    equal = [outcome for outcome in outcomes if outcome.outcome == EQUAL]
    refused = [outcome for outcome in outcomes if outcome.outcome == REFUSED]
    others = [outcome for outcome in outcomes if outcome.outcome not in (EQUAL, REFUSED)]
    found = versions()
    parts = [
        "# Architectures",
        "All causal-LM architectures of transformers: supported, or not supported with the reason.",
        f"Inferdeck supports {len(equal)} of the {len(outcomes)} causal-LM model types of "
        f"transformers {found['transformers']} (PyTorch {found['torch']}).",
        "The test runs a small random model of each type in float32 and compares it with\n"
        "transformers' eager attention.\n"
        "Prompts have 3 to 129 tokens, in batches and chunks, with a second turn on the prefix "
        f"cache.\nA type passes if log probabilities differ by less than {TOLERANCE:g}.\n"
        "Sliding windows and attention chunks are shorter than the prompts.",
        "With dynamic or longrope RoPE scaling, the context length fixes the frequencies.",
        "    python -m tests.architectures --write    # writes this page",
        "## Supported",
        _rows(("Model type", "Class", "Largest difference"), [
            (f"`{o.model_type}`", f"`{o.class_name}`", f"{o.difference:.0e}") for o in equal
        ]),
        "## Not supported",
        _rows(("Model type", "Class", "Reason"), [
            (f"`{o.model_type}`", f"`{o.class_name}`", o.detail) for o in refused
        ]),
    ]  # fmt: skip
    if others:
        parts += [
            "## Others",
            _rows(("Model type", "Class", "Outcome"), [
                (f"`{o.model_type}`", f"`{o.class_name}`", f"{o.outcome}: {_plain(o)}")
                for o in others
            ]),
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _plain(outcome: Outcome) -> str:
    return outcome.detail if outcome.difference is None else f"{outcome.difference:.2g}"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
