"""What attached windows may do: permissions, limits and offered models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.server.bodies import MAX_NAMED_TOKENS, MAX_STOP_CHARACTERS, MAX_STOPS
from app.server.options import Limits, ServerOptions
from app.storage.model_sources import OLD_STARTER_NAME, STARTER_TITLE, is_starter
from app.wire.codec import CancelLoad, History, WireCommand
from app.wire.protocol import Offer
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ConfigError, ErrorInfo
from engine.snapshot import ModelInfo

_CONTROLS = (m.Load, m.Unload, m.Reconfigure, m.MeasurePeaks, m.ProfileSteps, CancelLoad)
_LOOK_ONLY = (
    "Attached windows may only view and chat (--no-control is set).",
    "Ask the server administrator.",
)


def check_allowed(command: WireCommand, options: ServerOptions, own: Collection[str]) -> None:
    """Raises ConfigError if a window with the requests `own` may not send `command`."""
    is_of_others = isinstance(command, m.Abort) and command.request_id not in own
    if not options.allows_control and (is_of_others or isinstance(command, _CONTROLS)):
        raise ConfigError(*_LOOK_ONLY)


def check_request(command: m.AddRequest, limits: Limits) -> None:
    """Raises ConfigError if a request exceeds the limits for clients."""
    params = command.params
    most = limits.max_output_tokens
    if most is not None and (params.max_tokens is None or params.max_tokens > most):
        wanted = "unlimited" if params.max_tokens is None else f"{params.max_tokens}"
        raise ConfigError(
            f"max_tokens is {wanted}. The limit is {most:,} per reply.", "Lower max_tokens."
        )
    if len(params.stop) > MAX_STOPS or any(len(s) > MAX_STOP_CHARACTERS for s in params.stop):
        raise ConfigError(
            f"stop allows at most {MAX_STOPS} sequences of {MAX_STOP_CHARACTERS} characters.",
            "Use fewer or shorter stop sequences.",
        )
    for name in ("stop_token_ids", "logit_bias"):
        if len(getattr(params, name)) > MAX_NAMED_TOKENS:
            cause = f"{name} allows at most {MAX_NAMED_TOKENS:,} tokens."
            raise ConfigError(cause, "Use fewer tokens.")


def refused(command: WireCommand, error: ErrorInfo, loaded: m.Loaded | None) -> Iterator[m.Event]:
    """Answers to a rejected command. `loaded`: the server's model."""
    match command:
        case m.AddRequest(request_id) | m.Abort(request_id):
            yield m.RequestFailed(request_id, error)
        case m.Load() | m.Unload():
            yield m.LoadFailed(error, serving=None if loaded is None else loaded.config.model)
        case m.Reconfigure() if loaded is not None:
            yield m.ReconfigureFailed(loaded.config, error)
        case m.CountTokens(key):
            yield m.TokensCounted(key, None)
        case m.InspectBlock(block):
            yield m.BlockInspected(block, None)
        case m.MeasurePeaks():
            yield m.PeaksMeasured(None, error.cause)
        case m.ProfileSteps():
            yield m.StepsProfiled(why_not=error.cause)


class Offers:
    def __init__(self, paths: Iterable[str] = (), *, trusts_paths: bool = False) -> None:
        self.trusts_paths = trusts_paths
        self._paths: dict[str, str] = {}  # by name
        self._names: dict[str, str] = {}  # by path
        self._last: tuple[Any, Any] = (None, None)
        for path in paths:
            self.add(path)

    def all(self) -> tuple[Offer, ...]:
        return tuple(map(Offer, self._paths))

    def add(self, path: str) -> str:
        """Offer the model at `path`; returns its name."""
        known = self._names.get(path)
        if known is not None:
            return known
        plain = name = STARTER_TITLE if is_starter(path) else Path(path).name or path
        number = 1
        while name in self._paths:
            number += 1
            name = f"{plain} ({number})"
        self._paths[name], self._names[path] = path, name
        return name

    def path_of(self, name: str) -> str:
        """Raises ConfigError for a model that is not offered."""
        if self.trusts_paths:
            return name
        found = self._paths.get(name)
        if found is None and name == OLD_STARTER_NAME:
            found = self._paths.get(STARTER_TITLE)
        if found is None:
            offered = ", ".join(self._paths) or "none"
            raise ConfigError(
                f"Model {name[:100]!r} is not available on this server.",
                f"Available: {offered}. Add more with --model-dir on the server.",
            )
        return found

    def asked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The window's settings with paths in place of names. Raises ConfigError."""
        found = dict(settings)
        for name in ("model", "speculative_model"):
            if found.get(name) is not None:
                found[name] = self.path_of(found[name])
        return found

    def redacted(self, message: Any) -> Any:
        """An event, or the history, with names in place of paths."""
        if self.trusts_paths:
            return message
        if isinstance(message, History):
            return message._replace(past=tuple(map(self.redacted, message.past)))
        named: dict[str, Callable[[Any], Any]] = {
            "config": self._config, "model": self._model, "serving": self.add,
            "snapshot": self.redacted,
        }  # fmt: skip
        changes = {
            field: name(value)
            for field, name in named.items()
            if (value := getattr(message, field, None)) is not None
        }
        return dataclasses.replace(message, **changes) if changes else message

    def _config(self, config: EngineConfig) -> EngineConfig:
        before, redacted = self._last
        if before is config:
            return redacted
        draft = None if config.speculative_model is None else self.add(config.speculative_model)
        redacted = config.replace(model=self.add(config.model), speculative_model=draft)
        self._last = config, redacted
        return redacted

    def _model(self, model: ModelInfo) -> ModelInfo:
        name = STARTER_TITLE if is_starter(model.path) else model.name
        return dataclasses.replace(model, name=name, path=self.add(model.path))
