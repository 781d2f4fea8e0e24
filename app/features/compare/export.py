"""A comparison as Markdown for people and as JSON for programs. No Qt."""

from __future__ import annotations

import json
from typing import Any

from app.features.chat.attachments import fence_for
from app.features.compare.record import GREEDY, LEFT, RIGHT, Answer, Comparison, Pair, Side
from app.features.models.precision import seconds_words
from app.units import format_bytes
from widgets.controls.text import milliseconds

FORMAT, VERSION = "inferdeck-comparison", 1


def as_json(comparison: Comparison) -> str:
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "model": comparison.model,
        "started": comparison.started,
        "sides": [
            {
                "precision": side.precision,
                "sampling": side.sampling,
                "settings": dict(side.settings),
                "weights_bytes": side.weights_bytes,
                "switch_s": side.switch_s,
            }
            for side in comparison.sides
        ],
        "way": comparison.way,
        "identical_share": comparison.identical_share,
        "mean_equal_share": comparison.mean_equal_share,
        "prompts": [_pair(pair) for pair in comparison.pairs],
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "line": pair.prompt.line,
        "prompt": pair.prompt.prompt,
        "num_equal_tokens": pair.num_equal if pair.both is not None else None,
        "equal_share": pair.equal_share,
        "answers": [None if answer is None else _answer(answer) for answer in pair.answers],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "token_ids": [piece.token_id for piece in answer.pieces],
        "ttft_s": answer.ttft_s,
        "tokens_per_s": answer.tokens_per_s,
        "problem": answer.problem,
    }


def as_markdown(comparison: Comparison) -> str:
    left, right = comparison.sides
    parts = [
        f"# {comparison.model}: {left.title} and {right.title}",
        " ".join(
            filter(None, (f"{comparison.started}.", _sampling(comparison), comparison.way,
                          verdict(comparison)))
        ),
        "\n".join(
            [
                f"| | {left.title} | {right.title} |",
                "|---|---|---|",
                *(f"| {name} | {a} | {b} |" for name, a, b in figures(comparison)),
            ]
        ),
    ]
    for number, pair in enumerate(comparison.pairs, 1):
        parts += [f"## {number}. {pair.prompt.shown}", pair_words(pair)]
        for side, answer in zip(comparison.sides, pair.answers, strict=True):
            text = "not answered" if answer is None else answer.text or answer.problem
            fence = fence_for(text)
            parts += [f"**{side.title}**", f"{fence}\n{text}\n{fence}"]
    return "\n\n".join(parts) + "\n"


def _sampling(comparison: Comparison) -> str:
    is_greedy = all(side.sampling == GREEDY for side in comparison.sides)
    return "Greedy answers." if is_greedy else ""


def verdict(comparison: Comparison) -> str:
    """The result in a sentence; "" until a prompt was answered by both."""
    share, mean = comparison.identical_share, comparison.mean_equal_share
    if share is None or mean is None:
        return ""
    count, same = len(comparison.done), sum(pair.is_identical for pair in comparison.done)
    if count == 1:
        return pair_words(comparison.done[0])
    return (
        f"{same:,} of {count:,} answers are identical ({100 * share:.0f} %); on average "
        f"{100 * mean:.0f} % of an answer comes before the first difference."
    )


def pair_words(pair: Pair) -> str:
    """Where two answers part, in a sentence."""
    if pair.both is None:
        return ""
    count = len(pair.both[LEFT].pieces)
    if pair.is_identical:
        return f"Identical: {count:,} tokens."
    at = pair.num_equal
    if at == 0:
        return f"Different from the first of {count:,} tokens on."
    return f"Identical up to token {at:,} of {count:,} ({100 * at / max(1, count):.0f} %)."


def latency_words(pair: Pair) -> str:
    """ "TTFT 81.0 ms and 44.2 ms, 18.2 and 30.4 tok/s."; "" until both have answered."""
    if pair.both is None:
        return ""
    left, right = pair.both
    parts = []
    if left.ttft_s is not None and right.ttft_s is not None:
        times = (milliseconds(1e3 * seconds) for seconds in (left.ttft_s, right.ttft_s))
        parts.append("TTFT " + " and ".join(times))
    if left.tokens_per_s is not None and right.tokens_per_s is not None:
        parts.append(f"{left.tokens_per_s:,.1f} and {right.tokens_per_s:,.1f} tok/s")
    return f"{', '.join(parts)}." if parts else ""


def figures(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(what, left, right) in words."""
    sides = (LEFT, RIGHT)
    weights = [comparison.sides[s].weights_bytes for s in sides]
    ttft = [comparison.mean_ttft_s(s) for s in sides]
    rates = [comparison.mean_rate(s) for s in sides]
    return [
        _row("Weights", ["–" if w is None else format_bytes(w) for w in weights]),
        _row("TTFT", ["–" if t is None else milliseconds(1e3 * t) for t in ttft]),
        _row("Decoding", ["–" if r is None else f"{r:,.1f} tok/s" for r in rates]),
        _row("Switch", [_switch(comparison.sides[s]) for s in sides]),
    ]


def _row(name: str, values: list[str]) -> tuple[str, str, str]:
    return name, values[LEFT], values[RIGHT]


def _switch(side: Side) -> str:
    if side.switch_s is not None:
        return seconds_words(side.switch_s)
    return "–" if side.weights_bytes is None else "loaded already"
