"""The choices of the Bench page, from one start of the program to the next."""

from __future__ import annotations

from contextlib import suppress

from PySide6.QtWidgets import QDoubleSpinBox, QSpinBox

from app.bench.goals import NAMES, PERCENTILES, Goals
from app.bench.ranking import Objective
from app.features.bench.form import BenchForm, Mode
from app.features.bench.modes import AxisRow
from app.window.settings_store import BenchChoice


def choices_of(form: BenchForm) -> BenchChoice:
    goals = form.goal_fields.goals
    workload, variant = form.workload.preset
    return BenchChoice(
        mode=form.mode.value, workload=workload, variant=variant,
        arrivals=form.pacing.currentIndex(), objective=form.tune.choice.objective.value,
        numbers={name: box.value() for name, box in _numbers(form).items()},
        goals=goals.limits, percentile=goals.percentile,
        sweep=[row.text for row in form.axes], varied=[row.text for row in form.varied],
    )  # fmt: skip


def recall(form: BenchForm, choice: BenchChoice) -> None:
    """What this version does not know stays as it is."""
    form.workload.choose(choice.workload, choice.variant)
    form.pacing.setCurrentIndex(min(max(choice.arrivals, 0), form.pacing.count() - 1))
    for name, box in _numbers(form).items():
        if name in choice.numbers:
            value = min(max(choice.numbers[name], box.minimum()), box.maximum())
            if isinstance(box, QSpinBox):
                box.setValue(round(value))
            else:
                box.setValue(value)
    for rows, texts in ((form.axes, choice.sweep), (form.varied, choice.varied)):
        for row, text in zip(rows, texts, strict=False):
            _recall_row(row, text)
    percentile = choice.percentile if choice.percentile in PERCENTILES else PERCENTILES[-1]
    limits = {name: limit for name, limit in choice.goals.items() if name in NAMES}
    form.goal_fields.set_goals(Goals(**limits, percentile=percentile))
    with suppress(ValueError):
        form.tune.choose(Objective(choice.objective))
    with suppress(ValueError):
        form.choose(Mode(choice.mode))


def _recall_row(row: AxisRow, text: str) -> None:
    name, _, values = text.partition("=")
    place = row.box.findData(name)
    if place >= 0:
        row.box.setCurrentIndex(place)
        row.line.setText(values)


def _numbers(form: BenchForm) -> dict[str, QSpinBox | QDoubleSpinBox]:
    return {
        "requests": form.requests, "concurrency": form.concurrency, "rate": form.rate,
        "burstiness": form.burstiness, "repetitions": form.rounds, "warmups": form.warmups,
        "trials": form.tune.trials, "price": form.ladder.price,
    }  # fmt: skip
