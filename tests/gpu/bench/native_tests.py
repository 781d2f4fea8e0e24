"""A file of tests/gpu by pytest in this process: the outcome of each test as data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.bench.bench import Bench
from tests.gpu.bench.native_files import FOLDER

_LONGEST_TEXT = 3000


def run(bench: Bench, *, file: str) -> dict[str, Any]:
    """Raises RuntimeError where a test failed, or none ran; its figures are with the error."""
    outcomes = Outcomes()
    arguments = [str(FOLDER / file), "-p", "no:cacheprovider", "-q", "--tb=short"]
    status = pytest.main(arguments, plugins=[outcomes])
    figures = outcomes.as_dict()
    if status != pytest.ExitCode.OK:
        raise TestsFailedError(figures, f"pytest ended with {status!s}: {figures['counts']}")
    return figures


class TestsFailedError(Exception):
    """`figures` tell which."""

    __test__ = False

    def __init__(self, figures: dict[str, Any], text: str) -> None:
        super().__init__(text)
        self.figures = figures


class Outcomes:
    """Collects what pytest reports of each test."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.failures: list[dict[str, str]] = []
        self.slowest: list[tuple[float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.slowest.append((round(report.duration, 2), report.nodeid))
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome if report.when == "call" or report.skipped else "error"
            self._count(outcome, report.nodeid, report.longreprtext if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._count("error", report.nodeid, report.longreprtext)

    def _count(self, outcome: str, test: str, text: str) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if text:
            self.failures.append({"test": test, "text": text[-_LONGEST_TEXT:]})

    def as_dict(self) -> dict[str, Any]:
        return {
            "counts": self.counts,
            "failures": self.failures,
            "slowest": sorted(self.slowest, reverse=True)[:5],
        }
