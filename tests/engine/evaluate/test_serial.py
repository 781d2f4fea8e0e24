"""A report survives being written, and a damaged one says what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.evaluate.report import ReportError, from_json, to_json
from tests.engine.evaluate.reports import make_facts, make_report


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reference": None, "reference_loss": None, "divergence": None, "worst": ()},
        {"text": None, "answers": None},
        {"candidate": make_facts("float32", 10, speed=None, notices=())},
    ],
)
def test_what_is_written_is_read(changes: dict[str, Any]) -> None:
    report = make_report(**changes)
    text = json.dumps(to_json(report), allow_nan=False)
    assert from_json(json.loads(text)) == report


def test_unknown_keys_and_missing_options_do_no_harm() -> None:
    stored = json.loads(json.dumps(to_json(make_report())))
    stored["text"]["mood"] = "good"
    del stored["notices"]
    assert from_json(stored) == make_report(notices=())


def test_whole_numbers_are_numbers() -> None:
    stored = json.loads(json.dumps(to_json(make_report())))
    stored["duration_s"] = 3
    assert from_json(stored).duration_s == 3.0


def _without(*path: str) -> Any:
    stored = json.loads(json.dumps(to_json(make_report())))
    inner = stored
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return stored


def _with(value: Any, *path: str) -> Any:
    stored = json.loads(json.dumps(to_json(make_report())))
    inner = stored
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return stored


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ([], "evaluation report"),
        ({"kind": "other"}, "evaluation report"),
        (_with(99, "version"), "version 99"),
        (_without("created"), "`created`"),
        (_without("divergence", "kl", "p50"), r"`p50` - at `\$.divergence.kl`"),
        (_with("many", "text", "num_tokens"), r"at `\$.text.num_tokens`"),
        (_with(True, "text", "num_tokens"), r"at `\$.text.num_tokens`"),
        (_with({}, "worst"), r"at `\$.worst`"),
        (_with(float("nan"), "candidate_loss", "perplexity"), r"at `\$.candidate_loss.perplexity`"),
        (_with(3, "candidate", "config"), r"at `\$.candidate.config`"),
        (_with(None, "candidate"), r"at `\$.candidate`"),
    ],
)
def test_what_is_no_report_is_refused(stored: Any, words: str) -> None:
    with pytest.raises(ReportError, match=words) as error:
        from_json(stored)
    assert error.value.remedy
