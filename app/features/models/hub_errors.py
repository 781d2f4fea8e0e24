"""What went wrong with the hub, in words: the cause with its numbers, and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from app.units import format_bytes
from engine.errors import InferdeckError

TOKEN_PAGE = "https://huggingface.co/settings/tokens"


class HubError(InferdeckError):
    """The hub refused, did not answer, or sent something else than it promised."""


class DiskFullError(HubError):
    """A download does not fit on the disk."""


class ChecksumError(HubError):
    """What arrived is not what the hub describes."""


def disk_full(needed: int, free: int, folder: Path) -> DiskFullError:
    """`needed`: bytes still to be written; `free`: bytes free where `folder` lies."""
    return DiskFullError(
        f"The download needs {format_bytes(needed)} more, and {format_bytes(free)} are free "
        f"on the disk of {folder}.",
        "Free some space there, or set HF_HOME to a folder on a larger disk; then resume.",
    )


def hub_error(error: BaseException, what: str, endpoint: str) -> InferdeckError:
    """Any exception of a conversation with the hub about `what` (a model's id, or a search).

    Faults of ours come back as they are, so that they are not mistaken for the hub's.
    """
    from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled

    if isinstance(error, InferdeckError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return HubError(
            "Offline mode is on (HF_HUB_OFFLINE=1): nothing is asked of the hub.",
            "Start the program without HF_HUB_OFFLINE to search and download.",
        )
    if isinstance(error, HFValidationError):
        return HubError(
            f"{what!r} cannot be a model's id.", "Write it as owner/name, such as Qwen/Qwen3-0.6B."
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return _refused(status, error, what, endpoint)
    if isinstance(error, (HTTPError, ConnectionError, TimeoutError)):
        return HubError(
            f"{endpoint} does not answer ({type(error).__name__}: {str(error) or 'no details'}).",
            "Check the network and the proxy, and try again.",
        )
    if isinstance(error, OSError):
        return _of_the_disk(error)
    return HubError(
        f"{endpoint} sent an answer that cannot be read ({type(error).__name__}: {error}).",
        "Try again later; with HF_ENDPOINT set, check that it names a hub.",
    )


def _refused(status: int, error: BaseException, what: str, endpoint: str) -> HubError:
    """`status`: an HTTP status of 400 and above."""
    from huggingface_hub.errors import GatedRepoError

    headers = getattr(getattr(error, "response", None), "headers", {})
    code = str(headers.get("X-Error-Code", ""))
    if isinstance(error, GatedRepoError) or code == "GatedRepo" or status == 403:
        return HubError(
            f"{what} is gated: its owners give access to those who ask ({status}).",
            f"Ask for access on {endpoint}/{what}, then sign in with `hf auth login` "
            f"(a token from {TOKEN_PAGE}) and try again.",
        )
    if status == 401:
        # The hub says 401 and not 404 for what one may not even know to exist.
        return HubError(
            f"{what} does not exist, or is private ({status}).",
            "Check the spelling. For a private model sign in with `hf auth login`, and try again.",
        )
    if status == 404:
        return HubError(
            f"{endpoint} has no {what} ({status}).",
            "Check the spelling: a model's id is owner/name, such as Qwen/Qwen3-0.6B.",
        )
    if status == 429:
        wait = headers.get("Retry-After")
        return HubError(
            f"{endpoint} got too many requests from this address ({status}).",
            f"Try again in {wait} s." if wait else "Try again in a few minutes, or sign in.",
        )
    return HubError(
        f"{endpoint} answered {status} about {what}.",
        "Try again later.",
    )


def _of_the_disk(error: OSError) -> InferdeckError:
    place = error.filename or "the cache"
    if error.errno == errno.ENOSPC:
        return DiskFullError(
            f"The disk is full: {place} cannot be written.",
            "Free some space there, then resume. What has arrived is kept.",
        )
    return HubError(
        f"{place} cannot be written: {error.strerror or error}.",
        "Check the folder's permissions, or set HF_HOME to another folder.",
    )
