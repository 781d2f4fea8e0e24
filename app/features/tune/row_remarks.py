"""`RowRemarks`: the text below each setting, most urgent first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.features.models.precision import GROUP, WEIGHTS
from app.features.tune.draft_models import METHOD, MODEL
from app.features.tune.hints import Hints
from app.features.tune.precision_rows import PrecisionGuide
from app.features.tune.settings_model import SettingsModel
from app.window.setting_specs import matters, only_on, only_with
from engine.errors import ErrorInfo
from engine.hardware.device_map import ALL
from engine.snapshot import MemoryPlan
from engine.units import setting_text
from widgets.controls.setting_row import HintTone
from widgets.live.metric_store import MetricStore

LAYERS = "gpu_layers"
Remark = tuple[str, HintTone]
Gains = Mapping[str, Mapping[Any, str]]
"""Potential gain by setting and value, as text."""
WITH_CEILING = (
    "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "speculative_method",
    "kv_cache_dtype", WEIGHTS,
)  # fmt: skip
"""Settings with a second line for their potential gain."""


class RowRemarks:
    """Texts below the settings. `draft_note`: about the chosen draft model. `plan`: the loaded
    model's memory."""

    def __init__(
        self, model: SettingsModel, precision: PrecisionGuide, metrics: MetricStore | None = None
    ) -> None:
        self._model, self._precision = model, precision
        self.hints = Hints(metrics)
        self.plan: MemoryPlan | None = None
        self.draft_note: Remark = ("", "small")
        self.ceilings: Gains = {}
        self._errors: dict[str, ErrorInfo] = {}
        self.out_of_range: dict[str, str] = {}  # why a typed value is not taken

    def clear(self) -> None:
        self._errors.clear()
        self.out_of_range.clear()
        self.hints.clear()

    def forget(self, name: str) -> None:
        """A new value of it was chosen."""
        self.sent([name])
        self.out_of_range.clear()

    def sent(self, names: Iterable[str]) -> None:
        """The change was sent again."""
        for name in names:
            self._errors.pop(name, None)

    def refused(self, names: Iterable[str], error: ErrorInfo) -> None:
        """The engine rejected these settings."""
        self._errors.update(dict.fromkeys(names, error))

    def idle_because(self, name: str) -> str:
        """Why a setting has no effect now, or ""."""
        device = self._model.shown("device")
        if reason := only_on(name, device, self._is_divided):
            return reason
        if not matters(name, self._model.shown(METHOD)):
            return only_with(name)
        if name == GROUP and self._model.shown(WEIGHTS) != "int4":
            return "Requires INT4 weights"
        return ""

    @property
    def _is_divided(self) -> bool:
        """Whether layers are offloaded to the CPU, or may be after Apply."""
        if self._model.is_pending(LAYERS):
            return bool(self._model.shown(LAYERS) != ALL)
        return self.plan is not None and self.plan.host_layers > 0

    def _pending(self, name: str) -> str:
        applied = getattr(self._model.applied, name)
        now = self._precision.named(name, applied) or setting_text(applied)
        words = f"Pending (currently {now})"
        does = self.hints.moved(self._model.shown(name)) if name == LAYERS else ""
        return f"{words} · {does}" if does else words

    def of(self, name: str) -> Remark:
        if name in self.out_of_range:
            return self.out_of_range[name], "error"
        if name in self._errors:
            return str(self._errors[name]).replace("\n", " "), "error"
        if reason := self.idle_because(name):
            return reason, "small"
        if name == MODEL and self.draft_note[0]:
            return self.draft_note
        if self._model.is_pending(name):
            return self._pending(name), "warning"
        precision = self._precision.hint if name == WEIGHTS else ""
        parts = (self.hints.hint(name), precision, _joined(self.ceilings.get(name, {}).values()))
        return "\n".join(filter(None, parts)), "small"  # two lines


def _joined(gains: Iterable[str]) -> str:
    """ "Up to 1.15× throughput with INT8; INT4: no gain expected"."""
    first, *others = [*gains] or [""]
    lower = [one if one[1:2].isupper() else one[:1].lower() + one[1:] for one in others]
    return "; ".join([first, *lower])
