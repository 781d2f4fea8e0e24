"""Downloads a model into the cache of huggingface_hub, with pause and resume.

huggingface_hub sends the requests (authentication, ranges, retries), locks, and lays out the cache.
Three things are ours because its 2.4 release lacks them:

- resume: `hf_hub_download` deletes a partial file when it stops, even of many GB, and has no way
  to stop. Here a file grows in `blobs/<etag>.incomplete` and the next run continues it;
- verification: it compares sizes. Here a file must have its SHA-256 (LFS) or its git hash;
- free space: it warns per file. Here the whole download is refused before its first byte.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.features.models.hub import Hub, RepoFile
from app.features.models.hub_errors import HubError, hub_error
from engine.units import bytes_text

SPEED_WINDOW_S = 5.0
LOCK_TIMEOUT_S = 1.0
CHUNK = 1 << 20
SHA256_LENGTH = 64
MAX_FILE = 50 * 10**9
"""The hub serves larger files through its xet protocol only."""


class Stopped(Exception):  # noqa: N818 - no error: the user stopped it
    """The download was paused or cancelled."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes (0: unknown), recent bytes per second (0: unknown), and the current
    stage unless bytes are arriving."""

    done: int = 0
    total: int = 0
    speed: float = 0.0
    stage: str = ""

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.speed if self.speed > 0 and self.total else None

    @property
    def fraction(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0


class Speed:
    """Bytes per second over the last seconds. Times are `time.monotonic`."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, int]] = deque()

    def add(self, count: int, now: float) -> None:
        self._arrivals.append((now, count))

    def at(self, now: float) -> float:
        while self._arrivals and now - self._arrivals[0][0] > SPEED_WINDOW_S:
            self._arrivals.popleft()
        if not self._arrivals:
            return 0.0
        span = min(SPEED_WINDOW_S, max(now - self._arrivals[0][0], 0.5))
        return sum(count for _, count in self._arrivals) / span


class ModelDownload:
    """Downloads one model. `run` in a thread; `stop` and `progress` from any other."""

    def __init__(self, hub: Hub, repo_id: str) -> None:
        self.repo_id = repo_id
        self._hub = hub
        self._folder = RepoFolder(hub.cache_dir, repo_id)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = 0
        self._stage = ""
        self._speed = Speed()

    @property
    def progress(self) -> Progress:
        with self._lock:
            speed = self._speed.at(time.monotonic())
            return Progress(max(0, self._done), self._total, speed, self._stage)

    def stop(self) -> None:
        """End `run` soon, with Stopped. Partial files stay."""
        self._stop.set()

    def run(self) -> Path:
        """Download the missing files; returns the snapshot's folder.

        Raises Stopped after `stop`, and HubError: no such model, no access, no connection, a full
        disk, a wrong checksum. The next `run` resumes.
        """
        self._speed = Speed()
        try:
            return self._run()
        except Stopped:
            raise
        except Exception as error:
            raise hub_error(error, self.repo_id, self._hub.endpoint) from error
        finally:
            self._stop.clear()
            self._set_stage("")

    def discard(self) -> None:
        """Remove the partial download; files of a complete snapshot stay."""
        self._folder.discard()

    def _run(self) -> Path:
        from huggingface_hub import constants
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK  # its 10 MiB delay pause and progress on slow lines
        self._set_stage("querying the hub")
        # asked again at every start: main may have moved on meanwhile
        details = self._hub.details(self.repo_id)
        files, commit = details.files.wanted, details.commit
        self._check()
        with self._lock:
            self._total = details.files.size
            self._done = self._folder.arrived(commit, files)
        self._check_space(files)
        for file in files:
            self._check()
            if not self._folder.has(commit, file):
                self._fetch(file, commit)
        self._set_stage("linking files")
        return self._publish(files, commit)

    def _publish(self, files: Iterable[RepoFile], commit: str) -> Path:
        """Let huggingface_hub link the blobs into the snapshot of `commit`, and name it main."""
        from huggingface_hub import hf_hub_download

        snapshot, refs = self._folder.snapshot(commit), self._folder.path / "refs"
        for file in files:
            hf_hub_download(
                self.repo_id,
                file.name,
                revision=commit,
                endpoint=self._hub.endpoint,
                cache_dir=self._hub.cache_dir,
            )
            if not (snapshot / file.name).is_symlink():  # a copy, where links fail (Windows)
                self._folder.blob(file.etag).unlink(missing_ok=True)
        # hf_hub_download would name the newest commit main; snapshot_download would store the list
        # of all files and report the skipped ones as missing
        refs.mkdir(exist_ok=True)
        (refs / ".main.tmp").write_text(commit, encoding="utf-8")
        os.replace(refs / ".main.tmp", refs / "main")
        return snapshot

    def _check_space(self, files: Iterable[RepoFile]) -> None:
        root = self._hub.cache_dir
        needed = self._total - self._done
        free = shutil.disk_usage(next(p for p in (root, *root.parents) if p.exists())).free
        if needed > free:
            raise HubError(
                f"Not enough disk space: {bytes_text(needed)} needed, {bytes_text(free)} free "
                f"in {root}.",
                "Free some space, or set HF_HOME to a folder on a larger disk; then resume.",
            )
        for file in files:
            if file.size > MAX_FILE:
                raise HubError(
                    f"{file.name} is {bytes_text(file.size)}; the hub serves files over 50 GB "
                    "only through Xet.",
                    f"Run `hf download {self.repo_id}`; the model then appears in the list.",
                )

    def _fetch(self, file: RepoFile, commit: str) -> None:
        """Download one file into its blob."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import HTTPError
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        blob = self._folder.blob(file.etag)
        url = hf_hub_url(
            self.repo_id, file.name, revision=commit, endpoint=self._hub.endpoint
        )  # fmt: skip
        # compressed, the bytes on the wire would not be those of the file
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        with self._locked(file):
            if blob.exists():
                return  # another program downloaded it meanwhile
            with self._folder.incomplete(file.etag).open("ab+") as raw:
                part: Any = _Part(raw, file, self._check, self._arrived)
                if start := part.tell():
                    self._set_stage("verifying partial file")
                    part.hash_existing()
                self._set_stage("")
                while (start := part.tell()) < file.size:
                    try:
                        http_get(
                            url, part, resume_size=start, headers=headers, expected_size=file.size
                        )
                    except (HTTPError, OSError):
                        # http_get retries time-outs, not connections that are reset
                        if part.is_torn or part.tell() <= start:
                            raise
                raw.flush()
                os.fsync(raw.fileno())  # a crash must not leave holes under a verified name
            part.verify()
            os.replace(self._folder.incomplete(file.etag), blob)

    @contextmanager
    def _locked(self, file: RepoFile) -> Iterator[None]:
        """Hold the blob's lock, the one that huggingface_hub takes for it."""
        from filelock import Timeout
        from huggingface_hub.utils import WeakFileLock

        lock = self._folder.lock(file.etag)
        lock.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder.blob(""), self._folder.snapshot("")):
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            while True:
                self._check()
                try:
                    held.enter_context(WeakFileLock(lock, timeout=LOCK_TIMEOUT_S))
                    break
                except Timeout:
                    self._set_stage("waiting: another program is downloading this file")
            yield

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _arrived(self, count: int) -> None:
        with self._lock:
            self._done += count
            if count > 0:
                self._speed.add(count, time.monotonic())

    def _set_stage(self, stage: str) -> None:
        with self._lock:
            self._stage = stage


