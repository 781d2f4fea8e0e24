"""An engine's flags, read from its own argument parser by its own Python."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from app.managed.command import SSH, container_words
from app.managed.failures import why_ended
from app.managed.launch import PYTHON, Launch, Place
from app.paths import data_dir
from engine.errors import InferdeckError
from engine.units import rough_duration

TIMEOUT_S = 180.0
"""The first import of an engine reads gigabytes."""
_MARK = "inferdeck-flags:"
_PROGRAM = r"""
import argparse, json, sys
kind, mark = sys.argv[1:]
sys.argv.append("--help")  # without it vLLM leaves the help of most flags out
if kind == "vllm":
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:  # before 0.32
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    parser = make_arg_parser(FlexibleArgumentParser())
    from vllm import __version__ as version
elif kind == "vllm_router":
    from vllm_router.router_args import RouterArgs
    from vllm_router.version import __version__ as version
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
else:
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    from sglang import __version__ as version
def text(value):
    if value is None or value is argparse.SUPPRESS:
        return ""
    if isinstance(value, (str, int, float, bool)):
        return str(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
def help_of(action):
    # of a type with known and other values, vLLM puts the known ones here
    known = action.metavar if isinstance(action.metavar, (list, tuple)) else ()
    said = (action.help or "").strip().replace("%%", "%")
    return f"{said}\nKnown values: {', '.join(map(str, known))}." if known else said
found = []
for group in parser._action_groups:
    for action in group._group_actions:
        flags = [one for one in action.option_strings if one.startswith("--")]
        if not flags or flags[0] == "--help" or action.help == argparse.SUPPRESS:
            continue
        found.append({
            "flag": flags[0], "aliases": flags[1:], "group": group.title or "",
            "type": getattr(action.type, "__name__", "") if action.type else "",
            "choices": [text(one) for one in action.choices or () if one is not None],
            "default": text(action.default), "help": help_of(action),
            "is_switch": action.nargs == 0 or type(action).__name__ == "BooleanOptionalAction",
        })
print(mark + json.dumps({"version": version, "flags": found}))
"""


class Flag(msgspec.Struct, frozen=True):
    """flag: "--max-num-seqs". aliases: its other forms. type: the parser's name of it. choices,
    default: as text. is_switch: it takes no value."""

    flag: str
    group: str = ""
    aliases: tuple[str, ...] = ()
    type: str = ""
    choices: tuple[str, ...] = ()
    default: str = ""
    help: str = ""
    is_switch: bool = False

    def matches(self, words: str) -> bool:
        """Whether all these words are in its name, group or help."""
        text = f"{self.flag} {self.flag.replace('-', ' ')} {self.group} {self.help}".casefold()
        return all(word in text for word in words.casefold().split())


class Flags(msgspec.Struct, frozen=True):
    version: str
    flags: tuple[Flag, ...]

    def find(self, flag: str) -> Flag | None:
        return next((one for one in self.flags if flag in (one.flag, *one.aliases)), None)

    def problem(self, settings: Mapping[str, str]) -> str:
        """The first of `settings` that this version does not take; "" where all are fine."""
        for flag, text in settings.items():
            known = self.find(flag)
            if known is None:
                return f"Version {self.version} has no {flag}."
            if known.choices and text not in known.choices:
                return f"{flag} takes {', '.join(known.choices)}, not {text or 'no value'}."
            if known.is_switch and text:
                return f"{flag} takes no value."
            if not known.is_switch and not text:
                return f"{flag} needs a value."
            if why := _not_a_number(known, text):
                return why
        return ""


def _not_a_number(flag: Flag, text: str) -> str:
    kinds = {"int": (int, "an integer"), "float": (float, "a number")}
    if flag.type not in kinds:
        return ""
    read, name = kinds[flag.type]
    try:
        read(text)
    except ValueError:
        return f"{flag.flag} takes {name}, not {text}."
    return ""


def read_flags(launch: Launch, version: str = "") -> Flags:
    """Of the engine of `launch`, from the cache where its `version` is known. Blocks for as long as
    its import takes. Raises InferdeckError."""
    file = _cache_file(launch, version)
    if version:
        with suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(file.read_bytes(), type=Flags)
    found = _asked(launch)
    if version:
        with suppress(OSError):
            file.write_bytes(msgspec.json.encode(found))
    return found


def _cache_file(launch: Launch, version: str) -> Path:
    text = f"{launch.kind}\n{launch.interpreter}\n{version}\n{_PROGRAM}"
    return data_dir() / f"flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def parser_words(launch: Launch) -> list[str]:
    """The command that prints the flags. An image of gigabytes is not pulled for them. Raises
    InferdeckError where a program is missing."""
    words = [launch.interpreter, "-c", _PROGRAM, PYTHON[launch.kind], _MARK]
    if launch.place is Place.SSH:
        variables = [f"{name}={text}" for name, text in launch.environment.items()]
        return [*SSH, launch.host, shlex.join(["env", *variables, *words])]
    if launch.place is Place.CONTAINER:
        image = ["--pull=never", "--entrypoint", "python3", launch.image]
        return [*container_words(), *image, *words[1:]]
    return words


def _asked(launch: Launch) -> Flags:
    try:
        ended = subprocess.run(
            parser_words(launch), capture_output=True, stdin=subprocess.DEVNULL, text=True,
            errors="replace", timeout=TIMEOUT_S, env=engine_environment(launch.environment),
            check=False,
        )  # fmt: skip
    except OSError as error:
        cause = f"Cannot run {launch.interpreter}: {error.strerror}."
        raise InferdeckError(cause, "Choose another Python.") from None
    except subprocess.TimeoutExpired:
        cause = f"{launch.kind.value} did not list its flags within {rough_duration(TIMEOUT_S)}."
        raise InferdeckError(cause, "Try again.") from None
    if found := parsed(ended.stdout.splitlines()):
        return found
    info = why_ended(launch, ended.returncode, (ended.stdout + ended.stderr).splitlines())
    raise InferdeckError(info.cause, info.remedy)


def parsed(lines: Sequence[str]) -> Flags | None:
    """From what the program printed; engines print other lines too."""
    for line in reversed(lines):
        if line.startswith(_MARK):
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line.removeprefix(_MARK), type=Flags)
    return None


def engine_environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without paths of our own Python, and `more`."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: text for name, text in os.environ.items() if name not in own}
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", **more}
