"""A case, what came of it, and what is wrong with that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Expected = Literal["refused", "same", "sound", "ok", "usable"]
LONGEST_S = 20.0
LARGEST_BYTES = 2 * 10**9
MOST_CHARACTERS = 12_000
"""Of a message: it may repeat what the person wrote."""
RAW = re.compile(
    r"Traceback|This is a bug|panicked|<lambda>|<class |NoneType|object is not|not subscriptable"
    r"|unsupported operand|\b[A-Z]\w*(?:Error|Exception)\b"
)
"""What only a program understands."""


@dataclass(frozen=True)
class Case:
    """A change to a copy of the control, and how the command must end.

    expected: "refused" with a message that has every one of `names`; "same": the control's answer;
    "sound": either of the two, as the change may be harmless; "ok": exit code 0; "usable": exit
    code 0 with any answer, or a message. `answer`: by what name the control's answer is known, if
    by another than its own. `unprivileged`: not as root, who may read everything. `make` changes
    the folder that it is given; `run` is called in the child with that folder, and its result is
    the exit code.
    """

    kind: str
    key: str
    run: Callable[[Path], int]
    make: Callable[[Path], object] = lambda folder: None
    control: str = ""
    expected: Expected = "refused"
    names: tuple[str, ...] = ()
    unprivileged: bool = False
    answer: str = ""


class Outcome(NamedTuple):
    """`ended`: "exit", "signal", "slow" or "large". `peak`: bytes resident with its children."""

    ended: str
    code: int
    seconds: float
    peak: int
    out: str
    err: str


def faults(case: Case, outcome: Outcome, answer: list[Any] | None) -> list[str]:
    """What is wrong with an outcome; nothing if all is well. `answer`: the control's."""
    if outcome.ended == "slow":
        return [f"no end within {LONGEST_S:.0f} s"]
    if outcome.ended == "large":
        return [f"{outcome.peak / 1e9:.1f} GB"]
    if outcome.ended == "signal":
        return [f"killed by signal {outcome.code}"]
    if case.expected == "ok":
        return [] if outcome.code == 0 else [f"exit code {outcome.code}"]
    loaded = outcome.code == 0
    if loaded and case.expected == "usable":
        return []
    if loaded and case.expected == "refused":
        return ["accepted"]
    if not loaded and case.expected == "same":
        return [f"refused with exit code {outcome.code}"]
    if loaded:
        got = answer_of(outcome.out)
        return [] if got == answer else [f"answer {got}, control {answer}"]
    return _message_faults(case, outcome)


def answer_of(out: str) -> list[Any] | None:
    """The token ids of `generate --json`, or what another command prints as its answer."""
    try:
        found = json.loads(out)
        return list(found["token_ids"] if "token_ids" in found else found["answer"])
    except (ValueError, KeyError, TypeError):
        return None


def _message_faults(case: Case, outcome: Outcome) -> list[str]:
    found = []
    if outcome.code not in (1, 2):
        found.append(f"exit code {outcome.code}")
    message = outcome.err
    lines = [line for line in message.splitlines() if line and not line.startswith("note: ")]
    if raw := sorted(set(RAW.findall(message))):
        found.append(f"raw text: {', '.join(raw)}")
    if len(lines) < 2:
        found.append("no remedy")
    if len(message) > MOST_CHARACTERS:
        found.append(f"a message of {len(message)} characters")
    # a setting's name and its option's are the same word
    spelled = message + message.replace("-", "_")
    missing = [name for name in case.names if name not in spelled]
    if missing:
        found.append(f"not named: {', '.join(missing)}")
    return found
