"""Whether a file is what the hub describes: its etag is a hash of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, BinaryIO

CHUNK = 1 << 20
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


class Digest:
    """The hash that `etag` names, fed piece by piece.

    A large file (LFS) has its sha256 there, a small one git's hash of a blob: the sha1 of
    "blob <size>\\0" and the content. An etag of neither form says nothing, and nothing is checked.
    """

    def __init__(self, etag: str, size: int) -> None:
        self._wanted, self._size = etag, size
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._hash: Any = None
        if _SHA256.fullmatch(self._wanted):
            self._hash = hashlib.sha256()
        elif _SHA1.fullmatch(self._wanted):
            self._hash = hashlib.sha1(b"blob %d\0" % self._size, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        if self._hash is not None:
            self._hash.update(data)

    @property
    def found(self) -> str:
        return str(self._hash.hexdigest()) if self._hash is not None else ""

    @property
    def matches(self) -> bool:
        return self._hash is None or self.found == self._wanted

    def read(self, file: BinaryIO, check: Callable[[], None]) -> None:
        """Take the rest of `file`; `check` is called before every MiB and may raise."""
        while True:
            check()
            data = file.read(CHUNK)
            if not data:
                return
            self.update(data)
