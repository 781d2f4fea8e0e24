"""A model folder, checked without reading its weights."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, UnsupportedModelError
from engine.formats import CheckpointFormat, open_format
from engine.formats.safetensors_file import TensorInfo, read_header

DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_PYTORCH_FILES = ("*.bin", "*.pt", "*.pth")
_SHARD = re.compile(r"^(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors$")


@dataclass(frozen=True)
class Checkpoint:
    """A Hugging Face model folder with a complete config and complete safetensors headers.

    `config`: the language model's own config (of a multimodal checkpoint that of its text part, and
    `is_multimodal` is set). `tensors`: empty if opened for dummy weights.
    """

    path: Path
    name: str
    config: Any  # transformers.PretrainedConfig
    raw_config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)
    is_multimodal: bool = False

    @classmethod
    def open(cls, path: str | Path, *, dummy: bool = False) -> Checkpoint:
        """Check `path` and read what describes the model.

        With `dummy` only config.json is needed, and `path` may also be a .json file.
        Raises CheckpointError (not a model folder, missing or damaged files) or
        UnsupportedModelError (no transformers class for the model's type).
        """
        folder, config_file = _locate(Path(path).expanduser(), dummy)
        raw = _read_json(config_file)
        # EAGLE heads of vLLM's speculators describe their layer in a config of its own
        described = raw.get("transformer_layer_config") or raw
        config, is_multimodal = _parse_config(described, config_file)
        tensors = {} if dummy else _read_tensors(folder)
        name = config_file.stem if config_file.name != "config.json" else _model_name(folder)
        return cls(folder, name, config, raw, tensors, is_multimodal)

    @property
    def architecture(self) -> str:
        """The class that config.json names, or the model type where it names none."""
        named = self.raw_config.get("architectures") or [self.config.model_type]
        return str(named[0])

    @cached_property
    def disk_bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    @cached_property
    def quantization(self) -> CheckpointFormat | None:
        """The format of quantized weights; None where they are plain numbers. Raises
        UnsupportedModelError or CheckpointError."""
        return open_format(self)

    @property
    def dtype(self) -> str:
        """The number format of most of the weights: float32, bfloat16, float16 or float64.
        Without weights what the config says (bfloat16 where it says nothing)."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            if tensor.dtype in DTYPE_NAMES:
                sizes[DTYPE_NAMES[tensor.dtype]] += tensor.nbytes
        if sizes:
            return sizes.most_common(1)[0][0]
        declared = str(getattr(self.config, "dtype", None) or "bfloat16").removeprefix("torch.")
        return declared if declared in DTYPE_NAMES.values() else "bfloat16"

    @property
    def max_position_embeddings(self) -> int | None:
        """Most positions that the model was made for; None where its config does not say."""
        for attribute in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            value = getattr(self.config, attribute, None)
            if isinstance(value, int) and value > 0:
                return value
        return None

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        return _read_json(self.path / "generation_config.json", required=False)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a reply: the union of what generation_config.json, config.json and the
        tokenizer say (they often differ: one ends a text, the other a chat turn). The config
        class's own default counts only where none of them says anything."""
        text = self.raw_config.get("text_config") or {}
        stated = (
            _ids(self.generation_config.get("eos_token_id"))
            | _ids(self.raw_config.get("eos_token_id"))
            | _ids(text.get("eos_token_id"))
            | _ids(_tokenizer_eos_id(self.path))
        )
        return stated or _ids(getattr(self.config, "eos_token_id", None))


def _locate(path: Path, dummy: bool) -> tuple[Path, Path]:
    """The model's folder and its config file; raises CheckpointError for anything else."""
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist.", "Choose a folder with config.json and *.safetensors files."
        )
    what = f"{path} is not a model folder: it has no config.json."
    if path.is_file():
        if dummy and path.suffix == ".json":
            return path.parent, path
        if path.suffix == ".safetensors" or path.name == "config.json":
            raise CheckpointError(f"{path} is a file.", f"Open the folder: {path.parent}")
        what = f"{path} is a file, not a model folder."
    path = _cache_snapshot(path)
    config_file = path / "config.json"
    if config_file.is_file():
        return path, config_file
    if path.suffix == ".gguf" or any(path.glob("*.gguf")):
        raise _gguf(path)
    raise CheckpointError(what, "Choose a folder with config.json and *.safetensors files.")


