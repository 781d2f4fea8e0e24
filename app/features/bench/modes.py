"""The choices of a sweep, a search and a ladder: a row of the Bench page each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from PySide6.QtWidgets import QDoubleSpinBox, QHBoxLayout, QLineEdit, QSpinBox

from app.bench.axes import parse_axes, usual_values
from app.bench.doubt import LIMIT
from app.bench.load import Pace
from app.bench.ranking import Objective
from app.bench.rungs import AT_LOAD, Choices
from app.bench.sweep import AXES, ENGINE, LOADS, TURNS, Axis, least_requests
from app.features.bench.jobs import LadderChoice, TuneChoice
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError
from engine.units import precision_name, setting_text, speculative_name
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import STRETCH, dressed, hbox, label, wrapped
from widgets.theme.fonts import scaled

FIRST = (
    "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill",
    "quantization", "kv_cache_dtype", "block_size", "speculative_method",
)  # fmt: skip
"""Settings with most effect: the first in a list."""
TUNED = ("max_num_seqs", "max_num_batched_tokens", "", "")
VALUES_TIP = "Values, separated by commas"
ENGINES_TIP = (
    "Engine names, separated by commas or semicolons. Changes are relative to the first. Managed "
    "engines start automatically and stop afterwards."
)
LADDER_COUNT = f"at least {TURNS} per user"
VALUES_WIDTH, NAMES_WIDTH = 180, 260
KV_TYPES = ("int8", "fp8")
NGRAM = {"speculative_method": "ngram"}


class AxisRow(NamedTuple):
    box: ElidedCombo
    line: QLineEdit

    @property
    def text(self) -> str:
        """ "" where nothing is chosen."""
        name = self.box.currentData()
        return f"{name}={self.line.text()}" if name else ""

    @property
    def most_running(self) -> int:
        """The largest of its batch limits; 0 without one."""
        try:
            return max(axes_of([self])[0].values) if self.box.currentData() == LIMIT else 0
        except ConfigError:  # while values are typed
            return 0

    def suggest(self, config: EngineConfig | None, engines: Sequence[str]) -> None:
        """The usual values of the chosen axis; of engines all, of which the user deletes some."""
        name = self.box.currentData()
        self.line.setVisible(bool(name))
        self.line.setToolTip(ENGINES_TIP if name == ENGINE else VALUES_TIP)
        self.line.setMinimumWidth(scaled(NAMES_WIDTH if name == ENGINE else VALUES_WIDTH))
        if name == ENGINE:
            has_commas = any("," in one for one in engines)
            ending = ";" if has_commas and len(engines) == 1 else ""
            self.line.setText(("; " if has_commas else ", ").join(engines) + ending)
        elif name:
            value = None
            if name in SETTINGS:
                value = SETTINGS[name].default if config is None else getattr(config, name)
            found = usual_values(name, value).replace(",", ", ")
            self.line.setText(found or ("" if value is None else setting_text(value)))


def axis_row(title: str, names: list[str], none: str = "") -> AxisRow:
    """`none`: the text of no axis; "" where one must be chosen."""
    box = dressed(ElidedCombo(), title)
    if none:
        box.addItem(none, "")
    for name in names:
        if name not in (*AXES, *FIRST) and box.findData(FIRST[-1]) == box.count() - 1:
            box.insertSeparator(box.count())
        text = AXES.get(name) or f"{SETTINGS[name].label} ({SETTINGS[name].change.value})"
        box.addItem(text, name)
    box.setMinimumContentsLength(14)
    line = dressed(QLineEdit(), f"{title}: values", VALUES_TIP)
    line.setMinimumWidth(scaled(VALUES_WIDTH))
    return AxisRow(box, line)


def axes_of(rows: list[AxisRow]) -> tuple[Axis, ...]:
    """Raises ConfigError for values that are none of the setting."""
    return parse_axes([row.text for row in rows if row.text])


def count_text(num_requests: int, rows: list[AxisRow], loads: tuple[int, ...]) -> str:
    """ "64 per run", "16–64 per run": what the runs of a sweep measure where that is more than
    `num_requests`. `loads`: concurrencies where `rows` have none."""
    try:
        axes = axes_of(rows)
    except ConfigError:  # while values are typed
        return ""
    swept = {axis.name: axis.values for axis in axes if axis.name in LOADS}
    chosen = next(iter(swept.values())) if swept else loads
    loads = () if "request_rate" in swept else chosen
    counts = sorted({least_requests(num_requests, Pace(load)) for load in loads})
    if not counts or counts[-1] == num_requests:
        return ""
    return f"{'–'.join(f'{n:,}' for n in dict.fromkeys((counts[0], counts[-1])))} per run"


def settings_names() -> list[str]:
    """Those with most effect first."""
    return [*FIRST, *(name for name in SETTINGS if name not in ("model", *FIRST))]


class TuneFields:
    """The objective and the most trials of a search."""

    def __init__(self) -> None:
        self.objective = dressed(
            ElidedCombo(), "Objective",
            "Metric to optimize among settings that meet the goals. At a fixed price per hour, "
            "the highest throughput has the lowest cost per token.",
        )  # fmt: skip
        for objective in Objective:
            self.objective.addItem(objective.label, objective)
        self.trials = dressed(
            QSpinBox(minimum=0, maximum=1000), "Trials",
            "Maximum number of trials. auto: a quarter of the combinations, at least 8.",
        )  # fmt: skip
        self.trials.setSpecialValueText("auto")
        self.row = hbox(label("Objective", "muted"), self.objective, label("Trials", "muted"),
                        self.trials, STRETCH)  # fmt: skip

    def choose(self, objective: Objective) -> None:
        self.objective.setCurrentIndex(self.objective.findData(objective))

    @property
    def choice(self) -> TuneChoice:
        return TuneChoice(Objective(self.objective.currentData()), self.trials.value())


class LadderFields:
    """What the rungs of a ladder add, and the price of the machine."""

    def __init__(self) -> None:
        self.weights = dressed(ElidedCombo(), "Weights of the ladder",
                               "Weight format of the rung with quantized weights")  # fmt: skip
        self.kv = dressed(ElidedCombo(), "KV cache of the ladder",
                          "Format of the rung with a quantized KV cache")  # fmt: skip
        for box, names in ((self.weights, AT_LOAD), (self.kv, KV_TYPES)):
            for name in names:
                box.addItem(precision_name(name), name)
        self.drafts = dressed(ElidedCombo(), "Speculative decoding",
                              "Method of the rung with speculative decoding")  # fmt: skip
        self.drafts.addItem(speculative_name("ngram"), NGRAM)
        self.price = dressed(
            QDoubleSpinBox(minimum=0, maximum=1e6, decimals=2), "Price per hour",
            "Price of the machine per hour, for the cost of a million tokens",
        )  # fmt: skip
        self.price.setSpecialValueText("not set")
        self.row: QHBoxLayout = hbox(
            label("Weights", "muted"), self.weights, label("KV cache", "muted"), self.kv,
            label("Drafts", "muted"), self.drafts, STRETCH,
        )  # fmt: skip
        self.warning = wrapped("warning")
        self.cost_row = hbox(
            label("Price per hour", "muted"), self.price, (self.warning, 9), STRETCH
        )
        self.warn("")

    def warn(self, text: str) -> None:
        """Of a rung that will fail; "" for none."""
        self.warning.setText(text)
        self.warning.setVisible(bool(text))

    def offer(self, config: EngineConfig | None) -> None:
        """The drafts of the open model, and its precisions."""
        if config is None:
            return
        own = Choices.of(config)
        self._add(self.drafts, own.drafts, speculative_name(own.drafts["speculative_method"]))
        self._add(self.kv, own.kv, precision_name(own.kv))

    def _add(self, box: ElidedCombo, value: Any, text: str) -> None:
        if box.findText(text) < 0:
            box.addItem(text, value)
            box.setCurrentIndex(box.count() - 1)

    @property
    def choice(self) -> LadderChoice:
        drafts = dict(self.drafts.currentData())
        choices = Choices(self.weights.currentData(), self.kv.currentData(), drafts)
        return LadderChoice(choices, self.price.value() or None)
