"""Options of the commands, made from the engine's registries, and those that several share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from app.paths import starter_model
from app.units import parse_bytes
from engine.config import SETTINGS, TYPE_NAMES, EngineConfig, Setting
from engine.errors import ConfigError
from engine.sampling_params import PARAMETERS, Parameter, SamplingParams

DEFAULT_MAX_TOKENS = 256


def add_engine_options(
    parser: argparse.ArgumentParser,
    *,
    exclude: Collection[str] = (),
    shown: Collection[str] = tuple(SETTINGS),
) -> None:
    """One flag per engine setting. The namespace contains only given flags; the help lists those in
    `shown`."""
    group = parser.add_argument_group("engine options")
    for setting in SETTINGS.values():
        if setting.name in exclude:
            continue
        group.add_argument(
            setting.flag,
            dest=setting.name,
            default=argparse.SUPPRESS,
            help=_help(setting) if setting.name in shown else argparse.SUPPRESS,
            **(
                {"action": argparse.BooleanOptionalAction}
                if setting.type is bool
                else {"type": _reader(setting), "metavar": _metavar(setting)}
            ),
        )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The configuration from the flags; the demo model without --model."""
    given = {name: getattr(args, name) for name in SETTINGS if hasattr(args, name)}
    given.setdefault("model", str(starter_model()))
    return EngineConfig().replace(**given)


def setting_value(setting: Setting, text: str) -> Any:
    """`text` as a value of `setting`. Raises ConfigError naming the allowed values."""
    value = _parse(setting, text)
    setting.check(value)
    return value


def _reader(setting: Setting) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return setting_value(setting, text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(f"{error.cause} {error.remedy}") from None

    return read


def _parse(setting: Setting, text: str) -> Any:
    if setting.optional and text.lower() in ("none", "auto"):
        return None
    if setting.type is bool:
        if text.lower() not in ("true", "false", "on", "off", "1", "0"):
            raise ConfigError(f"{setting.name} is {text!r}.", "Use true or false.")
        return text.lower() in ("true", "on", "1")
    read: Callable[[str], Any] = setting.type
    wanted = TYPE_NAMES[setting.type]
    if setting.unit == "bytes":
        read, wanted = parse_bytes, "a size such as 2GiB, 512MiB or 4096"
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{setting.name} is {text!r}.", f"Use {wanted}.") from None


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "{" + ",".join(filter(None, (*setting.choices, setting.other))) + "}"
    if setting.name in ("model", "speculative_model"):
        return "DIR"
    if setting.unit == "bytes":
        return "SIZE"
    return "X" if setting.type is float else "N"


def _help(setting: Setting) -> str:
    text = setting.help.replace("None:", "Default:")
    if setting.name == "model":
        text += " Default: the demo model."
    elif setting.type is bool:
        text += f" Default: {'on' if setting.default else 'off'}."
    elif setting.default is not None:
        text += f" Default: {setting.default}."
    return text.replace("%", "%%")


def parse_ids(text: str) -> tuple[int, ...]:
    """Token ids of "1,2,3" (blanks allowed)."""
    try:
        return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a comma-separated list of token ids"
        ) from None


def _parse_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not in the form ID=BIAS") from None


_READERS: Mapping[Any, dict[str, Any]] = {
    int: {"type": int, "metavar": "N"},
    float: {"type": float, "metavar": "X"},
    bool: {"action": "store_true"},
    tuple[str, ...]: {"action": "append", "metavar": "TEXT"},
    tuple[int, ...]: {"type": parse_ids, "metavar": "IDS"},
    Mapping[int, float]: {"type": _parse_bias, "action": "append", "metavar": "ID=BIAS"},
}
"""argparse arguments by parameter type."""

_SPECIAL: Mapping[str, dict[str, Any]] = {
    "max_tokens": {"type": lambda text: None if text.lower() == "none" else int(text)},
    "logprobs": {"nargs": "?", "const": 0},
}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """One flag per sampling parameter. The namespace contains only given flags."""
    group = parser.add_argument_group("sampling options")
    for parameter in PARAMETERS.values():
        group.add_argument(
            "--" + parameter.name.replace("_", "-"),
            dest=parameter.name,
            default=argparse.SUPPRESS,
            help=_parameter_help(parameter),
            **(_READERS[parameter.type] | _SPECIAL.get(parameter.name, {})),
        )


def _parameter_help(parameter: Parameter) -> str:
    text = parameter.help
    if parameter.name == "max_tokens":
        text += f" none: no limit. Default: {DEFAULT_MAX_TOKENS}."
    elif parameter.name == "seed":
        text += " Also seeds dummy weights."
    elif parameter.type in (int, float) and parameter.default is not None:
        text += f" Default: {parameter.default:g}."
    elif _READERS[parameter.type].get("action") == "append":
        text += " Repeatable."
    return text.replace("%", "%%")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters from the flags. Raises InvalidRequestError."""
    given = {name: getattr(args, name) for name in PARAMETERS if hasattr(args, name)}
    given.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return SamplingParams(**given)


def parse_count(text: str) -> int:
    """An integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a non-negative integer")
    return int(text)


def parse_positive(text: str) -> int:
    """An integer of at least 1."""
    value = parse_count(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; the minimum is 1")
    return value


def add_options(group: argparse._ActionsContainer, *options: tuple[Any, ...]) -> None:
    """Add options given as (flag with metavar, default, help, optional parser).

    The text is parsed by the default's type; a type or function as the default parses it and sets
    no default; [] makes the option repeatable. A flag without metavar is a switch.
    """
    for usage, default, text, *reader in options:
        flag, _, metavar = usage.partition(" ")
        if not metavar:
            group.add_argument(flag, action="store_true", help=text)
        elif default == []:
            group.add_argument(flag, metavar=metavar, action="append", default=[], help=text)
        elif callable(default):
            group.add_argument(flag, metavar=metavar, type=default, help=text)
        else:
            read = reader[0] if reader else type(default)
            group.add_argument(flag, metavar=metavar, type=read, default=default, help=text)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ("--json", False, "Print only a JSON object."))


def add_report_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ("--output-json FILE", Path, "Write the report to FILE."))
    add_json_option(parser)


def check_writable(file: Path) -> None:
    """Check the report's path before minutes of measuring. Raises ConfigError."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder.", "Create it, or change --output-json.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigError(f"{file} is not writable.", "Change --output-json.")


def write_report(file: Path, report: Mapping[str, Any]) -> None:
    """Replace `file` in one step: on a full disk the old report remains."""
    beside = file.with_name(file.name + ".part")
    try:
        beside.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    print(f"Report written to {file}", file=sys.stderr)
