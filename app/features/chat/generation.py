"""`Generation`: sends requests for replies and collects their tokens, figures and times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from PySide6.QtCore import QObject, Signal

from app.features.chat.conversation import Conversation, Message, State, followed
from app.features.chat.figures import Figures
from app.features.chat.library import ChatLibrary
from app.features.chat.reply_data import ReplyTokens
from app.features.models.precision import precision_text
from app.link.bridge import EngineBridge
from engine.errors import ErrorInfo
from engine.messages import EngineCrashed, OutputEvent, RequestFailed
from engine.snapshot import FinishReason
from widgets.tokens.record import Alternative, TokenRecord

STATUS_INTERVAL_S = 1.0
"""Interval at which the figures of all open replies are refreshed."""

_ENDS = {
    FinishReason.STOP: State.COMPLETE,
    FinishReason.LENGTH: State.COMPLETE,
    FinishReason.ABORT: State.STOPPED,
    FinishReason.ERROR: State.ERROR,
}


class Progress:
    """Figures of a reply while it is generated."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_prompt_tokens = 0
        self.step_index = 0
        self._first: float | None = None
        self._first_tokens = 0
        self._last = 0.0

    def add(self, event: OutputEvent) -> None:
        self.num_tokens += len(event.token_ids)
        self.num_prompt_tokens = event.num_prompt_tokens
        self.step_index = event.step_index
        self._last = event.time
        if self._first is None and event.token_ids:
            self._first, self._first_tokens = event.time, self.num_tokens

    @property
    def itl_ms(self) -> float | None:
        """Mean gap between tokens so far."""
        gaps = self.num_tokens - self._first_tokens
        if self._first is None or gaps < 1:
            return None
        return (self._last - self._first) * 1e3 / gaps


@dataclass(slots=True)
class OpenReply:
    conversation: Conversation
    reply: Message
    is_sent: bool = False
    progress: Progress = field(default_factory=Progress)
    tokens: list[TokenRecord] = field(default_factory=list)
    model: str = ""  # whose tokens the reply begins with


