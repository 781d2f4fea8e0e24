"""What became of every request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

MOST_TOLD = 50
_OTHER_SEEDS = {n: n + 3000 for n in (50, 53, 71, 77, 83)}
"""With n as the seed a draw of the starter model lies within 5e-6 of the border between two tokens:
rounding may take it to either side in another batch. The others keep further away."""


class Ask(NamedTuple):
    """A request that always has the same reply."""

    prompt: str | tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float


def asks(count: int) -> list[Ask]:
    """Texts and token ids that share prefixes, short and long replies, greedy and sampled."""
    return [
        Ask(
            _prompt(n % 4 == 3, 8 + 5 * (n % 9)), _OTHER_SEEDS.get(n, n), 4 + 7 * (n % 8),
            (0.0, 0.7, 1.3)[n % 3],
        )
        for n in range(count)
    ]  # fmt: skip


def _prompt(is_text: bool, length: int) -> str | tuple[int, ...]:
    return " ".join(map(str, range(length))) if is_text else tuple(range(3, 3 + length))


class Ledger:
    """Thread-safe. `ended`: requests by how they ended. `faults`: what must not be, in words."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.faults: list[str] = []
        self.num_faults = 0
        self.num_changes = 0  # to another model, begun
        self.is_compared = True
        """Whether equal requests have equal replies now."""
        self._replies: dict[Ask, str] = {}
        self._running = 0
        self._lock = threading.Condition()
        self.is_open = True
        self.is_over = threading.Event()

    # -- who may ask when -------------------------------------------------------------------

    @contextmanager
    def asking(self) -> Iterator[int]:
        """Around one request, or several; gives the number of changes so far."""
        with self._lock:  # throughout: who began after a change was begun would run at it
            while not self._lock.wait_for(lambda: self.is_open or self.is_over.is_set(), 0.1):
                pass
            self._running += 1
            changes = self.num_changes
        try:
            yield changes
        finally:
            with self._lock:
                self._running -= 1
                self._lock.notify_all()

    @contextmanager
    def closed(self, *, at_change: bool = False) -> Iterator[None]:
        """Meanwhile nobody begins. `at_change`: what runs may end with an error."""
        with self._lock:
            self.is_open = False
            self.num_changes += at_change
        try:
            yield
        finally:
            with self._lock:
                self.is_open = True
                self._lock.notify_all()

    def wait_quiet(self, seconds: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: self._running == 0, seconds)

    # -- how it ended -----------------------------------------------------------------------

    def finished(self, ask: Ask, text: str, reason: str, changes: int) -> None:
        """Ended by itself, as a finish reason says."""
        if reason in ("stop", "length"):
            with self._lock:
                self.ended["finished"] += 1
                # that ran at a change of model may be the other model's reply
                is_compared = changes == self.num_changes and self.is_compared
                first = self._replies.setdefault(ask, text) if is_compared else text
            if first != text:
                self.fault(f"another reply to {ask}: {text!r} after {first!r}")
        elif reason in ("error", "abort") and changes != self.num_changes:
            self.failed("no cause", changes)
        else:
            self.fault(f"ended with {reason!r}")

    def failed(self, cause: str, changes: int) -> None:
        """Ended with an error: only at a change to another model, which it names."""
        with self._lock:
            self.ended["failed"] += 1
        if changes == self.num_changes:
            self.fault(f"failed without a change of model: {cause}")
        elif "draft" not in cause and "chat" not in cause and "starter" not in cause.lower():
            self.fault(f"failed at a change without naming the model: {cause}")

    def aborted(self) -> None:
        with self._lock:
            self.ended["aborted"] += 1

    def refused(self) -> None:
        """Not accepted: too many wait, or nothing is loaded."""
        with self._lock:
            self.ended["refused"] += 1

    def fault(self, what: str) -> None:
        with self._lock:
            self.num_faults += 1
            if len(self.faults) < MOST_TOLD:
                self.faults.append(what)
