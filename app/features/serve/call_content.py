"""A call's parameters, prompt and replies, beside the table of calls."""

from __future__ import annotations

import json
from typing import Any

from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.server.call_log import MAX_CONTENT, CallContent, CallRecord
from engine.units import bytes_text
from widgets.controls.layouts import dressed, vbox
from widgets.theme.theme import mono_font, theme_notifier

KEEP = "Keep content"
KEEP_TIP = "Keep parameters, prompts and replies of the last 100 calls in memory. Off: discard."
CHOOSE = "Select a call to see its parameters, prompt and reply."
NOT_KEPT = "The content of this call was not kept."
_PROMPTS = ("messages", "prompt")


class ContentView(QWidget):
    """Read-only text of the selected call."""

    def __init__(self) -> None:
        super().__init__()
        self.text = dressed(QPlainTextEdit(), "Parameters, prompt and reply of the call", bare=True)
        self.text.setReadOnly(True)
        self.text.setTabChangesFocus(True)
        self._take_font()
        theme_notifier().changed.connect(self._take_font)
        vbox(self.text, of=self)
        self.show_call(None, None)

    def show_call(self, record: CallRecord | None, content: CallContent | None) -> None:
        """None: no call is selected; content None: it was not kept."""
        if record is None:
            shown = CHOOSE
        else:
            shown = content_text(content) if content is not None else NOT_KEPT
        if shown != self.text.toPlainText():
            self.text.setPlainText(shown)

    def _take_font(self) -> None:
        self.text.setFont(mono_font("small"))


def content_text(content: CallContent) -> str:
    """Parameters, then the prompt, then each reply."""
    parts = _request_parts(content.request)
    count = len(content.replies)
    for index, reply in enumerate(content.replies, 1):
        parts.append(("Reply" if count == 1 else f"Reply {index} of {count}", reply))
    if sum(map(len, content.replies)) >= MAX_CONTENT:
        heading, reply = parts.pop()
        parts.append((heading, f"{reply}\n[first {MAX_CONTENT:,} characters of all replies]"))
    return "\n\n".join(f"{heading}\n{text}" for heading, text in parts)


def _request_parts(body: bytes) -> list[tuple[str, str]]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        note = f"\n[first {bytes_text(MAX_CONTENT)}]" if len(body) >= MAX_CONTENT else ""
        return [("Request", body.decode("utf-8", "replace") + note)] if body else []
    parameters = {name: value for name, value in parsed.items() if name not in _PROMPTS}
    parts = [("Parameters", "\n".join(f"{name}: {_value(v)}" for name, v in parameters.items()))]
    return parts + [("Prompt", _prompt_text(parsed[name])) for name in _PROMPTS if name in parsed]


def _prompt_text(prompt: Any) -> str:
    """Messages with their roles; anything else as it is."""
    if isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt):
        lines = (f"[{one.get('role', '')}] {_value(one.get('content'))}" for one in prompt)
        return "\n\n".join(lines)
    return _value(prompt)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