class Generation(QObject):
    """Signals name the conversation and the reply. `text_appended` comes in the same call in
    which the engine's output arrives: a first token is painted before that call returns."""

    text_appended = Signal(str, str, str)
    reply_changed = Signal(str, str)

    def __init__(self, engine: EngineBridge, library: ChatLibrary) -> None:
        super().__init__(library)
        self._engine, self._saver = engine, library.saver
        self._tokens, self._times = library.tokens, library.times
        self._open: dict[str, OpenReply] = {}
        # by reply, to name requests; weak: a deleted conversation drops out
        self._conversations = WeakValueDictionary[str, Conversation]()
        self._shown_at = 0.0
        self._take_precision()
        engine.outputs.connect(self._on_outputs)
        engine.request_failed.connect(self._on_failed)
        engine.crashed.connect(self._on_crashed)
        engine.state_changed.connect(self._on_state)
        engine.reconfigure_failed.connect(self._take_precision)

    @property
    def num_sent(self) -> int:
        return sum(entry.is_sent for entry in self._open.values())

    def progress(self, reply_id: str) -> Progress | None:
        """Figures so far of a reply that was sent."""
        entry = self._open.get(reply_id)
        return entry.progress if entry is not None and entry.is_sent else None

    def conversation_of(self, reply_id: str) -> Conversation | None:
        """The conversation of a reply that was started by this instance."""
        return self._conversations.get(reply_id)

    def start(self, conversation: Conversation, reply: Message) -> None:
        """Send the request for `reply`, now or once a model is loaded."""
        entry = self._open[reply.id] = OpenReply(conversation, reply, model=self._model_name)
        self._conversations[reply.id] = conversation
        if self._engine.is_ready:
            self._send(entry)
        else:
            self._changed(entry)

    def stop(self, conversation: Conversation) -> None:
        """Stop every reply of a conversation. One that was sent ends with the engine's event."""
        for entry in list(self._open.values()):
            if entry.conversation is not conversation:
                continue
            if entry.is_sent:
                self._engine.abort(entry.reply.id)
            else:
                self._finish(entry, State.STOPPED)

    @property
    def _model_name(self) -> str:
        return self._engine.model.name if self._engine.model is not None else ""

    def _take_precision(self) -> None:
        """The precision of the text that follows; "" without a model."""
        model, config = self._engine.model, self._engine.config
        self._precision = precision_text(model, config) if model and config else ""

    def _send(self, entry: OpenReply) -> None:
        if entry.reply.opening and entry.model != self._model_name:
            wanted, found = entry.model or "another model", self._model_name
            cause = f"This branch starts with tokens generated by {wanted}, but {found} is loaded."
            remedy = "Open the original model, then create the branch again."
            self._finish(entry, State.ERROR, ErrorInfo(cause, remedy))
            return
        entry.is_sent, entry.model = True, self._model_name
        entry.reply.state = State.STREAMING
        entry.tokens = list(entry.reply.opening)
        prompt, sampling = entry.conversation.prompt_for(entry.reply), entry.conversation.sampling
        begin_with = tuple(token.token_id for token in entry.tokens)
        self._engine.add_request(entry.reply.id, prompt, sampling, begin_with)
        self._changed(entry)

    def _on_state(self, state: object) -> None:
        self._take_precision()
        for entry in list(self._open.values()):
            if not entry.is_sent:
                if self._engine.is_ready:
                    self._send(entry)
                else:
                    self._changed(entry)  # why it waits has changed

    def _on_outputs(self, events: list[OutputEvent]) -> None:
        batches: dict[str, list[OutputEvent]] = {}
        for event in events:
            if event.request_id in self._open:
                batches.setdefault(event.request_id, []).append(event)
        for request_id, batch in batches.items():
            self._extend(self._open[request_id], batch)
        self._show_progress()

    def _extend(self, entry: OpenReply, batch: list[OutputEvent]) -> None:
        if any(event.token_ids for event in batch):
            self._follow_precision(entry)
        for event in batch:
            entry.progress.add(event)
            entry.tokens += records_of(event)
        text = "".join(event.text for event in batch)
        if text:
            entry.reply.text += text
            self.text_appended.emit(entry.conversation.id, entry.reply.id, text)
        last = batch[-1]
        if last.finish_reason is not None:
            name = self._model_name
            num_given = len(entry.reply.opening)
            entry.reply.figures = Figures.of(last, entry.progress.num_tokens, name, num_given)
            if last.times is not None and last.times.tokens:
                self._times.keep(entry.reply.id, last.times)
            self._finish(entry, _ENDS[last.finish_reason], last.error)
            return
        self._saver.touch(entry.reply)
        if batch[0].is_first:
            self._changed(entry)

    def _follow_precision(self, entry: OpenReply) -> None:
        """Outputs and settings changes arrive in order, so this text has the current precision."""
        reply = entry.reply
        if not self._precision:
            return
        count = len(reply.opening) + entry.progress.num_tokens
        text = reply.text or "".join(token.text for token in reply.opening)
        passages = followed(reply.passages, text, count, self._precision)
        if passages != reply.passages:
            reply.passages = passages
            if len(passages) > 1:
                self._changed(entry)

    def _show_progress(self) -> None:
        """All replies at once, so that the list is painted once."""
        now = time.monotonic()
        if now - self._shown_at >= STATUS_INTERVAL_S:
            self._shown_at = now
            for entry in self._open.values():
                if entry.progress.num_tokens:
                    self._changed(entry)

    def _on_failed(self, failed: RequestFailed) -> None:
        entry = self._open.get(failed.request_id)
        if entry is not None:
            self._finish(entry, State.ERROR, failed.error)

    def _on_crashed(self, crash: EngineCrashed) -> None:
        for entry in list(self._open.values()):
            if entry.is_sent:
                self._finish(entry, State.ERROR, crash.error)

    def close(self) -> None:
        """Save the tokens of open replies, as the program exits."""
        for entry in self._open.values():
            self._keep_tokens(entry)

    def _keep_tokens(self, entry: OpenReply) -> None:
        count = len(entry.reply.opening) + entry.progress.num_tokens
        if 0 < len(entry.tokens) == count:  # the engine has reported every one
            self._tokens.keep(entry.reply.id, ReplyTokens(entry.model, tuple(entry.tokens)))

    def _finish(self, entry: OpenReply, state: State, error: ErrorInfo | None = None) -> None:
        del self._open[entry.reply.id]
        self._keep_tokens(entry)
        entry.reply.state, entry.reply.error = state, error
        self._saver.save_now(entry.reply)
        self._changed(entry)

    def _changed(self, entry: OpenReply) -> None:
        self.reply_changed.emit(entry.conversation.id, entry.reply.id)


def records_of(event: OutputEvent) -> list[TokenRecord]:
    """The tokens of an event: accepted drafts, then the model's own token in place of the rejected
    ones."""
    records = [
        TokenRecord(
            token.token_id, token.token, token.logprob, token.rank,
            tuple(Alternative(*alternative) for alternative in token.alternatives),
        )
        for token in event.logprobs
    ]  # fmt: skip
    if event.drafts is not None and records:
        for i in range(min(event.drafts.num_accepted, len(records))):
            records[i] = records[i]._replace(is_draft=True)
        if event.drafts.rejected:
            records[-1] = records[-1]._replace(rejected=event.drafts.rejected)
    return records
