"""The Quantize page, photographed: a recipe, a run, a report, reports side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from app.paths import starter_model
from app.quality.texts import builtin_text
from app.quantize.evaluation import EvaluationPlan, ModelChoice
from app.quantize.page_commands import EVALUATE, QUANTIZE, REPORTS
from app.quantize.texts import STARTER, TextChoice
from app.screenshot.camera import ESTIMATE_TIMEOUT_S, REPLY_TIMEOUT_S, SMALL, Camera
from engine.config import SETTINGS

TEXT_BYTES = 4000


def take_quantize(camera: Camera) -> Iterator[Path]:
    """Yields each file when it is saved."""
    page, window = camera.application.pages.quantize, camera.window
    window.show_widget(page)
    yield from camera.in_both_modes("quantize-empty", window)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "notes.txt"
        text.write_text(builtin_text(STARTER).read()[:TEXT_BYTES], encoding="utf-8")
        recipe = page.recipe
        recipe.choose_source(str(starter_model()))
        recipe.fields.num_sequences.setValue(8)
        recipe.fields.length.setValue(128)
        recipe.measure_text.choose(TextChoice("", str(text)))
        camera.wait(lambda: recipe.can_start, ESTIMATE_TIMEOUT_S, "the recipe was not ready")
        yield from camera.in_both_modes("quantize-recipe", window)
        page.start_quantizing()
        camera.wait(lambda: page.run is None or len(page.run.layers) >= 3, REPLY_TIMEOUT_S,
                    "no layer was quantized")  # fmt: skip
        yield from camera.in_both_modes("quantize-run", window)
        camera.wait(lambda: page.run is None, 2 * REPLY_TIMEOUT_S, "the run did not end")
        yield from camera.in_both_modes("quantize-report", window)
        yield from _evaluate(camera, text)
    page.tabs.setCurrentIndex(QUANTIZE)
    window.resize(SMALL)
    yield from camera.in_both_modes("quantize-small", window)
    page.tabs.setCurrentIndex(REPORTS)
    page.reports.choose(page.reports.reports[-1].id)
    yield from camera.in_both_modes("quantize-report-small", window)
    window.resize(camera.size)
    window.show_page(0)


def _evaluate(camera: Camera, text: Path) -> Iterator[Path]:
    """The same model at another precision, and both reports side by side."""
    page = camera.application.pages.quantize
    page.tabs.setCurrentIndex(EVALUATE)
    precision = (
        {"kv_cache_dtype": "int8"} if "kv_cache_dtype" in SETTINGS else {"quantization": "int8"}
    )
    path = str(starter_model())
    plan = EvaluationPlan(ModelChoice(path, precision), text=TextChoice("", str(text)))
    page.evaluate.show_plan(plan)
    yield from camera.in_both_modes("quantize-evaluate", camera.window)
    page.start_evaluating()
    camera.wait(lambda: page.run is None, 2 * REPLY_TIMEOUT_S, "the run did not end")
    page.reports.choose(*(stored.id for stored in page.reports.reports))
    yield from camera.in_both_modes("quantize-compare", camera.window)
