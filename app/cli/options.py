"""Options of the commands, made from the engine's registries, and those that several share."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.cli import values
from app.paths import starter_model
from app.storage.json_file import write_whole
from app.units import setting_value
from engine.config import SETTINGS, EngineConfig, Setting
from engine.errors import ConfigError
from engine.hardware.device_map import AUTO
from engine.hardware.devices import CPU
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


_ONLY_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "quantization_group_size": ("quantization", ("int4",)),
    "speculative_model": ("speculative_method", ("draft_model", "eagle3")),
}
"""Settings without effect unless another one has one of these values."""


def engine_config(args: argparse.Namespace, varied: str = "") -> EngineConfig:
    """The configuration from the flags; the demo model without --model. varied: the setting that
    takes several values later. Raises ConfigError for flags that contradict each other."""
    given = {name: getattr(args, name) for name in SETTINGS if hasattr(args, name)}
    check_together(given, varied)
    given.setdefault("model", str(starter_model()))
    return EngineConfig().replace(**given)


def check_together(given: Mapping[str, Any], varied: str = "") -> None:
    """Raise ConfigError for given settings that contradict each other."""
    config = EngineConfig().replace(**given)
    for name, (other, needed) in _ONLY_WITH.items():
        value = getattr(config, other)
        if given.get(name) is not None and other != varied and value not in needed:
            raise ConfigError(
                f"{SETTINGS[name].flag} has no effect with {SETTINGS[other].flag} {value}.",
                f"Omit {SETTINGS[name].flag}, or set {SETTINGS[other].flag} to "
                f"{' or '.join(needed)}.",
            )
    low, high = SETTINGS["prompt_lookup_min"], SETTINGS["prompt_lookup_max"]
    least, most = config.prompt_lookup_min, config.prompt_lookup_max
    if least > most and varied not in (low.name, high.name):
        raise ConfigError(
            f"{low.flag} is {least}, but {high.flag} is {most}.",
            f"Set {low.flag} to {most} or less, or {high.flag} to {least} or more.",
        )
    if config.gpu_layers != AUTO:
        _check_gpu(config.gpu_layers, config.device)


def _check_gpu(layers: str, device: str) -> None:
    if device != CPU:
        from engine.hardware.devices import resolve_device

        device = resolve_device(device)
    if device == CPU:
        raise ConfigError(
            f"--gpu-layers is {layers}, but the device is the CPU.",
            "Omit --gpu-layers, or set --device to a GPU.",
        )


def _reader(setting: Setting) -> Callable[[str], Any]:
    is_path = setting.name in ("model", "speculative_model")
    return values.checked(lambda text: setting_value(setting, values.folder(text) if is_path
                                                     else text))  # fmt: skip


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


_READERS: Mapping[Any, dict[str, Any]] = {
    int: {"metavar": "N"},
    float: {"metavar": "X"},
    bool: {"action": "store_true"},
    tuple[str, ...]: {"type": values.text, "action": "append", "metavar": "TEXT"},
    tuple[int, ...]: {"type": values.token_ids, "metavar": "IDS"},
    Mapping[int, float]: {"type": values.bias, "action": "append", "metavar": "ID=BIAS"},
}
"""argparse arguments by parameter type."""

_SPECIAL: Mapping[str, dict[str, Any]] = {"logprobs": {"nargs": "?", "const": 0}}


def _argument(parameter: Parameter) -> dict[str, Any]:
    found = _READERS[parameter.type] | _SPECIAL.get(parameter.name, {})
    return found if parameter.type not in (int, float) else {"type": _number(parameter), **found}


def _number(parameter: Parameter) -> Callable[[str], Any]:
    assert parameter.minimum is not None and parameter.maximum is not None
    read_number = values.number(parameter.minimum, parameter.maximum)
    if parameter.type is int:
        read_number = values.integer(int(parameter.minimum), int(parameter.maximum))

    def read(text: str) -> Any:
        if parameter.name == "max_tokens" and text.lower() == "none":
            return None
        value = read_number(text)
        parameter.check(value)  # the minimum itself may be excluded
        return value

    return values.checked(read)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """One flag per sampling parameter. The namespace contains only given flags."""
    group = parser.add_argument_group("sampling options")
    for parameter in PARAMETERS.values():
        group.add_argument(
            "--" + parameter.name.replace("_", "-"),
            dest=parameter.name,
            default=argparse.SUPPRESS,
            help=_parameter_help(parameter),
            **_argument(parameter),
        )


def _parameter_help(parameter: Parameter) -> str:
    text = parameter.help
    if parameter.name == "max_tokens":
        text += f" none: no limit. Default: {DEFAULT_MAX_TOKENS}."
    elif parameter.name == "seed":
        text += " Also seeds random weights."
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


def add_options(group: argparse._ActionsContainer, *options: tuple[Any, ...]) -> None:
    """Add options given as (flag with metavar, reader, help, optional default).

    Readers are those of `values`; a flag without metavar is a switch. [] as the default makes the
    option repeatable.
    """
    for usage, read, text, *default in options:
        flag, _, metavar = usage.partition(" ")
        if not metavar:
            group.add_argument(flag, action="store_true", help=text)
            continue
        more: dict[str, Any] = {"default": default[0]} if default else {}
        if default == [[]]:
            more["action"] = "append"
        group.add_argument(flag, metavar=metavar, type=values.checked(read), help=text, **more)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ("--json", None, "Print only a JSON object."))


def add_report_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ("--output-json FILE", values.path, "Write the report to FILE."))
    add_json_option(parser)


def check_writable(file: Path) -> None:
    """Check the report's path before minutes of measuring. Raises ConfigError."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder.", "Create it, or change --output-json.")
    try:
        if _is_written_in_place(file):
            file.open("ab").close()
        else:
            with suppress(FileNotFoundError):
                file.stat()  # its name may be too long
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"{file} is not writable: {error.strerror}.", "Change --output-json."
        ) from error


def write_report(file: Path, report: Mapping[str, Any]) -> None:
    """Replace `file` in one step: on a full disk the old report remains."""
    text = json.dumps(report, indent=2) + "\n"
    if _is_written_in_place(file):
        file.write_text(text, encoding="utf-8")
    else:
        if not file.exists():
            file.touch()  # as readable as other new files of the user
        write_whole(file, text)
    print(f"Report written to {file}", file=sys.stderr)


def _is_written_in_place(file: Path) -> bool:
    """Links, pipes and devices (/dev/stdout): a file in their place would replace them."""
    return file.is_symlink() or (file.exists() and not file.is_file())
