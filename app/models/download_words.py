"""A download in words: for the area of long work, the list and the card."""

from __future__ import annotations

from functools import partial

from app.hub.download import Progress
from app.models.downloads import Download, DownloadQueue, State
from app.units import format_bytes


def figures_text(progress: Progress) -> str:
    """ "412 MiB of 1.40 GiB · 11.0 MiB/s · 1 min 31 s left"; what is not known is left out."""
    if not progress.total:
        return ""
    if progress.done >= progress.total:
        return format_bytes(progress.total)
    parts = [f"{format_bytes(progress.done)} of {format_bytes(progress.total)}"]
    if progress.speed:
        parts.append(f"{format_bytes(progress.speed)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration_text(progress.seconds_left)} left")
    return " · ".join(parts)


def how_far(download: Download) -> str:
    """The figures of a download; speed and time left only while it moves."""
    progress = download.progress
    if download.state is not State.RUNNING:
        progress = Progress(progress.done, progress.total)
    return figures_text(progress)


def duration_text(seconds: float) -> str:
    """ "8 s", "1 min 30 s", "2 h 5 min", "3 days": two units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"


def state_text(download: Download) -> str:
    """What it does, or why it does nothing."""
    if download.state is State.FAILED and download.error is not None:
        return f"{download.error.cause} {download.error.remedy}".strip()
    if download.state is State.RUNNING and download.progress.stage:
        return download.progress.stage
    return download.state.value


def subtitle(download: Download) -> str:
    """One short line for the list."""
    if download.progress.total and download.state is not State.DONE:
        return f"{download.state.value} · {100 * download.progress.fraction:.0f} %"
    return download.state.value


def actions(queue: DownloadQueue, download: Download) -> tuple[tuple[str, partial[None]], ...]:
    """What can be done with it now."""
    repo_id = download.repo_id
    pause = ("Pause", partial(queue.pause, repo_id))
    resume = ("Resume", partial(queue.start, repo_id))
    cancel = ("Cancel", partial(queue.cancel, repo_id))
    match download.state:
        case State.WAITING | State.RUNNING:
            return pause, cancel
        case State.PAUSED | State.FAILED:
            return resume, cancel
        case State.DONE:
            return (("Close", partial(queue.dismiss, repo_id)),)
        case _:
            return ()
