"""The Quantize page in the real window: a model is made, measured, and its report kept."""

from __future__ import annotations

import json
from pathlib import Path

from pytestqt.qtbot import QtBot

from app.quantize.page import REPORTS, QuantizePage
from tests.app.quantize.conftest import choose_starter, wait_for_end


def test_a_whole_run_ends_in_a_report(
    qtbot: QtBot, page: QuantizePage, tmp_path: Path, short_text: Path
) -> None:
    choose_starter(qtbot, page, "int8", short_text)
    output = Path(page.recipe.plan.output)
    assert output.name == "starter-int8" and output.parent == tmp_path / "data" / "models"
    page.quantize_panel.start.click()
    assert page.run is not None and page.run_view.isVisible()
    wait_for_end(qtbot, page)
    assert page.quantize_panel.error.text() == ""
    assert json.loads((output / "config.json").read_text())["quantization_config"]
    assert page.tabs.currentIndex() == REPORTS and page.report.isVisible()
    stored = page.reports.selection[0]
    assert stored.report.divergence is not None
    assert stored.report.divergence.similarity is not None
    assert len(page.report.layers.rows) == 8
