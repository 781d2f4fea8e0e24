"""The folder that a quantization writes: it appears whole, under its name, or not at all."""

from __future__ import annotations

import errno
import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, ConfigError, DiskFullError
from engine.loading.checkpoint import Checkpoint
from engine.quantization.shards import SHARD_BYTES, ShardWriter, free_bytes

_COPIED = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_NOT_COPIED = (
    "config.json", "model.safetensors.index.json", "quantize_config.json", "quant_config.json",
    "training.json", "inferdeck_quantization.json",
)  # fmt: skip
_LICENCES = ("license", "licence", "notice")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputFolder:
    """A hidden folder beside the output, in which everything is written before it is renamed."""

    def __init__(self, output: Path, check: Callable[[], None], expected_bytes: int) -> None:
        self.output = output
        self.expected_bytes = expected_bytes
        # the number of the process tells a folder that is in use from one that a crash left
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
        free = free_bytes(target)  # before what was written is removed
        if error.errno in _FULL:
            raise DiskFullError(
                f"The disk is full: {folder.tensors.total_bytes:,} bytes of about "
                f"{expected_bytes:,} were written to {target.parent}, {free:,} are free.",
                "Nothing was kept. Free some space, or choose a folder on another disk.",
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
        raise ConfigError(
            f"{target} is the model that is to be quantized.", "Choose another folder."
        )
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(
            f"{target} exists and is not empty.", "Choose a new folder: nothing is overwritten."
        )


def _check_space(target: Path, expected_bytes: int) -> None:
    # a shard lies on the disk twice while it is put together
    needed = expected_bytes + min(expected_bytes, SHARD_BYTES)
    free = free_bytes(target)
    if free < needed:
        raise DiskFullError(
            f"About {needed:,} bytes are needed at {target.parent}, {free:,} are free.",
            "Free some space, or choose a folder on another disk.",
        )


def _remove_leftovers(target: Path) -> None:
    """Folders of runs that were killed."""
    import psutil

    for folder in target.parent.glob(f".{glob.escape(target.name)}.partial-*-*"):
        process = folder.name.split("-")[-2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)
