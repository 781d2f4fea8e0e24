"""The output folder of a quantization, which appears complete under its name or not at all."""

from __future__ import annotations

import errno
import glob
import json
import os
import secrets
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from engine.errors import CheckpointError, ConfigError, DiskFullError
from engine.formats.safetensors_file import BITS, TensorInfo
from engine.models.checkpoint import Checkpoint

SHARD_BYTES = 5 * 10**9
_CHUNK = 16 * 2**20
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


class ShardWriter:
    """Writes tensors to safetensors shards. `check` is called between chunks, and may raise. Call
    `close` at the end, or `abandon`."""

    def __init__(
        self,
        folder: Path,
        check: Callable[[], None] = lambda: None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._folder = folder
        self._check = check
        self._limit = shard_bytes
        self._entries: dict[str, TensorInfo] = {}
        self._data: BinaryIO | None = None
        self._size = 0
        self._shards: list[list[str]] = []
        self.total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        chunks = (
            memoryview(flat[start : start + _CHUNK].numpy())  # type: ignore[arg-type]
            for start in range(0, flat.numel(), _CHUNK)
        )
        self._write(name, _NAMES[tensor.dtype], tuple(tensor.shape), flat.numel(), chunks)

    def copy(self, name: str, info: TensorInfo) -> None:
        """The bytes of a tensor of another file."""
        with info.file.open("rb") as file:
            chunks = _chunks(file, info.offset, info.nbytes)
            self._write(name, info.dtype, info.shape, info.nbytes, chunks)

    def close(self) -> None:
        """Finish the last file, give the files their names, and write the index of several."""
        self._finish_shard()
        count = len(self._shards)
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards, start=1):
            name = f"model-{number:05d}-of-{count:05d}.safetensors"
            name = "model.safetensors" if count == 1 else name
            os.rename(self._shard_file(number), self._folder / name)
            weight_map |= dict.fromkeys(names, name)
        if count > 1:
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            (self._folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    def abandon(self) -> None:
        if self._data is not None:
            self._data.close()
            self._data = None

    def _write(
        self, name: str, dtype: str, shape: tuple[int, ...], nbytes: int, chunks: Iterator[Any]
    ) -> None:
        if self._size and self._size + nbytes > self._limit:
            self._finish_shard()
        partial = self._folder / "tensors.partial"
        if self._data is None:
            self._data = partial.open("w+b")
        self._entries[name] = TensorInfo(partial, dtype, shape, nbytes, self._size)
        for chunk in chunks:
            self._check()
            self._data.write(chunk)
        self._size += nbytes
        self.total_bytes += nbytes

    def _finish_shard(self) -> None:
        if self._data is None:
            return
        entries = sorted(self._entries.items(), key=lambda item: -BITS[item[1].dtype])
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, info in entries:
            header[name] = {
                "dtype": info.dtype,
                "shape": list(info.shape),
                "data_offsets": [position, position + info.nbytes],
            }
            position += info.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._shards.append(list(self._entries))
        with self._shard_file(len(self._shards)).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, info in entries:
                for chunk in _chunks(self._data, info.offset, info.nbytes):
                    self._check()
                    file.write(chunk)
        self._data.close()
        self._data = None
        (self._folder / "tensors.partial").unlink()
        self._entries, self._size = {}, 0

    def _shard_file(self, number: int) -> Path:
        return self._folder / f"shard-{number}.partial"


def _chunks(file: BinaryIO, offset: int, left: int) -> Iterator[bytes]:
    file.seek(offset)
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise OSError(f"{file.name} was truncated while being read")
        left -= len(chunk)
        yield chunk


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


_COPIED = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_NOT_COPIED = (
    "config.json", "model.safetensors.index.json", "quantize_config.json", "quant_config.json",
    "training.json", "inferdeck_quantization.json",
)  # fmt: skip
_LICENCES = ("license", "licence", "notice")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputFolder:
    """A hidden folder next to the output; everything is written there, then it is renamed."""

    def __init__(self, output: Path, check: Callable[[], None], expected_bytes: int) -> None:
        self.output = output
        self.expected_bytes = expected_bytes
        # the process id distinguishes a folder in use from one that a crash left
        name = f".{output.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
        self.partial = output.parent / name
        self.tensors = ShardWriter(self.partial, check)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
        (self.partial / name).write_text(text, encoding="utf-8")

    def copy_companions(self, source: Path) -> None:
        """Tokenizer, generation settings and licence of the model it was made from."""
        for file in sorted(source.iterdir()):
            is_licence = file.name.lower().startswith(_LICENCES)
            if not file.is_file() or file.name in _NOT_COPIED:
                continue
            if is_licence or file.suffix in _COPIED:
                shutil.copyfile(file, self.partial / file.name)


@contextmanager
def output_folder(
    output: str | Path,
    checkpoint: Checkpoint,
    expected_bytes: int,
    check: Callable[[], None] = lambda: None,
) -> Iterator[OutputFolder]:
    """A folder to write to, which becomes `output` when the block ends without an error, and of
    which nothing stays behind otherwise.

    Raises ConfigError where there is something at `output` already, DiskFullError where the space
    does not suffice (before, or while writing), CheckpointError where it cannot be written.
    """
    target = Path(output).expanduser().absolute()
    _check_target(target, checkpoint)
    _check_space(target, expected_bytes)
    folder = OutputFolder(target, check, expected_bytes)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        folder.partial.mkdir()
        yield folder
        folder.tensors.close()
        if target.exists():
            target.rmdir()  # empty: that was looked at
        os.rename(folder.partial, target)
    except OSError as error:
        free = free_bytes(target)  # before the written files are removed
        if error.errno in _FULL:
            raise DiskFullError(
                f"The disk is full: wrote {folder.tensors.total_bytes:,} of about "
                f"{expected_bytes:,} bytes to {target.parent}; {free:,} free.",
                "Partial files were deleted. Free up space, or choose a folder on another disk.",
            ) from error
        raise CheckpointError(
            f"{target} cannot be written: {error.strerror or error}.",
            "Choose another folder, or check its permissions.",
        ) from error
    finally:
        folder.tensors.abandon()
        shutil.rmtree(folder.partial, ignore_errors=True)


def _check_target(target: Path, checkpoint: Checkpoint) -> None:
    if target == checkpoint.path.absolute():
        raise ConfigError(f"{target} is the source model folder.", "Choose another folder.")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(
            f"{target} exists and is not empty.", "Choose a new folder: files are not overwritten."
        )


def _check_space(target: Path, expected_bytes: int) -> None:
    # a shard is on disk twice while it is assembled
    needed = expected_bytes + min(expected_bytes, SHARD_BYTES)
    free = free_bytes(target)
    if free < needed:
        raise DiskFullError(
            f"About {needed:,} bytes needed in {target.parent}; {free:,} free.",
            "Free up disk space, or choose a folder on another disk.",
        )


def _remove_leftovers(target: Path) -> None:
    """Folders of runs that were killed."""
    import psutil

    for folder in target.parent.glob(f".{glob.escape(target.name)}.partial-*-*"):
        process = folder.name.split("-")[-2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)
