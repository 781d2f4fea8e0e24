"""The files beside tokenizer.json, checked before transformers reads them.

transformers reads them as untyped JSON, and fails far from the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from engine.errors import CheckpointError
from engine.json_file import AGAIN, checked, decode_json, read_regular, shown, unreadable
from engine.text.work import MAX_BYTES

SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_INTERNAL = frozenset({
    "post_processor", "tokenizer_object", "tokenizer_padding", "tokenizer_truncation",
})  # fmt: skip
"""Arguments that transformers' own code passes to a tokenizer, never a file."""
_PATHS = frozenset({"entity_vocab", "init_inputs", "merges", "vocab"})
"""Arguments that may be the path of a file, as those may that end in _file or _files."""
_LISTS = {"configuration_files": ["config.json"], "fast_tokenizer_files": ["tokenizer.json"]}
"""Files for other versions of transformers, and those that are checked."""
_REPLACED = frozenset({"special_tokens_map_file", "tokenizer_file"})
"""Of saved tokenizers. transformers takes the folder's own files instead."""
_MAX_FIELDS = 1000
"""Each takes time in transformers; files in use have fewer than 60."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
            "mask_token")  # fmt: skip
Side = Literal["left", "right"]
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]


class AddedToken(Struct):
    """A token that is found in a text before it is divided."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class Template(Struct):
    name: str
    template: str


Token = str | AddedToken
Extra = list[Token] | dict[str, Token] | None
Code = Annotated[list[str | None], Meta(min_length=2)]


class SpecialTokens(Struct):
    """Fields of special_tokens_map.json."""

    bos_token: Token | None = None
    eos_token: Token | None = None
    unk_token: Token | None = None
    sep_token: Token | None = None
    pad_token: Token | None = None
    cls_token: Token | None = None
    mask_token: Token | None = None
    extra_special_tokens: Extra = None
    additional_special_tokens: Extra = None
    model_specific_special_tokens: dict[str, Token] | None = None


class Settings(SpecialTokens):
    """Fields of tokenizer_config.json that transformers or this engine reads."""

    tokenizer_class: str | None = None
    added_tokens_decoder: dict[str, AddedToken] = {}
    chat_template: str | list[Template] | dict[str, str] | None = None
    model_max_length: int | float | None = None
    max_len: int | float | None = None
    padding_side: Side = "right"
    truncation_side: Side = "right"
    model_input_names: list[str] = []
    clean_up_tokenization_spaces: bool | None = None
    split_special_tokens: bool = False
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    add_prefix_space: bool | None = None
    backend: str | None = None
    auto_map: dict[str, Code | str | None] | Code = {}
    fast_tokenizer_files: list[str] = []
    chat_control_tokens: list[str] | None = None


class Config(Struct):
    """The field of config.json that names other files."""

    configuration_files: list[str] = []


_KINDS: dict[str, Any] = {
    "config.json": Config,
    SETTINGS: Settings,
    "special_tokens_map.json": SpecialTokens,
    "added_tokens.json": dict[str, TokenId],
}


def check_files(folder: Path) -> None:
    """Raises CheckpointError with file, field, value and expected type."""
    for name, kind in _KINDS.items():
        if (folder / name).is_file():
            _check(folder / name, kind)
    if (folder / "vocab.json").is_file() and not (folder / "tokenizer.json").is_file():
        _check(folder / "vocab.json", dict[str, int], MAX_BYTES)
    for file in _templates(folder):
        try:
            read_regular(file).decode()
        except UnicodeDecodeError as error:
            raise unreadable(file, error) from None


def _check(file: Path, kind: Any, *limit: int) -> None:
    data = read_regular(file, *limit)
    if data.startswith(_BYTE_ORDER_MARK):  # which transformers does not skip
        raise CheckpointError(
            f"{file} starts with a byte order mark.", "Save it as UTF-8 without BOM."
        )
    values = decode_json(data, dict, file)
    checked(values, kind, file)
    if kind in (Config, Settings):
        _check_paths(values, file)
    if kind is Settings:
        _check_settings(values, file)
    if kind is SpecialTokens:
        _check_special(values, file)


def _check_paths(values: dict[str, Any], file: Path) -> None:
    """Files under other names would be read unchecked, and from any folder."""
    names = _PATHS | {name for name in values if name.endswith(("_file", "_files"))}
    if file.name == "config.json":  # other fields are the model's
        names = frozenset({"configuration_files"})
    for name in sorted(names & values.keys() - _REPLACED):
        if values[name] not in (None, "", [], _LISTS.get(name)):
            raise CheckpointError(
                f"{file} has {name} = {shown(values[name])}; Inferdeck reads only the standard "
                "files of this folder.",
                f"Remove {name} from {file.name}, or download the file again.",
            )


def _check_special(values: dict[str, Any], file: Path) -> None:
    """Whatever it has becomes an argument of the tokenizer, in place of a checked one."""
    for name, value in values.items():
        if not name.endswith(("_token", "_tokens")):
            raise CheckpointError(
                f"{file} has {shown(name)} = {shown(value)}, which is not a special token.",
                "Remove this field, or download the file again.",
            )


def _check_settings(values: dict[str, Any], file: Path) -> None:
    """What a type does not say."""
    if len(values) > _MAX_FIELDS:
        raise CheckpointError(
            f"{file} has {len(values):,} fields; the limit is {_MAX_FIELDS:,}.", AGAIN
        )
    for token_id in values.get("added_tokens_decoder", ()):
        if not (token_id.isdecimal() and len(token_id) <= 10):
            raise CheckpointError(
                f"{file} has the token id {shown(token_id)} in added_tokens_decoder; expected an "
                "integer.", AGAIN,
            )  # fmt: skip
    for name in _SPECIAL:
        token = values.get(name)
        if isinstance(token, dict) and token.get("__type") != "AddedToken":
            raise CheckpointError(
                f'{file} has {name} = {shown(token)} without "__type": "AddedToken".', AGAIN
            )
    if found := sorted(_INTERNAL & values.keys()):
        raise CheckpointError(
            f"{file} has {found[0]} = {shown(values[found[0]])}; no tokenizer has this setting.",
            f"Remove {found[0]}, or download the file again.",
        )


def _templates(folder: Path) -> Iterator[Path]:
    if (folder / TEMPLATE).exists():
        yield folder / TEMPLATE
    yield from sorted((folder / "additional_chat_templates").glob("*.jinja"))
