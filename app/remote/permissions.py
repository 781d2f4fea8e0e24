"""What a window may do, and what it is told where it may not."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from app.remote.codec import CancelLoad, WireCommand
from app.server.call import MAX_NAMED_TOKENS, MAX_STOP_CHARACTERS, MAX_STOPS
from app.server.options import Limits, ServerOptions
from engine import messages as m
from engine.errors import ConfigError, ErrorInfo

_CONTROLS = (m.Load, m.Unload, m.Reconfigure, m.MeasurePeaks, CancelLoad)
_LOOK_ONLY = (
    "Windows may look and ask on this server, not change it (--no-control).",
    "Ask who runs it.",
)


def refusal(
    command: WireCommand, options: ServerOptions, own: Collection[str]
) -> ConfigError | None:
    """Why a window with the requests `own` may not give `command`."""
    if options.allows_control:
        return None
    if isinstance(command, m.Abort) and command.request_id in own:
        return None
    return ConfigError(*_LOOK_ONLY) if isinstance(command, (*_CONTROLS, m.Abort)) else None


def check_request(command: m.AddRequest, limits: Limits) -> None:
    """Raises ConfigError where a request would take more than clients may."""
    params = command.params
    most = limits.max_output_tokens
    if most is not None and (params.max_tokens is None or params.max_tokens > most):
        wanted = "the whole context" if params.max_tokens is None else f"{params.max_tokens}"
        raise ConfigError(
            f"max_tokens is {wanted}; this server allows {most} a reply.", "Give fewer."
        )
    if len(params.stop) > MAX_STOPS or any(len(s) > MAX_STOP_CHARACTERS for s in params.stop):
        raise ConfigError(
            f"stop may have {MAX_STOPS} texts of {MAX_STOP_CHARACTERS} characters.", "Give fewer."
        )
    for name in ("stop_token_ids", "logit_bias"):
        if len(getattr(params, name)) > MAX_NAMED_TOKENS:
            raise ConfigError(f"{name} may name {MAX_NAMED_TOKENS} tokens.", "Give fewer.")


def refused(command: WireCommand, error: ErrorInfo, loaded: m.Loaded | None) -> Iterator[m.Event]:
    """What answers a command that was not handed on. `loaded`: what serves, on the server."""
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
