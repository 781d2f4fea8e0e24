"""A ladder as a stored run, its table, and its exports: JSON, CSV, HTML. No Qt."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from app.bench.doubt import busy_sentence
from app.bench.export import html_page, write
from app.bench.goals import Goals
from app.bench.ladder_words import answer, is_noise, why
from app.bench.record import figures_of_side
from app.bench.report import aligned
from app.bench.rungs import Rung, State
from app.storage.run_records import Kind, Measured, RunRecord, RunSide
from app.storage.run_records import State as RunState
from engine.units import bytes_text, change_text, counted, number, short_figure


@dataclass(frozen=True, slots=True)
class LadderResult:
    """A ladder with what it ran. `price`: of the machine per hour, in the user's currency."""

    model: str
    precision: str
    work: str
    rungs: tuple[Rung, ...]
    goals: Goals
    price: float | None = None
    state: RunState = RunState.DONE
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def answer(self) -> str:
        busy = busy_sentence([rung.best.figures for rung in self.rungs if rung.best is not None])
        return " ".join(filter(None, (self._stopped, answer(self.rungs, self.goals), busy)))

    @property
    def _stopped(self) -> str:
        """ "Stopped after 2 of 7 rungs." of a ladder that was stopped."""
        if self.state is not RunState.STOPPED:
            return ""
        return f"Stopped after {len(reached(self)):,} of {counted(len(self.rungs), 'rung')}."

    @property
    def tuned(self) -> dict[str, Any]:
        """Settings of the last kept rung that meets the goals; empty without one."""
        kept = [rung for rung in self.rungs if rung.is_kept and rung.users]
        return {**kept[-1].settings, "max_num_seqs": kept[-1].users} if kept else {}

    def cost(self, rung: Rung) -> float | None:
        """Of a million output tokens at the rung's best load."""
        if self.price is None or not rung.rate:
            return None
        return self.price / (3600 * rung.rate) * 1e6


def _figure(key: str, statistic: str = "") -> Callable[[LadderResult, Rung], float | None]:
    def of(result: LadderResult, rung: Rung) -> float | None:
        if rung.best is None:
            return None
        found = rung.best.figures.get(key)
        if not statistic or found is None:
            return found
        level: float | None = found[statistic]
        return found["max"] if level is None else level

    return of


def _quality(name: str) -> Callable[[LadderResult, Rung], float | None]:
    return lambda result, rung: None if rung.quality is None else getattr(rung.quality, name)


def _users(result: LadderResult, rung: Rung) -> float | None:
    return rung.users if rung.state is State.MEASURED else None


class Column(NamedTuple):
    name: str
    title: str
    of: Callable[[LadderResult, Rung], float | None]
    text: Callable[[float], str]


def columns(result: LadderResult) -> list[Column]:
    """Latencies at the percentile of the goals; a p99 of under 100 samples is a maximum."""
    p = f"p{result.goals.percentile}"
    return [
        Column("users", "Users", _users, lambda value: number(value)),
        Column("output_tokens_per_s", "Output (tok/s)", _figure("output_tokens_per_s"),
               short_figure),
        Column(f"ttft_ms.{p}", f"TTFT {p} (ms)", _figure("ttft_ms", p), short_figure),
        Column(f"itl_ms.{p}", f"ITL {p} (ms)", _figure("itl_ms", p), short_figure),
        Column("memory_bytes", "Memory", _figure("memory_bytes"), bytes_text),
        Column("perplexity_change", "Perplexity change", _quality("perplexity_change"),
               change_text),
        Column("kl", "KL", _quality("kl"), lambda value: f"{value:.2g}"),
        Column("cost", "Cost per 1M tokens", LadderResult.cost, lambda value: f"{value:.3g}"),
    ]  # fmt: skip


def shown_columns(result: LadderResult) -> list[Column]:
    """Without those that no rung has."""
    return [
        column for column in columns(result)
        if any(column.of(result, rung) is not None for rung in result.rungs)
    ]  # fmt: skip


def heads(result: LadderResult) -> list[str]:
    return ["Rung", *(column.title for column in shown_columns(result))]


def cells(rung: Rung, result: LadderResult) -> list[str]:
    values = [(column.of(result, rung), column.text) for column in shown_columns(result)]
    return [rung.title, *("–" if value is None else text(value) for value, text in values)]


def rows(result: LadderResult) -> list[list[str]]:
    """Heads, then a row for each rung that was reached; the last column is headed by nothing."""
    found = [[*cells(rung, result), why(rung, result.rungs)] for rung in reached(result)]
    return [[*heads(result), ""], *found]


def reached(result: LadderResult) -> list[Rung]:
    return [rung for rung in result.rungs if rung.state is not State.WAITING]


def as_text(result: LadderResult) -> str:
    """The table, a line for each rung, and the answer."""
    table = rows(result)
    heads, *others = table
    lines = [f"{row[0]}: {row[-1]}" for row in others if row[-1]]
    numbers = aligned([heads[:-1], *(row[:-1] for row in others)])
    told = [numbers, "", *lines, ""] if others else []
    return "\n".join([*told, result.answer]).rstrip()


