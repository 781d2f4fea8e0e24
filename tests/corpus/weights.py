"""A safetensors file as its header and bytes, to be written back broken. No torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

Header = dict[str, Any]
FILE = "model.safetensors"


class Weights:
    """`header`: name -> {"dtype", "shape", "data_offsets"}; `data`: all bytes behind it."""

    def __init__(self, folder: Path, name: str = FILE) -> None:
        self.file = folder / name
        raw = self.file.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        self.header: Header = json.loads(raw[8 : 8 + length])
        self.header.pop("__metadata__", None)
        self.data = bytearray(raw[8 + length :])

    def save(self) -> None:
        write(self.file, json.dumps(self.header).encode(), bytes(self.data))

    def bytes_of(self, name: str) -> memoryview:
        begin, end = self.header[name]["data_offsets"]
        return memoryview(self.data)[begin:end]

    def remove(self, name: str) -> None:
        self._lay({n: e for n, e in self._parts().items() if n != name})

    def put(self, name: str, dtype: str, shape: list[int], content: bytes) -> None:
        self._lay({**self._parts(), name: (dtype, shape, content)})

    def rename(self, old: str, new: str) -> None:
        self.header[new] = self.header.pop(old)

    def _parts(self) -> dict[str, tuple[str, list[int], bytes]]:
        return {
            name: (entry["dtype"], entry["shape"], bytes(self.bytes_of(name)))
            for name, entry in self.header.items()
        }

    def _lay(self, parts: dict[str, tuple[str, list[int], bytes]]) -> None:
        self.header, self.data = {}, bytearray()
        for name, (dtype, shape, content) in parts.items():
            begin = len(self.data)
            self.data += content
            offsets = [begin, len(self.data)]
            self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(file: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    """`length`: what the file says of its header's length."""
    told = len(header) if length is None else length
    file.write_bytes(struct.pack("<Q", told) + header + data)
