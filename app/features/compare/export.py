"""A comparison as Markdown for people and as JSON for programs. No Qt."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from app.features.chat.attachments import fence_for
from app.features.compare.record import GREEDY, LEFT, RIGHT, SIDES, Comparison, PromptReplies, Side
from app.features.compare.replies import Reply
from engine.units import bytes_text, duration_text, rate_text, rough_duration

FORMAT, VERSION = "inferdeck-comparison", 1


def as_json(comparison: Comparison) -> str:
    return json.dumps(as_object(comparison), indent=1, ensure_ascii=False) + "\n"


def as_object(comparison: Comparison) -> dict[str, Any]:
    return {
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
        "way": comparison.placement,
        "identical_share": comparison.identical_share,
        "mean_equal_share": comparison.mean_equal_share,
        "prompts": [_pair(pair) for pair in comparison.pairs],
    }


def _pair(pair: PromptReplies) -> dict[str, Any]:
    return {
        "line": pair.prompt.line,
        "prompt": pair.prompt.prompt,
        "num_equal_tokens": pair.num_equal if pair.both is not None else None,
        "equal_share": pair.equal_share,
        "answers": [None if reply is None else _reply(reply) for reply in pair.replies],
    }


def _reply(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "token_ids": [token.token_id for token in reply.tokens],
        "ttft_s": reply.ttft_s,
        "tokens_per_s": reply.tokens_per_s,
        "problem": reply.problem,
    }


def as_markdown(comparison: Comparison) -> str:
    left, right = comparison.sides
    is_greedy = all(side.sampling == GREEDY for side in comparison.sides)
    sampling = "Greedy decoding." if is_greedy else ""
    sentences = (f"{comparison.started}.", sampling, comparison.placement, verdict(comparison))
    rows = [f"| {name} | {a} | {b} |" for name, a, b in figures(comparison)]
    parts = [
        f"# {comparison.model}: {left.title} and {right.title}",
        " ".join(filter(None, sentences)),
        "\n".join([f"| | {left.title} | {right.title} |", "|---|---|---|", *rows]),
    ]
    for number, pair in enumerate(comparison.pairs, 1):
        parts += [f"## {number}. {pair.prompt.shown}", pair_text(pair)]
        for side, reply in zip(comparison.sides, pair.replies, strict=True):
            text = "no reply" if reply is None else reply.text or reply.problem
            fence = fence_for(text)
            parts += [f"**{side.title}**", f"{fence}\n{text}\n{fence}"]
    return "\n\n".join(parts) + "\n"


def verdict(comparison: Comparison) -> str:
    """The result in a sentence; "" until both sides completed a prompt."""
    share, mean = comparison.identical_share, comparison.mean_equal_share
    if share is None or mean is None:
        return ""
    count, same = len(comparison.done), sum(pair.is_identical for pair in comparison.done)
    if count == 1:
        return pair_text(comparison.done[0])
    return (
        f"{same:,} of {count:,} replies are identical ({100 * share:.0f} %). On average, replies "
        f"match for {100 * mean:.0f} % of their tokens before the first difference."
    )


def pair_text(pair: PromptReplies) -> str:
    """The first difference between two replies, as a sentence."""
    if pair.both is None:
        return ""
    count = len(pair.both[LEFT].tokens)
    if pair.is_identical:
        return f"Identical: {count:,} tokens."
    at = pair.num_equal
    if at == 0:
        return f"The replies diverge at token 1 of {count:,}."
    return f"Identical up to token {at:,} of {count:,} ({100 * at / max(1, count):.0f} %)."


def figures(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(name, left, right) of each figure."""
    weights = [_or_dash(side.weights_bytes, bytes_text) for side in comparison.sides]
    ttft = [_or_dash(comparison.mean_ttft_s(s), duration_text) for s in SIDES]
    rates = [_or_dash(comparison.mean_rate(s), rate_text) for s in SIDES]
    loading = [_loading(side) for side in comparison.sides]
    rows = (
        ("Weights", weights), ("Mean TTFT", ttft), ("Mean decoding", rates), ("Loading", loading),
    )  # fmt: skip
    return [(name, values[LEFT], values[RIGHT]) for name, values in rows]


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "–" if value is None else text(value)


def _loading(side: Side) -> str:
    if side.switch_s is not None:
        return rough_duration(side.switch_s)
    return "–" if side.weights_bytes is None else "already loaded"
