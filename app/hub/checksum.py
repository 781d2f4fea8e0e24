"""Whether a file is what the hub describes: its etag is a hash of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, BinaryIO

CHUNK = 1 << 20
SHA256_LENGTH = 64


class Digest:
    """The hash that `etag` names, fed piece by piece.

    A large file (LFS) has its sha256 there (64 digits), a small one git's hash of a blob
    (40 digits): the sha1 of "blob <size>\\0" and the content.
    """

    def __init__(self, etag: str, size: int) -> None:
        self._wanted, self._size = etag, size
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._hash: Any = hashlib.sha256()
        if len(self._wanted) != SHA256_LENGTH:
            self._hash = hashlib.sha1(b"blob %d\0" % self._size, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def found(self) -> str:
        return str(self._hash.hexdigest())

    @property
    def matches(self) -> bool:
        return self.found == self._wanted

    def read(self, file: BinaryIO, check: Callable[[], None]) -> None:
        """Take the rest of `file`; `check` is called before every MiB and may raise."""
        while True:
            check()
            data = file.read(CHUNK)
            if not data:
                return
            self.update(data)