def _gguf(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is a GGUF model; Inferdeck supports safetensors.",
        "Download the safetensors version: see base_model on the model card.",
    )


def _cache_snapshot(path: Path) -> Path:
    """The snapshot inside a Hugging Face cache folder (models--owner--name), else `path`."""
    snapshots = path / "snapshots"
    if (path / "config.json").exists() or not snapshots.is_dir():
        return path
    reference = path / "refs" / "main"
    if reference.is_file():
        named = snapshots / reference.read_text().strip()
        if named.is_dir():
            return named
    found = sorted((p for p in snapshots.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else path


def _model_name(folder: Path) -> str:
    """The folder's name; for a cache snapshot the repository's (models--owner--name)."""
    # absolute() and not resolve(): a snapshot may itself be reached through a link
    absolute = folder.absolute()
    if absolute.parent.name == "snapshots" and absolute.parent.parent.name.startswith("models--"):
        return absolute.parent.parent.name.removeprefix("models--").replace("--", "/")
    return absolute.name


def _read_json(file: Path, *, required: bool = True) -> dict[str, Any]:
    if not required and not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_hook=_special_float)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}.", "Download or copy the file again."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is not a JSON object.", "Download or copy the file again.")
    return content


def _special_float(value: dict[str, Any]) -> Any:
    """transformers writes infinity as {"__float__": "Infinity"}, as JSON has no word for it."""
    return float(value["__float__"]) if set(value) == {"__float__"} else value


def _parse_config(raw: Mapping[str, Any], file: Path) -> tuple[Any, bool]:
    """The language model's transformers config, and whether it is part of a larger model."""
    from engine.lazy_transformers import CONFIG_MAPPING, __version__

    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"{file} has no model_type.", "Choose a model folder in Hugging Face format."
        )
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{file} has model_type {model_type!r}, which transformers {__version__} does not "
            "support.",
            "Update transformers, or choose another model. Custom model code is not executed.",
        )
    try:
        config = CONFIG_MAPPING[model_type].from_dict(dict(raw))
    except Exception as error:  # whatever a config class raises, it is the file's content
        raise CheckpointError(
            f"{file} is not a valid {model_type} config: {error}",
            "Download or copy the file again.",
        ) from error
    text = config.get_text_config(decoder=True)
    return text, text is not config


def _read_tensors(folder: Path) -> dict[str, TensorInfo]:
    index = folder / "model.safetensors.index.json"
    weight_map: Any = {}
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index} has no weight_map.", "Download or copy the file again.")
        names = set(weight_map.values())
    else:
        found = [file.name for file in folder.glob("*.safetensors")]
        # Mistral's repositories hold the same weights twice: model-*.safetensors and consolidated.*
        found = [name for name in found if name.startswith("model")] or found
        if not found:
            raise _no_weights(folder)
        names = {shard for name in found for shard in _shards_of(name)}
    missing = [name for name in sorted(names) if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} is missing {len(missing)} of {len(names)} weight files: {few(missing)}.",
            "Finish the download.",
        )
    tensors: dict[str, TensorInfo] = {}
    for name in sorted(names):
        tensors.update(read_header(folder / name))
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{len(absent)} tensors listed in {index} are missing from its files: {few(absent)}.",
            "Download the model again: its index does not match its files.",
        )
    if not tensors:
        raise CheckpointError(
            f"The safetensors files in {folder} contain no tensors.", "Download the model again."
        )
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
        return _gguf(folder)
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


def _ids(value: Any) -> frozenset[int]:
    """Token ids out of an int, a list of them, or null."""
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


def _tokenizer_eos_id(folder: Path) -> int | None:
    """The id of the tokenizer's eos_token, found without building the tokenizer."""
    settings = _read_json(folder / "tokenizer_config.json", required=False)
    token = settings.get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    for token_id, entry in (settings.get("added_tokens_decoder") or {}).items():
        if isinstance(entry, dict) and entry.get("content") == token:
            return int(token_id)
    tokenizer = _read_json(folder / "tokenizer.json", required=False)
    for entry in tokenizer.get("added_tokens") or []:
        if entry.get("content") == token:
            return int(entry["id"])
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict):
        return vocabulary.get(token)
    return None


def few(names: list[str], limit: int = 3) -> str:
    """The first few of `names`, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