def to_run(result: LadderResult) -> RunRecord:
    """A side for each measured rung; `best_side`: that of the last kept one, -1 without one.
    Requests and curves of its points are not kept."""
    sides: list[RunSide] = []
    best = -1
    for rung in result.rungs:
        if rung.best is not None and rung.state is State.MEASURED:
            figures = figures_of_side(rung.best)
            for key, of in (("weights_bytes", _figure("weights_bytes")), ("users", _users),
                            ("cost", LadderResult.cost)):  # fmt: skip
                if (value := of(result, rung)) is not None:
                    figures[key] = Measured(value)
            if rung.quality is not None:
                figures["perplexity_change"] = Measured(rung.quality.perplexity_change)
                figures["kl_mean"] = Measured(rung.quality.kl)
                figures["top1_agreement"] = Measured(rung.quality.top1_agreement)
            best = len(sides) if rung.is_kept else best
            sides.append(RunSide(rung.title, figures))
    failed = "" if sides else next((rung.reason for rung in result.rungs if rung.reason), "")
    details = {
        "work": result.work, "answer": result.answer, "price": result.price, "best_side": best,
        "goals": msgspec.to_builtins(result.goals),
        "rungs": msgspec.to_builtins([_short(rung) for rung in result.rungs]),
    }  # fmt: skip
    return RunRecord(
        "", Kind.LADDER, result.model, result.precision, result.created, tuple(sides),
        RunState.FAILED if failed else result.state, failed,
        f"{result.model}, {result.work}", details,
    )  # fmt: skip


def _short(rung: Rung) -> Rung:
    slim = lambda point: point and replace(point, requests=[], curves={}, rounds=[])
    return replace(rung, best=slim(rung.best), same=slim(rung.same))


def from_run(run: RunRecord) -> LadderResult:
    """The ladder that `to_run` stored. Raises ValueError for damaged details."""
    details = run.details
    try:
        rungs = msgspec.convert(details["rungs"], tuple[Rung, ...])
        goals = msgspec.convert(details["goals"], Goals)
        price = msgspec.convert(details.get("price"), float | None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a ladder: {error!r}") from error
    work = str(details.get("work", ""))
    return LadderResult(
        run.model, run.precision, work, rungs, goals, price, run.state, run.created
    )


def as_dict(result: LadderResult) -> dict[str, Any]:
    """As `ladder --json` writes it."""
    rungs = []
    for rung in result.rungs:
        figures = {} if rung.best is None else rung.best.figures
        rungs.append({
            "key": rung.key, "title": rung.title, "state": rung.state.value,
            "is_kept": rung.is_kept, "changes": rung.changes, "settings": rung.settings,
            "why": why(rung, result.rungs), "reason": rung.reason or None, "users": rung.users,
            "concurrency": rung.best.settings["concurrency"] if rung.best else None,
            "quality": rung.quality._asdict() if rung.quality else None,
            "step_shares": rung.split.shares()._asdict() if rung.split else None,
            "cost_per_million_output_tokens": result.cost(rung), **figures,
        })  # fmt: skip
    return {
        "model_name": result.model, "precision": result.precision, "work": result.work,
        "created": result.created, "state": result.state.value,
        "goals": msgspec.to_builtins(result.goals), "price_per_hour": result.price,
        "answer": result.answer, "rungs": rungs,
    }  # fmt: skip


def as_csv(result: LadderResult) -> str:
    """A line per rung; plain numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    shown = columns(result)
    writer.writerow(["rung", "state", "is_kept", *(column.name for column in shown), "why"])
    for rung in result.rungs:
        values = [column.of(result, rung) for column in shown]
        row = [rung.key, rung.state.value, rung.is_kept, *values, why(rung, result.rungs)]
        writer.writerow(row)
    return out.getvalue()


def as_html(result: LadderResult) -> str:
    """One self-contained page: answer, waterfall of users, table, and the data as JSON."""
    return html_page(
        f"{result.model}, {result.work}", f"{result.created} · {result.precision}", result.answer,
        _svg(result), rows(result), as_dict(result),
    )  # fmt: skip


_WIDTH, _HEIGHT, _MARGIN, _FOOT = 720, 260, 30, 40


def _svg(result: LadderResult) -> str:
    """A bar of users for each measured rung, and the part that it adds in another colour, as
    in the window."""
    found = [rung for rung in result.rungs if rung.state is State.MEASURED]
    if not found:
        return ""
    most, users = max(max(r.users for r in found), 1), {r.key: r.users for r in found}
    room, bottom = (_WIDTH - 2 * _MARGIN) / len(found), _HEIGHT - _FOOT
    to_y = lambda value: bottom - value / most * (bottom - _MARGIN)
    parts = []
    for place, rung in enumerate(found):
        left, below = _MARGIN + place * room, users.get(rung.below, 0)
        low, high = sorted((below, rung.users))
        color = "#009e73" if rung.users >= below else "#d55e00"
        color = "#e69f00" if is_noise(rung, result.rungs) else color
        opacity = 1 if rung.is_kept else 0.4
        for bar, start, end in (("#8888", 0, min(below, rung.users)), (color, low, high)):
            parts.append(
                f'<rect x="{left + 4:.1f}" width="{room - 8:.1f}" y="{to_y(end):.1f}" '
                f'height="{max(0.0, to_y(start) - to_y(end)):.1f}" fill="{bar}" '
                f'opacity="{opacity}"/>'
            )
        middle = left + room / 2
        parts.append(
            f'<text x="{middle:.1f}" y="{to_y(high) - 5:.1f}" text-anchor="middle">{rung.users}'
            f'</text><text x="{middle:.1f}" y="{bottom + 16 + 14 * (place % 2)}" '
            f'text-anchor="middle">{html.escape(rung.title)}</text>'
        )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><path d="M{_MARGIN} {bottom}H'
        f'{_WIDTH - _MARGIN}" stroke="#888"/>{"".join(parts)}</svg>'
    )


def export(result: LadderResult, file: Path) -> None:
    """Write `file` in the format of its extension. Raises ReportError; then an existing file is
    unchanged."""
    write(file, {
        ".html": lambda: as_html(result), ".csv": lambda: as_csv(result),
        ".json": lambda: json.dumps(as_dict(result), indent=2) + "\n",
    })  # fmt: skip
