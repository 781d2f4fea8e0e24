"""What all translations of the settings have in common.

Only what a server has with the same meaning is written; what it lacks is named, not dropped
silently: also a setting that was added later and that no table knows yet.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config import SETTINGS, EngineConfig
from engine.device_map import ALL
from engine.devices import CPU


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine found. `capacity`: tokens that the KV cache holds; `dtype`: what the
    precision came to where it was left to the engine; `host_layers`: so many are computed by the
    CPU beside a GPU."""

    capacity: int | None = None
    dtype: str = ""
    host_layers: int = 0


NO_FACTS = Facts()

ELSEWHERE = ("model", "device", "num_threads", "adaptive_threads")
"""Not a choice of tuning: the model is an argument of its own, device and threads belong to the
machine that serves."""

VERIFY = "Chosen with another engine, maybe on another machine: verify what they give there."


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """`text`: for a POSIX shell. `missing`: settings with their values that the server has no
    equivalent of. `notes`: where an equivalent is not quite the same."""

    server: str
    text: str
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def comments(self) -> str:
        """Everything that is not the command, in words."""
        lines = [*self.notes, VERIFY]
        if self.missing:
            lines.insert(0, f"{self.server} has no equivalent of: {', '.join(self.missing)}.")
        return "\n".join(lines)

    @property
    def as_script(self) -> str:
        """The command, and below it the comments as such."""
        comments = "".join(f"# {line}\n" for line in self.comments.splitlines())
        return f"{self.text}\n{comments}"


def without_equivalent(config: EngineConfig, known: Collection[str]) -> tuple[str, ...]:
    """ "Batching (static)" of every setting that was changed and is not among `known`."""
    return tuple(
        f"{setting.label} ({as_words(getattr(config, name))})"
        for name, setting in SETTINGS.items()
        if name not in known and name not in ELSEWHERE and is_changed(config, name)
        and (name, getattr(config, name)) != ("gpu_layers", ALL)  # as it is in every server
    )  # fmt: skip


def division_note(facts: Facts, server: str) -> list[str]:
    """Where the model is larger than the GPU that it runs on here."""
    if not facts.host_layers:
        return []
    layers = "layer" if facts.host_layers == 1 else f"{facts.host_layers} layers"
    return [f"The CPU computes the first {layers} here; {server} computes all of them on GPUs."]


def ranks_note(config: EngineConfig, server: str) -> list[str]:
    """Where ranks are groups of CPU threads here."""
    count = config.tensor_parallel_size
    if count == 1 or config.device != CPU:
        return []
    return [f"The {count} ranks are groups of CPU threads here; {server} takes {count} GPUs."]


def precision_note(config: EngineConfig, facts: Facts) -> list[str]:
    """What the precision came to here, where a server is to choose it as well."""
    if config.dtype != "auto" or not facts.dtype:
        return []
    return [f"Precision is left to the server; here it came to {facts.dtype}."]


def is_changed(config: EngineConfig, name: str) -> bool:
    return bool(getattr(config, name) != SETTINGS[name].default)


def as_words(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def command_line(words: Sequence[object]) -> str:
    """Words for a POSIX shell, one option a line."""
    quoted = [shlex.quote(str(word)) for word in words]
    lines: list[str] = []
    for word in quoted:
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)
