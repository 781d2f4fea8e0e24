"""Hidden states of a whole text in a temporary file: on a large model they are more than one
would keep in memory (a text of 100,000 tokens at width 4,096 in bfloat16 is 0.8 GB)."""

from __future__ import annotations

import tempfile
from types import TracebackType

import torch
from torch import Tensor

from engine.errors import InferdeckError


class StateFile:
    """Rows [hidden] of one dtype, appended once and read in any order. Bit by bit what was put
    in. The file has no name and is gone when it is closed, however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="inferdeck-states-")  # noqa: SIM115 - closed by close
        self._width = 0
        self._dtype = torch.float32

    def append(self, states: Tensor) -> None:
        """Add the rows of states [R, hidden]."""
        self._width, self._dtype = states.shape[1], states.dtype
        plain = states.detach().contiguous().cpu().view(torch.uint8)
        try:
            self._file.write(plain.numpy().data)
        except OSError as error:
            raise InferdeckError(
                f"The hidden states of the reference ({self._file.tell() / 2**20:,.0f} MiB so "
                f"far) could not be written to {tempfile.gettempdir()}: {error.strerror}.",
                "Free some space there, measure fewer tokens (max_tokens), or set TMPDIR to "
                "another disk.",
            ) from error

    def read(self, start: int, end: int) -> Tensor:
        """Rows start..end-1."""
        row_bytes = self._width * self._dtype.itemsize
        self._file.seek(start * row_bytes)
        data = bytearray(self._file.read((end - start) * row_bytes))
        return torch.frombuffer(data, dtype=self._dtype).view(end - start, self._width)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> StateFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
