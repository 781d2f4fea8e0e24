"""A model folder, checked without reading its weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import CheckpointError, UnsupportedModelError, in_one_line
from engine.formats import CheckpointFormat, open_format
from engine.formats.safetensors_file import TensorInfo
from engine.json_file import AGAIN, MAX_BYTES, read_json, read_regular, shown, type_text, unreadable
from engine.models.config_bounds import check_built, check_fields, check_layers
from engine.models.weight_files import gguf, read_tensors

DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
MAX_TOKENIZER = 64 * 2**20
"""Bytes of tokenizer.json; the largest in use are 35 MB."""

_HEAD = "lm_head.weight"
_FIELD = re.compile(r"Field '(?P<name>\w+)' expected (?P<wanted>[^,]+), got ")
_REJECTED = re.compile(
    r"(Validation error for field '(?P<name>\w+)'|Class validation error for validator '\w+'):"
    r"\s+\w+Error: (?P<words>.*)"
)
"""In the words of huggingface_hub's strict dataclasses."""

T = TypeVar("T")


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
        try:
            folder, config_file = _locate(Path(path).expanduser(), dummy)
        except (OSError, RuntimeError) as error:  # RuntimeError: no such user after ~
            raise unreadable(str(path), error) from error
        raw: dict[str, Any] = read_json(config_file, hook=_special_float)
        check_fields(raw, config_file)
        # EAGLE heads of vLLM's speculators describe their layer in a config of its own
        described = raw.get("transformer_layer_config") or raw
        config, whole = _parse_config(described, config_file)
        check_built(config, config_file)
        tensors = {} if dummy else read_tensors(folder)
        is_multimodal = config is not whole
        if tensors and is_multimodal and not any(name.endswith(_HEAD) for name in tensors):
            # the head is the whole model's: its config says whether it is tied
            config.tie_word_embeddings = any(
                getattr(one, "tie_word_embeddings", False) for one in (config, whole)
            )
        if tensors:
            check_layers(config, len(tensors), folder)
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
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a reply: the union of what generation_config.json, config.json and the
        tokenizer say (they often differ: one ends a text, the other a chat turn). The config
        class's own default counts only where none of them says anything."""
        text = self.raw_config.get("text_config") or {}
        generation = _optional(self.path / "generation_config.json", _Generation)
        stated = (
            _ids(generation.eos_token_id)
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
    if config_file.exists():
        return path, config_file
    if path.suffix == ".gguf" or any(path.glob("*.gguf")):
        raise gguf(path)
    raise CheckpointError(what, "Choose a folder with config.json and *.safetensors files.")


def _cache_snapshot(path: Path) -> Path:
    """The snapshot inside a Hugging Face cache folder (models--owner--name), else `path`."""
    snapshots = path / "snapshots"
    if (path / "config.json").exists() or not snapshots.is_dir():
        return path
    reference = path / "refs" / "main"
    if reference.exists():
        revision = read_regular(reference, 4096).decode(errors="replace").strip()
        if "/" not in revision and (snapshots / revision).is_dir():
            return snapshots / revision
    found = sorted((p for p in snapshots.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else path


def _model_name(folder: Path) -> str:
    """The folder's name; for a cache snapshot the repository's (models--owner--name)."""
    # absolute() and not resolve(): a snapshot may itself be reached through a link
    absolute = folder.absolute()
    if absolute.parent.name == "snapshots" and absolute.parent.parent.name.startswith("models--"):
        return absolute.parent.parent.name.removeprefix("models--").replace("--", "/")
    return absolute.name


def _special_float(value: dict[str, Any]) -> Any:
    """transformers writes infinity as {"__float__": "Infinity"}, as JSON has no word for it."""
    if set(value) != {"__float__"}:
        return value
    try:
        return float(str(value["__float__"]))
    except ValueError:
        raise ValueError(f"{shown(value)} is not a number") from None


def _parse_config(raw: Mapping[str, Any], file: Path) -> tuple[Any, Any]:
    """transformers' configs of the language model and of the whole model, which may be the same."""
    from engine.lazy_transformers import CONFIG_MAPPING, PretrainedConfig, __version__

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
        text = config.get_text_config(decoder=True)
    except Exception as error:  # whatever a config class raises, it is the file's content
        raise CheckpointError(f"{file} {_rejected(model_type, raw, error)}.", AGAIN) from error
    if not isinstance(text, PretrainedConfig):
        raise CheckpointError(f"{file} has a text_config; {model_type} models have none.", AGAIN)
    return text, config


def _rejected(model_type: str, raw: Mapping[str, Any], error: Exception) -> str:
    """Why a config class does not take what a file says, after the file's name."""
    words = str(error)
    fields = {match["name"]: None for match in _FIELD.finditer(words)}
    if len(fields) == 1:
        (name,) = fields
        wanted = {type_text(match["wanted"]): None for match in _FIELD.finditer(words)}
        return f"has {name} = {shown(raw.get(name))}; expected {' or '.join(wanted)}"
    reason = in_one_line(error)
    if found := _REJECTED.match(reason):
        reason, name = found["words"], found["name"]
        if name is not None:
            return f"has {name} = {shown(raw.get(name))}: {reason}"
    return f"is not a valid {model_type} config: {reason}"


def _ids(value: int | list[int] | None) -> frozenset[int]:
    """Token ids out of an int, a list of them, or null."""
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and v >= 0)


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class _Token(msgspec.Struct):
    content: str | None = None
    id: int | None = None


class _TokenizerConfig(msgspec.Struct):
    eos_token: str | _Token | None = None
    added_tokens_decoder: dict[int, _Token] | None = None


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any] | None = None  # a list has pieces with scores


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Token] | None = None
    model: _Model | None = None


def _optional(file: Path, kind: type[T], limit: int = MAX_BYTES) -> T:
    return read_json(file, kind, limit=limit) if file.exists() else kind()


def _tokenizer_eos_id(folder: Path) -> int | None:
    """The id of the tokenizer's eos_token, found without building the tokenizer."""
    settings = _optional(folder / "tokenizer_config.json", _TokenizerConfig)
    token = settings.eos_token
    token = token.content if isinstance(token, _Token) else token
    if token is None:
        return None
    for token_id, entry in (settings.added_tokens_decoder or {}).items():
        if entry.content == token:
            return token_id
    tokenizer = _optional(folder / "tokenizer.json", _Tokenizer, MAX_TOKENIZER)
    for entry in tokenizer.added_tokens or []:
        if entry.content == token and entry.id is not None:
            return entry.id
    vocabulary = tokenizer.model.vocab if tokenizer.model else None
    return vocabulary.get(token) if isinstance(vocabulary, dict) else None
