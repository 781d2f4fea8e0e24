"""Engine settings on the line: names and plain values, checked against the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.remote.protocol import ProtocolError
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError


def config_values(config: Any) -> dict[str, Any]:
    """To be encoded; {} where a source has no settings."""
    return {name: getattr(config, name) for name in SETTINGS if hasattr(config, name)}


def wanted_values(config: EngineConfig) -> dict[str, Any]:
    """What a window asks for: a setting at its default is not named, so that a server that does not
    know it yet need not refuse."""
    return {name: pair[0] for name, pair in config.differences(EngineConfig()).items()}


def told_config(values: Mapping[str, Any]) -> EngineConfig:
    """What the server says of itself. A setting that this version does not know is left out: no
    view shows it. Raises ProtocolError."""
    return _config({name: value for name, value in values.items() if name in SETTINGS})


def asked_config(values: Mapping[str, Any]) -> EngineConfig:
    """What a window asks for. Raises ProtocolError, also for a name that is no setting."""
    checked_changes(values)
    return _config(values)


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ProtocolError unless all are settings with values of the right type and range."""
    for name, value in values.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(f"{name[:60]!r} is no setting of this engine.")
        _check(lambda setting=setting, value=value: setting.check(value))
    return dict(values)


def _config(values: Mapping[str, Any]) -> EngineConfig:
    return _check(lambda: EngineConfig(**values))


def _check(make: Any) -> Any:
    try:
        return make()
    except ConfigError as error:
        raise ProtocolError(f"{error.cause} {error.remedy}".strip()) from None
