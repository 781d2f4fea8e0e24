"""What stands below each setting: the most urgent of what there is to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.features.models import device_words as rank_words
from app.features.models import device_words as stage_words
from app.features.models.device_words import OTHERS, RANKS, STAGES
from app.features.models.precision import WEIGHTS
from app.features.tune.draft_models import METHOD, MODEL
from app.features.tune.hints import Hints, short
from app.features.tune.precision_rows import PrecisionGuide
from app.features.tune.settings_model import SettingsModel
from app.window.setting_specs import matters, only_on, only_with
from engine.errors import ErrorInfo
from engine.hardware.device_map import ALL
from engine.snapshot import MemoryPlan
from widgets.controls.setting_row import HintTone

LAYERS = "gpu_layers"
SEVERAL = {RANKS: rank_words.tensor_parallel_refusal, STAGES: stage_words.pipeline_parallel_refusal}
"""Settings that several GPUs are for, and what speaks against their value."""
Remark = tuple[str, HintTone]
WITH_CEILING = (
    "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "speculative_method",
    "kv_cache_dtype", WEIGHTS,
)  # fmt: skip
"""Settings of which a second line says, once there are steps, what they could win."""


class RowRemarks:
    """`hints`: what a setting did, from snapshots. `draft_note`: of the draft model that is chosen.
    `ceilings`: what each setting could win at most. `plan`: of the memory, of what is loaded."""

    def __init__(self, model: SettingsModel, precision: PrecisionGuide) -> None:
        self._model, self._precision = model, precision
        self.hints = Hints()
        self.plan: MemoryPlan | None = None
        self.draft_note: Remark = ("", "small")
        self.ceilings: Mapping[str, str] = {}
        self._errors: dict[str, ErrorInfo] = {}
        self._out_of_range: dict[str, str] = {}  # what was written last, in words

    def clear(self) -> None:
        """Another model: what was said of the one before is over."""
        self._errors.clear()
        self._out_of_range.clear()
        self.hints.clear()

    def forget(self, name: str) -> None:
        """It was chosen anew."""
        self._errors.pop(name, None)
        self._out_of_range.pop(name, None)

    def sent(self, names: Iterable[str]) -> None:
        """The engine is asked again."""
        for name in names:
            self._errors.pop(name, None)

    def refused(self, names: Iterable[str], error: ErrorInfo) -> None:
        """The engine could not honour these."""
        self._errors.update(dict.fromkeys(names, error))

    def out_of_range(self, name: str, why: str) -> None:
        """What was written is no value of it."""
        self._out_of_range[name] = why

    def forget_what_was_written(self) -> None:
        """Rows show something else than what was written into them."""
        self._out_of_range.clear()

    def idle_because(self, name: str) -> str:
        """Why a setting does nothing now; "" where it does."""
        device = self._model.shown("device")
        if reason := only_on(name, device, self._is_divided, self._num_gpus):
            return reason
        if name == STAGES:
            return stage_words.nowhere(self._model.shown, self.hints.places)
        if not matters(name, self._model.shown(METHOD)):
            return only_with(name)
        if not self._precision.matters(name, self._model.shown(WEIGHTS)):
            return self._precision.only_with(name)
        return ""

    @property
    def _is_divided(self) -> bool:
        """Whether the CPU computes layers beside a GPU, or may with what is collected."""
        if self._model.is_pending(LAYERS):
            return bool(self._model.shown(LAYERS) != ALL)
        return self.plan is not None and self.plan.host_layers > 0

    @property
    def _num_gpus(self) -> int:
        """Of ranks or stages, where they are on GPUs."""
        return max(map(int, map(self._model.shown, SEVERAL)))

    def _too_many(self, name: str) -> str:
        """Why what is collected cannot be with as many ranks, or stages; "" where nothing of it is
        known to be impossible."""
        if not any(map(self._model.is_pending, (*SEVERAL, *OTHERS))):
            return ""
        return SEVERAL[name](self._model.shown, self.hints.places, self.hints.model)

    def _pending(self, name: str) -> str:
        words = f"not applied yet: now {self._now(name)}"
        does = ""
        if name == LAYERS:
            does = self.hints.moved(self._model.shown(name))
        elif name == RANKS:
            does = self.hints.ranks(*map(self._model.shown, (RANKS, "device", "num_threads")))
        elif name == STAGES:
            does = self.hints.stages(*map(self._model.shown, (STAGES, "device")))
        return f"{words} · {does}" if does else words

    def _now(self, name: str) -> str:
        """What is in force, in the words of the row's own choices."""
        applied = getattr(self._model.applied, name)
        return self._precision.named(name, applied) or short(applied)

    def of(self, name: str) -> Remark:
        if name in self._out_of_range:
            return self._out_of_range[name], "error"
        if name in self._errors:
            return str(self._errors[name]).replace("\n", " "), "error"
        if reason := self.idle_because(name):
            return reason, "small"
        if name in SEVERAL and (reason := self._too_many(name)):
            return reason, "error"
        if name == MODEL and self.draft_note[0]:
            return self.draft_note
        if self._model.is_pending(name):
            return self._pending(name), "warning"
        parts = (self.hints.hint(name), self._precision.hint(name), self.ceilings.get(name, ""))
        return "\n".join(filter(None, parts)), "small"  # one line would widen the panel
