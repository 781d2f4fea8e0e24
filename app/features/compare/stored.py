"""Comparisons and broadcasts as records of the Runs page, and back. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.features.compare.export import as_object
from app.features.compare.placement import GREEDY
from app.features.compare.record import SIDES, Comparison, PromptReplies, Side
from app.features.compare.replies import Reply, Stage
from app.storage.run_records import Kind, Measured, RunRecord, RunSide, State, measured
from engine.errors import ErrorInfo
from engine.evaluate.task import PromptLine
from engine.sampling_params import SamplingParams
from widgets.tokens.record import TokenRecord


def run_sides(comparison: Comparison, *, is_together: bool) -> tuple[RunSide, ...]:
    """Both sides with their figures. `is_together`: they generated at the same time."""
    rate = "reply_tokens_per_s" if is_together else "decode_tokens_per_s"
    sides = []
    for place in SIDES:
        side = comparison.sides[place]
        ended = [r for p in comparison.pairs if (r := p.replies[place]) is not None and r.is_done]
        figures = {
            rate: measured([reply.tokens_per_s for reply in ended]),
            "ttft": measured([reply.ttft_s for reply in ended]),
            "weights_bytes": Measured(side.weights_bytes) if side.weights_bytes else None,
        }
        if place == SIDES[-1]:
            figures["identical_answers"] = _share(comparison.identical_share)
            figures["equal_tokens"] = _share(comparison.mean_equal_share)
        sides.append(RunSide(side.title, _known(figures)))
    return tuple(sides)


def _share(value: float | None) -> Measured | None:
    return None if value is None else Measured(value)


def of_comparison(comparison: Comparison, problem: str, *, is_together: bool) -> RunRecord:
    details = as_object(comparison)
    for stored, side in zip(details["sides"], comparison.sides, strict=True):
        stored |= {"path": side.path, "load_format": side.load_format}
    for stored, pair in zip(details["prompts"], comparison.pairs, strict=True):
        del stored["answers"]  # they are in the replies
        stored["max_tokens"], stored["is_by_text"] = pair.prompt.max_tokens, pair.is_by_text
        stored["replies"] = [None if reply is None else _reply(reply) for reply in pair.replies]
    return RunRecord(
        "", Kind.COMPARE, comparison.model, titles(comparison), comparison.started,
        run_sides(comparison, is_together=is_together),
        State.STOPPED if problem or not comparison.done else State.DONE, problem, details=details,
    )  # fmt: skip


def titles(comparison: Comparison) -> str:
    return " / ".join(side.title for side in comparison.sides)


def comparison_of(run: RunRecord) -> Comparison:
    """The comparison that `of_comparison` kept. Raises KeyError, TypeError or ValueError for other
    details."""
    stored = run.details
    sides = [
        Side(s["precision"], s["settings"], s["weights_bytes"], s["switch_s"], s["sampling"],
             s["path"], s["load_format"])
        for s in stored["sides"]
    ]  # fmt: skip
    pairs = [
        PromptReplies(_prompt(p), [_reply_of(r) for r in p["replies"]], p["is_by_text"])
        for p in stored["prompts"]
    ]
    return Comparison(stored["model"], stored["started"], sides, pairs, stored["way"])


def _prompt(stored: Mapping[str, Any]) -> PromptLine:
    prompt = stored["prompt"]
    prompt = prompt if isinstance(prompt, str) else tuple(prompt)
    return PromptLine(stored["line"], prompt, stored["max_tokens"])


def of_broadcast(
    replies: Sequence[Reply], model: str, precision: str, started: str
) -> RunRecord:
    done = [reply for reply in replies if reply.is_done]
    began = min((reply.sent for reply in replies), default=0.0)
    newest = max((reply.last for reply in replies if reply.last is not None), default=began)
    tokens, seconds = sum(reply.num_tokens for reply in replies), newest - began
    figures = {
        "total_tokens_per_s": Measured(tokens / seconds) if tokens and seconds > 0 else None,
        "reply_tokens_per_s": measured([reply.tokens_per_s for reply in done]),
        "ttft": measured([reply.ttft_s for reply in done]),
    }
    problems = [reply.problem for reply in replies if reply.problem]
    state = State.DONE if len(done) == len(replies) else State.STOPPED if done else State.FAILED
    details = {"model": model, "num_done": len(done), "replies": [_reply(r) for r in replies]}
    return RunRecord(
        "", Kind.BROADCAST, model, precision, started, (RunSide(precision, _known(figures)),),
        state, problems[0] if problems else "", details=details,
    )  # fmt: skip


def replies_of(run: RunRecord) -> list[Reply]:
    """The replies of a broadcast. Raises KeyError, TypeError or ValueError for other details."""
    found = [_reply_of(stored) for stored in run.details["replies"]]
    return [reply for reply in found if reply is not None]


def _known(figures: Mapping[str, Measured | None]) -> dict[str, Measured]:
    return {key: value for key, value in figures.items() if value is not None}


def _reply(reply: Reply) -> dict[str, Any]:
    error = reply.error
    return {
        "number": reply.number, "prompt": reply.prompt, "stage": reply.stage.name,
        "params": msgspec.to_builtins(reply.params), "text": reply.text,
        "tokens": [[t.token_id, t.text, t.logprob, t.rank] for t in reply.tokens],
        "num_tokens": reply.num_tokens, "ttft_s": reply.ttft_s,
        "tokens_per_s": reply.tokens_per_s,
        "error": None if error is None else [error.cause, error.remedy],
    }  # fmt: skip


def _reply_of(stored: Mapping[str, Any] | None) -> Reply | None:
    if stored is None:
        return None
    try:
        params = msgspec.convert(stored["params"], SamplingParams)
    except msgspec.ValidationError:
        params = GREEDY
    return Reply(
        prompt=stored["prompt"], params=params, number=stored["number"],
        stage=Stage[stored["stage"]], text=stored["text"], num_tokens=stored["num_tokens"],
        ttft_s=stored["ttft_s"], tokens_per_s=stored["tokens_per_s"],
        error=ErrorInfo(*stored["error"]) if stored["error"] else None,
        tokens=[TokenRecord(*token) for token in stored["tokens"]],
    )  # fmt: skip
