"""One file from the hub into its blob: resumed where it stopped, counted, checked."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.features.models.hub import Hub
from app.features.models.hub_errors import ChecksumError, HubError, disk_full, hub_error
from app.features.models.hub_files import Digest, RepoFile, RepoFolder

RETRIES = 5
FIRST_WAIT_S = 1.0
TIMEOUT_S = 15.0
LOCK_TIMEOUT_S = 1.0
MAX_FILE = 50 * 10**9
"""The hub gives files above 50 GB through its own protocol only."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file comes from."""

    hub: Hub
    folder: RepoFolder
    commit: str


@dataclass(frozen=True, slots=True)
class Watch:
    """How a transfer is followed: `check` is called often and raises to stop it; `arrived` gets
    the bytes that came (negative where they turned out useless); `stage` what is being done."""

    check: Callable[[], None]
    arrived: Callable[[int], None]
    stage: Callable[[str], None]


def fetch(source: Source, file: RepoFile, watch: Watch) -> None:
    """Bring `file` into its blob. Whatever stops it, what has arrived stays for the next time.

    Raises HubError (DiskFullError, ChecksumError), and what `watch.check` raises.
    """
    blob, part = source.folder.blob(file.etag), source.folder.incomplete(file.etag)
    if file.size > MAX_FILE:
        raise HubError(
            f"{file.name} has {file.size / 1e9:.0f} GB; the hub sends files above 50 GB through "
            "its xet protocol only, which cannot be paused.",
            f"Download it with `hf download {source.folder.repo_id}`: it is found here after.",
        )
    with _locked(source.folder.lock(file.etag), watch):
        if blob.exists():
            return  # another program brought it meanwhile
        digest = Digest(file.etag, file.size)
        with part.open("ab") as target:
            _take_what_is_there(part, target, file, digest, watch)
            _receive_all(source, file, target, digest, watch)
        _accept(source, file, part, digest, watch)
        os.replace(part, blob)


def _take_what_is_there(
    part: Path, target: BinaryIO, file: RepoFile, digest: Digest, watch: Watch
) -> None:
    """Hash what came before; more than the whole file is not the beginning of it."""
    if target.tell() > file.size:
        watch.arrived(-target.tell())
        _empty(target)
    if target.tell():
        watch.stage("checking what is there")
        with part.open("rb") as before:
            digest.read(before, watch.check)


def _receive_all(
    source: Source, file: RepoFile, target: BinaryIO, digest: Digest, watch: Watch
) -> None:
    """Receive until the file is whole, again and again while something still arrives."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    attempts = 0
    while target.tell() < file.size:
        before = target.tell()
        try:
            _receive(source, file, target, digest, watch)
        except (HTTPError, ConnectionError, TimeoutError) as error:
            attempts = 0 if target.tell() > before else attempts + 1
            refused = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
            if refused or attempts >= RETRIES:
                what = source.folder.repo_id
                raise hub_error(error, what, source.hub.endpoint) from error
            watch.stage(f"no connection, attempt {attempts + 1} of {RETRIES}")
            _wait(FIRST_WAIT_S * 2 ** max(0, attempts - 1), watch)


def _receive(
    source: Source, file: RepoFile, target: BinaryIO, digest: Digest, watch: Watch
) -> None:
    """One request for the rest of the file, written as it comes."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    start = target.tell()
    headers = build_hf_headers()
    # compressed, the bytes on the wire would not be those of the file
    headers["Accept-Encoding"] = "identity"
    if start:
        headers["Range"] = f"bytes={start}-"
    url = source.hub.file_url(source.folder.repo_id, source.commit, file.name)
    # redirected to another host (a CDN), the client leaves the token out
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as answer:
        hf_raise_for_status(answer)
        if start and answer.status_code != 206:
            # the server begins at the beginning: so must the file, and its hash
            watch.arrived(-start)
            _empty(target)
            digest.reset()
        watch.stage("")
        _write(answer, file, target, digest, watch)


def _write(answer: Any, file: RepoFile, target: BinaryIO, digest: Digest, watch: Watch) -> None:
    for data in answer.iter_bytes():
        watch.check()
        if target.tell() + len(data) > file.size:
            raise ChecksumError(
                f"{file.name}: more than its {file.size:,} bytes arrived.",
                "Cancel the download and start it again.",
            )
        target.write(data)
        digest.update(data)
        watch.arrived(len(data))


def _accept(source: Source, file: RepoFile, part: Path, digest: Digest, watch: Watch) -> None:
    """What arrived is what the hub describes; else it is removed, as no more bytes can mend it."""
    if digest.matches:
        return
    part.unlink(missing_ok=True)
    watch.arrived(-file.size)
    raise ChecksumError(
        f"{file.name} is damaged: its checksum is {digest.found[:12]}… and should be "
        f"{file.etag[:12]}… ({file.size:,} bytes arrived).",
        "Resume to download this file again. If it happens twice, a proxy on the way changes it.",
    )


def _empty(target: BinaryIO) -> None:
    target.truncate(0)
    target.seek(0)  # truncating alone leaves the position where it was


def check_space(folder: RepoFolder, needed: int) -> None:
    """Raise DiskFullError unless `needed` more bytes can be written into the cache."""
    place = next(p for p in (folder.root, *folder.root.parents) if p.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise disk_full(needed, free, folder.root)


def _wait(seconds: float, watch: Watch) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch.check()
        time.sleep(0.05)


@contextmanager
def _locked(file: Path, watch: Watch) -> Iterator[None]:
    """Hold the lock of a blob. Another program that downloads the same one is waited for."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock

    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        while True:
            watch.check()
            try:
                held.enter_context(WeakFileLock(file, timeout=LOCK_TIMEOUT_S))
                break
            except Timeout:
                watch.stage("waiting for another program that downloads this file")
        yield
