"""What a checkpoint says of its quantization, wherever it says it.

config.json             quantization_config (older compressed-tensors: compression_config),
                        at the top or under text_config
quant_config.json       older AWQ: w_bit, q_group_size, version
quantize_config.json    older GPTQ: bits, group_size, desc_act, sym
hf_quant_config.json    ModelOpt: quantization (which config.json may nest as well): quant_algo
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.loading.checkpoint import Checkpoint

CHECK_SETTINGS = "Download the model again, or correct the settings if you made the folder."
_SIDE_FILES = (
    ("quant_config.json", "awq", "w_bit"), ("quantize_config.json", "gptq", "bits"),
    ("hf_quant_config.json", "modelopt", "quant_algo"),
)  # fmt: skip
_REQUIRED = object()


@dataclass(frozen=True)
class Settings:
    """The settings and the file they are from. Every reader takes the names a key has had, and
    raises CheckpointError where a value is missing or of the wrong kind."""

    values: Mapping[str, Any]
    source: str

    @property
    def method(self) -> str:
        # transformers before 4.34 wrote bitsandbytes' settings without a name
        by_bits = any(self.values.get(key) for key in ("load_in_4bit", "load_in_8bit"))
        named = self.text("quant_method", default="bitsandbytes") if by_bits else ""
        return (named or self.text("quant_method", "method")).lower()

    def integer(self, *names: str, default: Any = _REQUIRED) -> int:
        value = self._find(names, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(names[0], value, "a whole number")
        return value

    def text(self, *names: str, default: Any = _REQUIRED) -> str:
        value = self._find(names, default)
        if not isinstance(value, str):
            raise self._wrong(names[0], value, "a text")
        return value

    def flag(self, *names: str, default: Any = _REQUIRED) -> bool:
        value = self._find(names, default)
        if not isinstance(value, bool):
            raise self._wrong(names[0], value, "true or false")
        return value

    def names(self, *keys: str) -> list[str]:
        """A list of texts; empty where the key is absent."""
        value = self._find(keys, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(keys[0], value, "a list of names")
        return value

    def table(self, *keys: str) -> dict[str, Any]:
        """An object; empty where the key is absent."""
        value = self._find(keys, {})
        if not isinstance(value, dict):
            raise self._wrong(keys[0], value, "an object")
        return value

    def _find(self, names: tuple[str, ...], default: Any) -> Any:
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is _REQUIRED:
            raise CheckpointError(f"{self.source} does not say {names[0]}.", CHECK_SETTINGS)
        return default

    def _wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source} has {name} = {json.dumps(value, default=str)}, which should be "
            f"{wanted}.",
            CHECK_SETTINGS,
        )


def find_settings(checkpoint: Checkpoint) -> Settings | None:
    """None where nothing says that the checkpoint is quantized."""
    raw = checkpoint.raw_config
    for part in (raw, raw.get("text_config") or {}):
        for key in ("quantization_config", "compression_config"):
            found = part.get(key) if isinstance(part, Mapping) else None
            if found is not None:
                values = _flat(_as_object(found, key, checkpoint.path))
                return Settings(values, f"{key} of config.json")
    for name, method, telling in _SIDE_FILES:
        values = _flat(_read(checkpoint.path / name))
        if telling in values:
            return Settings({"quant_method": method, **values}, name)
    return None


def _flat(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """ModelOpt puts its settings into an object of their own, beside the name of the program."""
    own = values.get("quantization")
    return {**values, **own} if isinstance(own, Mapping) else values


def _as_object(found: Any, key: str, folder: Path) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{key} in {folder / 'config.json'} is not an object.", CHECK_SETTINGS
        )
    return found


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}.", "Download or copy the file again."
        ) from error
    return values if isinstance(values, dict) else {}
