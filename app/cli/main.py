"""The parser of `inferdeck`; errors become a message on stderr and an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

from app.cli import (
    bench,
    docs,
    doctor,
    evaluate,
    generate,
    install_desktop,
    ladder,
    predict,
    profile,
    quantize,
    serve,
    tune,
    values,
)
from app.cli.options import add_engine_options, add_options, check_together
from app.paths import program_version
from engine.config import SETTINGS
from engine.errors import (
    CheckpointError,
    ConfigError,
    ErrorInfo,
    InferdeckError,
    InvalidRequestError,
    UnsupportedModelError,
    describe,
)
from engine.evaluate.task import TextError
from engine.hardware.malloc import keep_freed

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

USER_ERRORS = (
    CheckpointError, ConfigError, InvalidRequestError, TextError, UnsupportedModelError
)  # fmt: skip
"""Errors that the user can avoid: exit code 2."""
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, and that reverse text."""

DESCRIPTION = """\
Inferdeck: a desktop application for LLM inference with its own engine.
Without a command, opens the window with the most recently used model."""

EPILOG = """\
examples:
  inferdeck
      open the window
  inferdeck --model ~/models/Qwen3-0.6B --max-num-seqs 4
      open the window with this model (all engine options are accepted)
  inferdeck --attach http://host:8000
      attach the window to a running `inferdeck serve`
  inferdeck generate --chat "What is TTFT?"
      stream a reply
  inferdeck bench --workload voice-bot --model ~/models/Qwen3-0.6B
      benchmark a model under load
  inferdeck predict --workload query-rewrite --compare max_num_seqs=4,16
      predict the effect of a setting
  inferdeck tune --workload query-rewrite --goodput itl:50
      find the fastest settings that meet a goal
  inferdeck ladder --workload voice-bot --goodput ttft:500 itl:50
      show the gain of each serving technique
  inferdeck profile --model ~/models/Qwen3-0.6B --trace steps.json
      show where the time of a step goes
  inferdeck serve --model ~/models/Qwen3-0.6B
      run an OpenAI-compatible server
  inferdeck quantize --model ~/models/Qwen3-0.6B --method awq --output ~/models/Qwen3-0.6B-awq
      create a 4-bit checkpoint
  inferdeck evaluate --model DIR-awq --reference DIR --text english
      measure quality loss from lower precision
  inferdeck doctor
      show devices, kernels, versions and paths
  inferdeck docs gpu
      read the documentation in the terminal

`inferdeck COMMAND --help` shows the options of a command."""


class Parser(argparse.ArgumentParser):
    """No abbreviated options; errors are one line and a hint instead of the usage."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for arg in sys.argv[1:] if args is None else args:
            flag, equals, value = arg.partition("=")
            if flag.startswith("--") and equals and value == "--":  # argparse would read a list
                self.error(f"argument {flag}: '--' is not valid. Use another value.")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


class CommandParser(Parser):
    """The parser of one command: unknown options are its own error."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


class _Version(argparse.Action):
    """Looks up the version on demand: reading package metadata takes time."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="Show the version.")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"inferdeck {program_version()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="inferdeck", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action=_Version)
    add_options(parser, ("--isolated", None, "Run the engine in a separate process."))
    add_engine_options(parser, shown=("model", "load_format"))
    add_options(
        parser.add_argument_group("remote engine"),
        ("--attach URL", values.url, "Attach to a running `inferdeck serve`."),
        ("--api-key K", values.name,
         f"API key for the server. Use {serve.KEY_VARIABLE} to hide it from process lists."),
    )  # fmt: skip
    parser.set_defaults(run=_run_window)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=CommandParser
    )
    for module in (
        generate, bench, predict, tune, ladder, profile, serve, quantize, evaluate, doctor, docs,
        install_desktop,
    ):  # fmt: skip
        command = commands.add_parser(
            module.NAME, help=module.HELP, description=module.DESCRIPTION, epilog=module.EPILOG
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    screenshot = commands.add_parser(
        "screenshot",
        help="Save a screenshot of every page.",
        description="Save a PNG screenshot of every page, using the demo model.",
    )
    screenshot.add_argument(
        "--output", metavar="DIR", required=True, type=values.folder, help="Output folder."
    )
    screenshot.add_argument(
        "--size", type=_size, metavar="WxH", default=(1600, 1000),
        help="Window size in pixels. Default: 1600x1000.",
    )  # fmt: skip
    screenshot.set_defaults(run=_run_screenshot)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed()
    _prepare_streams()
    try:
        try:
            args = build_parser().parse_args(argv)
            return int(args.run(args) or 0)
        finally:
            sys.stdout.flush()  # here a full disk can be reported
    except SystemExit:
        raise
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the shell prompt starts on a new line
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()  # the reader went away (`| head`)
    except InferdeckError as error:
        _print_error(error.info())
        return EXIT_USAGE if isinstance(error, USER_ERRORS) else EXIT_FAILURE
    except OSError as error:
        what = f"{error.filename}: {error.strerror}." if error.filename else f"{error}."
        _print_error(ErrorInfo(what, "Check the path, its permissions and free disk space."))
        _abandon_stdout()
    except MemoryError as error:
        _print_error(describe(error))
    except BaseException as error:  # a panic of a compiled library is no Exception
        traceback.print_exc()
        _print_error(describe(error))
    return EXIT_FAILURE


def _prepare_streams() -> None:
    """Open closed standard streams: a file opened later must not take their place. Text that a
    terminal cannot show is escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """Discard what stdout still buffers: the interpreter would complain at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(info: ErrorInfo) -> None:
    """A name out of a file must not reach the terminal as a command, or reverse the line."""
    cause = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], info.cause)
    with suppress(OSError):
        print(f"inferdeck: {cause}", file=sys.stderr)
        if info.remedy:
            print(info.remedy, file=sys.stderr)


# Only the window and the screenshots need Qt: imported by name, when used.


def _run_window(args: argparse.Namespace) -> int:
    """`args`: the given engine settings."""
    check_together({name: getattr(args, name) for name in SETTINGS if hasattr(args, name)})
    code = int(_import_qt("app.main.start").run(args) or 0)
    _leave_busy_threads(code)
    return code


def _leave_busy_threads(code: int) -> None:
    """End the process at once if a thread still works (the engine's, in a long import or step);
    everything is saved by now. Otherwise Python ends that thread when it next takes the
    interpreter; below C++ code this aborts the process."""
    if any(thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _size(text: str) -> tuple[int, int]:
    """A window size such as `1280x800`."""
    if not re.fullmatch(r"[0-9]{1,5}x[0-9]{1,5}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a valid size; example: 1280x800")
    width, height = (int(length) for length in text.split("x"))
    if not (880 <= width <= 8192 and 620 <= height <= 8192):
        raise argparse.ArgumentTypeError(f"{text} is out of range (880x620 to 8192x8192)")
    return width, height


def _run_screenshot(args: argparse.Namespace) -> int:
    return int(_import_qt("app.screenshot").run(args) or 0)


def _import_qt(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if "cannot open shared object file" not in str(error) and "PySide6" not in str(error):
            raise  # a fault of ours
        raise InferdeckError(
            f"Qt failed to load: {error}.",
            "Install PySide6-Essentials and its system libraries. Debian, Ubuntu: `apt install "
            "libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1`. Or use a command that "
            "works without a window: see `inferdeck --help`.",
        ) from error
