"""What settings gained when they were changed, remembered to correct later estimates. No Qt."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.features.tune.verdict import State, Verdict
from app.paths import data_dir
from app.storage.json_file import write_soon
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.json_file import read_json
from engine.messages import Loaded, Reconfigured
from engine.telemetry.gain import GainEstimate, MeasuredGain

log = logging.getLogger(__name__)

REMEMBERED = {
    "quantization": ("int8", "int4"), "kv_cache_dtype": ("int8", "fp8"),
    "speculative_method": ("ngram", "draft_model", "eagle3"),
}  # fmt: skip
"""Settings whose gain is a matter of machine and model; the values that are estimated."""
_PLAIN = ("auto", "none", "off")
MOST_KEPT = 256
MOST_NOISE = 0.5
SAME = 0.01
"""Gains that differ by less are not written again."""


class MeasuredGains:
    """Gains by machine, model and setting, in a file. Takes what the engine and the verdicts on a
    change report; `find` is for the estimates of the model that is open."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_dir() / "measured_gains.json"
        self._config: EngineConfig | None = None
        self._machine = ""
        self._change = ""  # the key of the newest change, while it is judged
        self._known = self._read()

    def opened(self, event: Loaded) -> None:
        self._config, self._machine, self._change = event.config, event.model.device_name, ""

    def changed(self, event: Reconfigured) -> None:
        """Only the change of one setting alone, from its plain value, can be compared."""
        before, self._config, self._change = self._config, event.config, ""
        if before is None:
            return
        differing = list(before.differences(event.config))
        if len(differing) == 1 and differing[0] in REMEMBERED:
            name = differing[0]
            value = getattr(event.config, name)
            if getattr(before, name) in _PLAIN and value in REMEMBERED[name]:
                self._change = self._key(name, value)

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        """The verdicts on the newest change so far: the later ones have more samples."""
        found = next((v for v in verdicts if v.key == "itl"), None)
        if not self._change or found is None:
            return
        is_measured = found.state in (State.CHANGED, State.NO_CHANGE, State.UNCERTAIN)
        if is_measured and found.factor > 0:
            self._keep(self._change, MeasuredGain(1 / found.factor, min(found.noise, MOST_NOISE)))

    def find(self, one: GainEstimate) -> MeasuredGain | None:
        if one.setting not in REMEMBERED or self._config is None:
            return None
        values = [v for v in REMEMBERED[one.setting] if one.setting != "quantization"]
        keys = [self._key(one.setting, value) for value in values or [one.value]]
        return next((self._known[key] for key in keys if key in self._known), None)

    def _key(self, setting: str, value: str) -> str:
        model = self._config.model if self._config is not None else ""
        return f"{self._machine}|{model}|{setting}={value}"

    def _keep(self, key: str, gain: MeasuredGain) -> None:
        before = self._known.pop(key, None)
        self._known[key] = gain
        self._known = dict(list(self._known.items())[-MOST_KEPT:])
        if before is not None and abs(before.factor / gain.factor - 1) < SAME:
            return  # the same change is judged every second
        try:
            write_soon(self.path, json.dumps(self._known, indent=1))
        except OSError as error:
            log.warning("cannot save the measured gains: %s", error)

    def _read(self) -> dict[str, MeasuredGain]:
        with suppress(CheckpointError):  # missing or damaged: measured again
            return read_json(self.path, dict[str, MeasuredGain])
        return {}
