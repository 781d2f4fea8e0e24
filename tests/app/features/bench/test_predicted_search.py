"""The search of the Bench page with a prediction, on a scripted engine of known step times."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication

from app.bench.calibrate import CHANGED
from app.bench.goals import Goals
from app.bench.ladder_record import export as export_ladder
from app.bench.load import Clock, Pace
from app.bench.point_table import as_csv, as_dict, cells, export, heads
from app.bench.progress import Progress
from app.bench.ranking import Objective, best_under
from app.bench.record import BenchResult, from_run, to_run
from app.bench.runner import BenchRunner
from app.bench.sweep import Axis
from app.bench.workload import Length, Workload
from app.cli.sweep import write_output
from app.features.bench.jobs import BenchPlan, SweepJob, TuneChoice
from app.features.bench.picture import HEIGHT, WIDTH, save_picture
from app.features.bench.trials import explained
from app.storage.run_records import State
from engine.evaluate.report import ReportError
from engine.simulate.engine import SimulatedEngine
from tests.app.bench.ladder_script import climb, result_of
from tests.app.bench.test_predict import KNOWN, like
from tests.figures import numbers

WORK = Workload("test", "Test", 12, Length(10, 120), Length(4, 24))
AXES = (
    Axis("block_size", (8, 16, 64)),
    Axis("max_num_seqs", (1, 2, 3, 4, 6, 8, 12, 16)),
    Axis("max_num_batched_tokens", (32, 64, 128, 256)),
)
GOALS = Goals(itl=40, percentile=90)


class Running:
    """Of a job: never cancelled, unless told."""

    def __init__(self) -> None:
        self.over = False

    def is_over(self) -> bool:
        return self.over

    def peaks(self) -> None:
        return None


class Job:
    def __init__(
        self, *, predicts: bool, goals: Goals = GOALS, axes: tuple[Axis, ...] = AXES,
        most: int = 96,
    ) -> None:  # fmt: skip
        snapshot = like()
        if not predicts:  # as of a server that does not describe its model
            model = dataclasses.replace(snapshot.model, architecture="")
            snapshot = dataclasses.replace(snapshot, model=model)
        self.engine = SimulatedEngine(snapshot, KNOWN)
        self.before = self.engine.config
        plan = BenchPlan(
            WORK, "unique", axes, Pace(16), 1, 0, tune=TuneChoice(Objective.THROUGHPUT, most)
        )
        runner = BenchRunner(
            self.engine, plan.for_engine(self.before), bandwidth=False,
            clock=Clock.of(self.engine),
        )
        self.state, self.told = Running(), list[Progress]()
        self.job = SweepJob(plan, runner, self.state, goals, self._tell)
        self.goals, self.stop_at = goals, ""

    def _tell(self, progress: Progress) -> None:
        self.told.append(progress)
        self.state.over = progress.label == self.stop_at

    def run(self) -> BenchResult:
        self.job.run()
        return self.job.result("tiny", "FP32", self.goals, State.DONE)


@pytest.fixture(scope="module")
def predicted() -> BenchResult:
    return Job(predicts=True).run()


def num_runs(result: BenchResult) -> int:
    return sum(len(point.rounds) for point in result.points)


@pytest.mark.slow
def test_a_prediction_saves_runs(predicted: BenchResult) -> None:
    blind = Job(predicts=False).run()
    assert num_runs(predicted) < num_runs(blind)
    best, other = (best_under(one.points, GOALS) for one in (predicted, blind))
    assert best is not None and other is not None
    rate = "output_tokens_per_s"
    assert best.figures[rate] >= 0.97 * other.figures[rate]
    assert not any(point.predicted for point in blind.points)


def test_each_trial_has_its_prediction_and_the_error(predicted: BenchResult) -> None:
    """Within 2 % here, where the times of steps are known."""
    titles = heads(predicted)
    for point in predicted.points:
        row = dict(zip(titles, cells(point, predicted), strict=True))
        own = [text for title, text in row.items() if title.startswith("Predicted")]
        assert len(own) == 2
        expected = point.predicted["output_tokens_per_s"] / point.figures["output_tokens_per_s"]
        rate, error = numbers(own[0])
        assert rate == pytest.approx(point.predicted["output_tokens_per_s"], abs=0.5)
        error *= -1 if "−" in own[0] or "-" in own[0] else 1  # `numbers` reads no sign
        assert error == pytest.approx(100 * (expected - 1), abs=0.06)
        if point.figures["requests_per_s"] and len(point.requests) >= 32:  # ran to its end
            assert abs(error) < 2
    lines = list(csv.DictReader(io.StringIO(as_csv(predicted))))
    values = [float(line["output_tokens_per_s.predicted"]) for line in lines]
    assert values == [point.predicted["output_tokens_per_s"] for point in predicted.points]
    assert len(lines[0]) == len(AXES) + 2 * 7 + 4
    assert from_run(to_run(predicted)).points == predicted.points
    first = as_dict(predicted)["points"][0]
    assert first["predicted"] == predicted.points[0].predicted
    assert any("Predicted" in line for line in explained(predicted.points[0], predicted))


def test_the_calibration_is_told_and_its_settings_are_put_back() -> None:
    made = Job(predicts=True, axes=(Axis("max_num_seqs", (2, 4)),), most=1)
    made.run()
    assert set(CHANGED) <= set(made.job.settings)
    changed = made.before.differences(made.engine.config)
    assert set(changed) <= {"max_num_seqs"}
    labels = [progress.label for progress in made.told]
    assert labels.index("Calibration") < labels.index("Prediction") < len(labels) - 1


def test_a_cancelled_prediction_runs_nothing() -> None:
    made = Job(predicts=True)
    made.stop_at = "Prediction"
    result = made.run()
    assert made.job.was_cancelled and not result.points
    assert made.engine.config == made.before


@pytest.mark.parametrize("axis", [Axis("seed", (1, 2)), Axis("kv_cache_dtype", ("auto",))])
def test_what_cannot_be_predicted_is_searched_without(axis: Axis) -> None:
    made = Job(predicts=True, axes=(axis,))
    search: Any = made.job._sweep.search
    assert search.guess(made.job._sweep.points) == ()


def test_the_picture_of_a_program_without_a_window(
    predicted: BenchResult, qapp: QApplication, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.png"
    write_output(file, predicted, export)
    image = QImage(str(file))
    assert image.width() >= WIDTH and image.height() == HEIGHT
    colors = {image.pixel(x, y) for x in range(0, WIDTH, 8) for y in range(0, HEIGHT, 8)}
    assert len(colors) > 10
    rungs = tmp_path / "ladder.png"
    write_output(rungs, result_of(climb()), export_ladder)
    assert QImage(str(rungs)).width() >= WIDTH
    with pytest.raises(ReportError):
        save_picture(predicted, tmp_path / "none" / "tuned.png")