class _Part:
    """A partial file as http_get writes it: hashed, counted, and stopped by `check`, which raises.

    `arrived` gets the bytes that came; negative where they were discarded.
    """

    def __init__(
        self,
        raw: BinaryIO,
        file: RepoFile,
        check: Callable[[], None],
        arrived: Callable[[int], None],
    ) -> None:
        self._raw, self._file, self._check, self._arrived = raw, file, check, arrived
        self.is_torn = False  # the disk may have bytes that the hash lacks
        self._start_hash()
        if self.tell() > file.size:  # not the beginning of this file
            self.truncate()

    def tell(self) -> int:
        return self._raw.seek(0, os.SEEK_END)

    def seek(self, offset: int, whence: int = 0) -> int:
        assert offset == 0, "http_get rewinds to the start only"
        return 0

    def truncate(self) -> None:
        """Discard everything: http_get starts over where a server ignores ranges."""
        self._arrived(-self.tell())
        self._raw.truncate(0)
        self._start_hash()

    def write(self, data: bytes) -> int:
        self._check()
        if self.tell() + len(data) > self._file.size:
            raise HubError(
                f"{self._file.name}: received more than {self._file.size:,} bytes.",
                "Cancel the download and start it again.",
            )
        self.is_torn = True
        self._raw.write(data)
        self.is_torn = False
        self._hash.update(data)
        self._arrived(len(data))
        return len(data)

    def hash_existing(self) -> None:
        self._raw.seek(0)
        while data := self._raw.read(CHUNK):
            self._check()
            self._hash.update(data)

    def verify(self) -> None:
        """Raise HubError, and remove the file, unless the content has the hub's hash."""
        found, expected = str(self._hash.hexdigest()), self._file.etag
        if found != expected:
            os.unlink(self._raw.name)
            self._arrived(-self._file.size)
            raise HubError(
                f"{self._file.name} is corrupt: checksum {found[:12]}…, expected "
                f"{expected[:12]}… ({self._file.size:,} bytes).",
                "Resume to download this file again. If it fails again, check your proxy.",
            )

    def _start_hash(self) -> None:
        """SHA-256 for a large file (LFS); git's SHA-1 of "blob <size>\\0" + content otherwise."""
        self._hash: Any = hashlib.sha256()
        if len(self._file.etag) != SHA256_LENGTH:
            self._hash = hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class RepoFolder:
    """One model's folder in the cache `root`."""

    root: Path
    repo_id: str

    @property
    def path(self) -> Path:
        return self.root / "--".join(["models", *self.repo_id.split("/")])

    def blob(self, etag: str) -> Path:
        return self.path / "blobs" / etag

    def incomplete(self, etag: str) -> Path:
        return self.path / "blobs" / f"{etag}.incomplete"

    def lock(self, etag: str) -> Path:
        return self.root / ".locks" / self.path.name / f"{etag}.lock"

    def snapshot(self, commit: str) -> Path:
        return self.path / "snapshots" / commit

    def has(self, commit: str, file: RepoFile) -> bool:
        """Whether the file is complete."""
        return self.blob(file.etag).exists() or (self.snapshot(commit) / file.name).exists()

    def arrived(self, commit: str, files: Iterable[RepoFile]) -> int:
        """Bytes of `files` on the disk, complete and partial."""
        arrived = 0
        for file in files:
            if self.has(commit, file):
                arrived += file.size
            else:
                with suppress(OSError):  # not there, or just completed by another program
                    arrived += self.incomplete(file.etag).stat().st_size
        return arrived

    def discard(self) -> None:
        """Remove partial files, and blobs that no snapshot uses."""
        links = [f for f in (self.path / "snapshots").rglob("*") if not f.is_dir()]
        used = {Path(os.readlink(f)).name for f in links if f.is_symlink()}
        for file in (self.path / "blobs").glob("*"):
            if file.name not in used:
                file.unlink(missing_ok=True)
        if not links:
            shutil.rmtree(self.path, ignore_errors=True)
