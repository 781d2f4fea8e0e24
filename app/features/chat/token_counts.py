"""`TokenCounts`: the tokens of texts that were not sent yet, as the engine counts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.chat.context_use import ContextUse
from app.features.chat.controller import ChatController
from app.features.chat.conversation import Message
from engine.messages import TokensCounted

COUNT_DELAY_MS = 300
COUNTED, COUNTED_PER_TOKEN = 2**16, 8
"""Characters that are tokenized, in all and per token of the context: a text that may fit is
counted whole, the count of longer ones is extrapolated."""
PER_TOKEN = 4
"""Characters per token, where no tokenizer is loaded."""
_keys = itertools.count()


def message_parts(
    path: Sequence[Message], system_prompt: str, files: Sequence[str], text: str
) -> list[str]:
    """Texts that a message after `path` adds to the prompt, none of an empty one."""
    written, before = text.strip(), "" if path else system_prompt.strip()
    return [part for part in (*files, written, before) if part] if files or written else []


class TokenCounts(QObject):
    """`texts` returns the texts to count. `changed`: a count arrived, or is missing."""

    changed = Signal()

    def __init__(
        self, controller: ChatController, texts: Callable[[], Sequence[str]], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._controller, self._texts = controller, texts
        self._counts: dict[str, int] = {}  # text -> tokens, of the current texts
        self._asked: dict[str, str] = {}  # key -> text
        self._uncounted: set[str] = set()  # texts that this engine cannot count
        self._later = QTimer(self, singleShot=True, interval=COUNT_DELAY_MS)
        self._later.timeout.connect(self.count)
        controller.engine.tokens_counted.connect(self._counted)
        controller.engine.state_changed.connect(lambda state: self._forget())

    def count_soon(self) -> None:
        """Count after a pause in typing."""
        self._later.start()

    def count(self) -> None:
        """Ask the engine for missing counts."""
        texts = list(dict.fromkeys(self._texts()))
        self._counts = {text: n for text, n in self._counts.items() if text in texts}
        self._uncounted &= set(texts)
        self._asked.clear()
        for text in texts:
            if text not in self._counts and text not in self._uncounted:
                key = f"draft-{next(_keys)}"
                self._asked[key] = text
                self._controller.engine.count_tokens(key, text[: self._num_counted])
        self.changed.emit()

    def known(self, text: str) -> int | None:
        """Tokens of a text, None before they are counted."""
        return self._counts.get(text)

    def estimate(self, text: str) -> int:
        return self._counts.get(text, len(text) // PER_TOKEN + 1)

    def use(
        self, used: int | None, limit: int | None, before: Sequence[str], texts: Sequence[str]
    ) -> ContextUse:
        """Of a message of `texts` after `used` tokens and the unanswered messages `before`."""
        counts = [(self.estimate(text), text) for text in before]
        longest = max(counts, default=(0, ""))
        return ContextUse(
            used, sum(map(self.estimate, texts)), limit,
            self._controller.current.sampling.max_tokens, sum(n for n, _ in counts), *longest,
            is_guess=not self._uncounted.isdisjoint((*before, *texts)),
        )  # fmt: skip

    @property
    def _num_counted(self) -> int:
        """Characters of a text that are tokenized at most."""
        return max(COUNTED, COUNTED_PER_TOKEN * (self._controller.context[1] or 0))

    def _counted(self, event: TokensCounted) -> None:
        text = self._asked.pop(event.key, None)
        if text is None:
            return
        if event.num_tokens is None:
            self._uncounted.add(text)
        else:
            counted = min(len(text), self._num_counted)
            self._counts[text] = round(event.num_tokens * len(text) / counted)
        self.changed.emit()

    def _forget(self) -> None:
        """Discard token counts: another model has another tokenizer."""
        self._counts.clear()
        self._uncounted.clear()
        self.count()
