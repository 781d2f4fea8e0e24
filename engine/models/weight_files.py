"""The weight files of a model folder: which they are, and the tensors in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import msgspec

from engine.errors import CheckpointError
from engine.formats.safetensors_file import TensorInfo, read_header
from engine.json_file import AGAIN, read_json, shown

INDEX = "model.safetensors.index.json"
_MAX_INDEX = 64 * 2**20
"""Bytes; the largest in use are 20 MB."""
_LONGEST = 400
"""Characters of a name in a message."""
_PYTORCH_FILES = ("*.bin", "*.pt", "*.pth")
_SHARD = re.compile(r"^(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors$")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Tensor name -> where it is. Raises CheckpointError for missing or damaged files, and for an
    index that does not match them or names files outside of the folder."""
    index = folder / INDEX
    weight_map: dict[str, str] = {}
    if index.exists():
        weight_map = _checked_names(read_json(index, _Index, limit=_MAX_INDEX).weight_map, index)
        names = set(weight_map.values())
    else:
        found = [file.name for file in folder.glob("*.safetensors")]
        # Mistral's repositories hold the same weights twice: model-*.safetensors and consolidated.*
        found = [name for name in found if name.startswith("model")] or found
        if not found:
            raise _no_weights(folder)
        names = {shard for name in found for shard in _shards_of(name)}
    missing = [name for name in sorted(names) if not (folder / name).exists()]
    if missing:
        raise CheckpointError(
            f"{folder} is missing {len(missing)} of {len(names)} weight files"
            f"{f' in {INDEX}' if weight_map else ''}: {few(missing)}.",
            "Finish the download.",
        )
    tensors = _collect(folder, sorted(names), weight_map)
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{index} lists {tensor_count(absent)} not found in the weight files: {few(absent)}.",
            "Download the model again: its index does not match its files.",
        )
    if not tensors:
        raise CheckpointError(
            f"The safetensors files in {folder} contain no tensors.", "Download the model again."
        )
    return tensors


def _checked_names(weight_map: Mapping[str, str], index: Path) -> dict[str, str]:
    """Tensor name -> file, "./a" as "a".

    A name leads into the folder on every system; what it links to is the folder's own affair: the
    Hugging Face cache has its files elsewhere.
    """
    if not weight_map:
        raise CheckpointError(f"{index} has no weight_map.", AGAIN)
    files = {name: tensor for tensor, name in weight_map.items()}
    for name, tensor in files.items():
        own = name.removeprefix("./")
        windows, posix = PureWindowsPath(own), PurePosixPath(own)
        is_inside = own == str(posix) and windows.parts == posix.parts
        if not is_inside or windows.anchor or ".." in posix.parts or own == ".":
            raise CheckpointError(
                f"{index} has weight_map[{shown(tensor)}] = {shown(name)}; expected a file inside "
                "the model folder.",
                "Download the model again from a source that you trust.",
            )
    return {tensor: name.removeprefix("./") for tensor, name in weight_map.items()}


def _collect(
    folder: Path, names: list[str], weight_map: Mapping[str, str]
) -> dict[str, TensorInfo]:
    """The tensors of all files. Of one that two files have, the index says which counts."""
    tensors: dict[str, TensorInfo] = {}
    for file in names:
        for name, info in read_header(folder / file).items():
            other = tensors.get(name)
            stated = None if name not in weight_map else folder / weight_map[name]
            if other is not None and stated not in (other.file, info.file):
                raise CheckpointError(
                    f"{name} is in two files: {other.file} and {info.file}.",
                    "Remove the file that does not belong to the model, or download it again.",
                )
            if other is None or stated == info.file:
                tensors[name] = info
    return tensors


def _shards_of(name: str) -> list[str]:
    """Without an index the name of a file says how many shards there are."""
    match = _SHARD.match(name)
    if match is None:
        return [name]
    stem, count = match["stem"], int(match["count"])
    return [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def _no_weights(folder: Path) -> CheckpointError:
    if any(folder.glob("*.gguf")):
        return gguf(folder)
    for pattern in _PYTORCH_FILES:
        if any(folder.glob(pattern)):
            return CheckpointError(
                f"{folder} has only {pattern} weights. Loading these can execute code: "
                "Inferdeck supports safetensors only.",
                "Use a safetensors revision of the repository, or convert the model with "
                "transformers (save_pretrained).",
            )
    return CheckpointError(
        f"{folder} has config.json but no weights (*.safetensors).",
        'Finish the download, or use load format "dummy" to measure speed with random weights.',
    )


def tensor_count(names: Sequence[str]) -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{len(names):,} tensor{'' if len(names) == 1 else 's'}"


def few(names: list[str], limit: int = 3) -> str:
    """The first few of `names`, long ones shortened, and how many more there are."""
    rest = len(names) - limit
    shortened = (n if len(n) <= _LONGEST else f"{n[: _LONGEST - 3]}..." for n in names[:limit])
    return ", ".join(shortened) + (f" and {rest} more" if rest > 0 else "")


def gguf(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is a GGUF model; Inferdeck supports safetensors.",
        "Download the safetensors version: see base_model on the model card.",
    )
