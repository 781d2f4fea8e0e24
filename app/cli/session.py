"""The engine of one command, with its load progress on the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.units import progress_text

if TYPE_CHECKING:
    from app.bench.progress import Progress
    from engine.llm_engine import LLMEngine

CLEAR_LINE = "\r\x1b[K"
REFRESH_S = 0.1
LINE_S = 30.0
"""Between lines about one run where stderr is no terminal."""


@contextmanager
def open_engine(config: EngineConfig) -> Iterator[LLMEngine]:
    """The engine of `config`, shut down at the end. Prints its notices to stderr. Raises what
    LLMEngine raises."""
    prepare_libraries()
    status = StatusLine()
    status.show("Starting the engine")
    # Imported here: torch and transformers take seconds, which `--help` need not wait for.
    from engine.llm_engine import LLMEngine

    try:
        engine = LLMEngine(config, progress=status.loading)
    finally:
        status.clear()
    try:
        for notice in engine.model_info.notices:
            print(f"note: {notice}", file=sys.stderr)
        yield engine
    finally:
        status.clear()
        engine.shutdown()


def prepare_libraries() -> None:
    """Call before torch and transformers are imported: silences them, no tokenizer threads."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


class StatusLine:
    """One status line on stderr, overwritten; on terminals only. Elsewhere each run has a line."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        if self._shown:
            print(f"{CLEAR_LINE}{text}", end="", file=sys.stderr, flush=True)

    def show_at_times(self, text: str) -> None:
        """Show `text`, at most every REFRESH_S."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REFRESH_S
            self.show(text)

    def begin(self, text: str) -> None:
        """At the start of a run. If stderr is not a terminal, it gets a separate line."""
        if self._shown:
            self.show(text)
            return
        print(text, file=sys.stderr, flush=True)
        self._next = time.monotonic() + LINE_S

    def follow(self, progress: Progress) -> None:
        """Of a sweep or a ladder: each run begins as in `begin`; its requests are counted on
        terminals only."""
        (self.begin if progress.run is None else self.show)(str(progress))

    def counting(self, label: str, done: int, total: int) -> None:
        """The requests of a run that are done; 0 at its start."""
        text = f"{label}: {done:,} of {total:,}"
        if self._shown:
            self.show_at_times(text)
        elif not done or time.monotonic() >= self._next:
            self.begin(text)

    def loading(self, stage: str, done: int, total: int) -> None:
        if total:
            share = progress_text(done, total)
            self.show_at_times(f"{stage}: {share}")
        else:
            self.show_at_times(stage)

    def clear(self) -> None:
        self.show("")
