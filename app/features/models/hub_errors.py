"""Errors of the Hugging Face Hub: cause with numbers, and remedy."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from engine.errors import InferdeckError, is_out_of_memory, refusal_of
from engine.units import duration_text

TOKEN_PAGE = "https://huggingface.co/settings/tokens"


class HubError(InferdeckError):
    """The hub refused, did not answer, or sent unexpected data."""


def hub_error(error: BaseException, what: str, endpoint: str) -> InferdeckError:
    """Any exception of a request to the hub about `what` (a model's id, or a search).

    Errors of ours come back unchanged.
    """
    from huggingface_hub.errors import (
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # huggingface_hub wraps the reason of a failed request
    if isinstance(error, InferdeckError) or is_out_of_memory(error):
        return refusal_of(error)
    if isinstance(error, OfflineModeIsEnabled):
        return HubError(
            "Offline mode is on (HF_HUB_OFFLINE=1).",
            "Start Inferdeck without HF_HUB_OFFLINE to search and download.",
        )
    if isinstance(error, HFValidationError):
        return HubError(
            f"{what!r} is not a valid model id.", "Enter owner/name, such as Qwen/Qwen3-0.6B."
        )
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        return HubError(*_refused(status, response.headers, what, endpoint))
    if isinstance(error, (HTTPError, ConnectionError, TimeoutError)):
        return HubError(
            f"No response from {endpoint} ({type(error).__name__}: {str(error) or 'no details'}).",
            "Check your network connection and proxy settings, then try again.",
        )
    if isinstance(error, OSError) and error.errno is not None:
        path = error.filename or "the Hugging Face cache"
        if error.errno == errno.ENOSPC:
            return HubError(
                f"The disk is full: cannot write {path}.",
                "Free some space, then resume. Partial files are kept.",
            )
        return HubError(
            f"Cannot write {path}: {error.strerror}.",
            "Check the folder's permissions, or set HF_HOME to another folder.",
        )
    return HubError(
        f"Invalid response from {endpoint} ({type(error).__name__}: {error}).",
        "Try again later. If HF_ENDPOINT is set, check the URL.",
    )


def _refused(status: int, headers: Mapping[str, str], what: str, endpoint: str) -> tuple[str, str]:
    """Cause and remedy of an HTTP status of 400 and above."""
    if status == 403 or headers.get("X-Error-Code") == "GatedRepo":
        return (
            f"{what} is gated: you need access approval (HTTP {status}).",
            f"Request access at {endpoint}/{what}. Then sign in with `hf auth login` "
            f"(a token from {TOKEN_PAGE}) and try again.",
        )
    if status == 401:  # the hub's answer for a private model, and for one that does not exist
        return (
            f"{what} does not exist or is private (HTTP {status}).",
            "Check the spelling. For a private model, sign in with `hf auth login` and try again.",
        )
    if status == 404:
        return (
            f"{what} not found on {endpoint} (HTTP {status}).",
            "Check the spelling: a model id is owner/name, such as Qwen/Qwen3-0.6B.",
        )
    if status == 429:
        wait = headers.get("Retry-After", "")
        return (
            f"{endpoint}: too many requests from your IP address (HTTP {status}).",
            f"Try again in {duration_text(int(wait))}."
            if wait.isdecimal()
            else "Try again in a few minutes, or sign in.",
        )
    return f"{endpoint} returned HTTP {status} for {what}.", "Try again later."
