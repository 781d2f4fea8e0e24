"""`Generation`: sends requests for replies and collects their tokens, figures and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from PySide6.QtCore import QObject, Signal

from app.clients.target import Traced
from app.features.chat.cause_recorder import CauseRecorder
from app.features.chat.conversation import Conversation, Message, State, followed
from app.features.chat.figures import Figures, joined
from app.features.chat.library import ChatLibrary
from app.features.chat.open_reply import Earlier, OpenReply, Progress, records_of
from app.features.chat.reply_data import ReplyTokens, continued
from app.features.models.precision import precision_text
from app.link.bridge import EngineBridge
from app.link.change_watch import ChangeWatch
from engine.config import Change
from engine.errors import ErrorInfo
from engine.messages import EngineCrashed, OutputEvent, Reconfigured, RequestFailed
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, FinishReason, RequestTimes
from widgets.latency.causes import Cause, Changed
from widgets.requests.model import ReplyRecord
from widgets.tokens.record import TokenRecord

STATUS_INTERVAL_S = 1.0
"""Interval at which the figures of all open replies are refreshed."""
TOKENS_INTERVAL_S = 5.0
"""Interval at which the tokens of open replies are saved: after a crash they can be continued."""

_ENDS = {
    FinishReason.STOP: State.COMPLETE,
    FinishReason.LENGTH: State.COMPLETE,
    FinishReason.ABORT: State.STOPPED,
    FinishReason.ERROR: State.ERROR,
}


class Generation(QObject):
    """Signals name the conversation and the reply. `text_appended` comes in the same call in
    which the engine's output arrives: a first token is painted before that call returns."""

    text_appended = Signal(str, str, str)
    reply_changed = Signal(str, str)
    started = Signal()  # a reply was requested

    def __init__(
        self,
        engine: EngineBridge,
        library: ChatLibrary,
        changes: ChangeWatch,
        name_of: Callable[[str], str],
    ) -> None:
        """`name_of`: how the user knows a request, also one that is no reply."""
        super().__init__(library)
        self._engine, self._saver = engine, library.saver
        self._tokens, self._times = library.tokens, library.times
        self._open: dict[str, OpenReply] = {}
        # by reply, to name requests; weak: a deleted conversation drops out
        self._conversations = WeakValueDictionary[str, Conversation]()
        self._shown_at = self._saved_at = 0.0
        self._causes = CauseRecorder(name_of)
        self._take_precision()
        engine.snapshot.connect(self._on_snapshot)
        engine.outputs.connect(self._on_outputs)
        engine.traced.connect(self._on_traced)
        engine.request_failed.connect(self._on_failed)
        engine.crashed.connect(self._on_crashed)
        engine.state_changed.connect(self._on_state)
        engine.reconfigure_failed.connect(self._take_precision)
        changes.answered.connect(self._on_reconfigured)

    @property
    def num_open(self) -> int:
        """Replies that are generated, or wait for a model."""
        return len(self._open)

    @property
    def num_sent(self) -> int:
        return sum(entry.is_sent for entry in self._open.values())

    def progress(self, reply_id: str) -> Progress | None:
        """Figures so far of a reply that was sent."""
        entry = self._open.get(reply_id)
        return entry.progress if entry is not None and entry.is_sent else None

    def tokens_of(self, reply_id: str) -> Sequence[TokenRecord]:
        """Tokens so far of an open reply."""
        entry = self._open.get(reply_id)
        return entry.tokens if entry is not None else ()

    def conversation_of(self, reply_id: str) -> Conversation | None:
        """The conversation of a reply that was started by this instance."""
        return self._conversations.get(reply_id)

    def record_of(self, reply_id: str) -> ReplyRecord | None:
        """Of a whole reply that has ended, as shown beside it; None if it is not in memory."""
        conversation, times = self.conversation_of(reply_id), self._times.of(reply_id)
        if conversation is None or times is None or reply_id in self._open:
            return None
        reply = conversation.messages.get(reply_id)
        if reply is None or reply.figures is None:
            return None
        return ReplyRecord(times, reply.figures.num_prompt_tokens, reply.figures.num_cached_tokens)

    def start(
        self, conversation: Conversation, reply: Message, earlier: Earlier | None = None
    ) -> None:
        """Send the request for `reply`, now or once a model is loaded. `earlier`: of a continued
        reply."""
        entry = OpenReply(conversation, reply, model=self._model_name, earlier=earlier)
        self._open[reply.id] = entry
        self._conversations[reply.id] = conversation
        self.started.emit()
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
        begin_with = tuple(token.token_id for token in entry.reply.opening)
        entry.tokens = list(entry.reply.opening or (entry.earlier.tokens if entry.earlier else ()))
        entry.awaits_text = entry.earlier is not None and bool(begin_with)
        self._causes.begin(entry.reply.id)
        prompt = entry.conversation.prompt_for(entry.reply)
        if entry.earlier is not None and entry.earlier.passes_text:
            prompt = (*prompt, {"role": "assistant", "content": entry.reply.text})
        self._engine.add_request(entry.reply.id, prompt, _sampling(entry), begin_with)
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
        self._causes.take_outputs(events)
        for request_id, batch in batches.items():
            self._extend(self._open[request_id], batch)
        self._show_progress()
        if time.monotonic() - self._saved_at >= TOKENS_INTERVAL_S:
            self.save_tokens()

    def _extend(self, entry: OpenReply, batch: list[OutputEvent]) -> None:
        if any(event.token_ids for event in batch):
            self._follow_precision(entry)
        for event in batch:
            entry.progress.add(event)
            entry.tokens += records_of(event)
        new = entry.take_text("".join(event.text for event in batch))
        if new:
            self.text_appended.emit(entry.conversation.id, entry.reply.id, new)
        elif new is None:
            self._changed(entry)
        last = batch[-1]
        if last.finish_reason is not None:
            self._take_figures(entry, last)
            self._finish(entry, _ENDS[last.finish_reason], last.error)
            return
        self._saver.touch(entry.reply)
        if batch[0].is_first:
            self._changed(entry)

    def _take_figures(self, entry: OpenReply, last: OutputEvent) -> None:
        """Store the figures and times of the whole reply, also of a continued one."""
        reply, earlier, times = entry.reply, entry.earlier, last.times
        if earlier is not None and not entry.progress.num_tokens:
            self._causes.drop(reply.id)
            return  # ended before the first new token
        num_given = 0 if earlier is not None else len(reply.opening)
        figures = Figures.of(last, entry.progress.num_tokens, self._model_name, num_given)
        if times is None or not times.tokens:
            self._causes.drop(reply.id)
            reply.figures = figures
            return
        num_computed = last.num_prompt_tokens + len(reply.opening) - last.num_cached_tokens
        whole = _whole_times(entry, times, num_computed)
        reply.figures = figures if earlier is None else joined(earlier, figures, whole)
        self._times.keep(reply.id, whole)

        def explain(times: RequestTimes) -> None:
            found = _whole_times(entry, times, num_computed)
            known = self._times.of(reply.id)
            if known is not None:  # its trace may have come first
                found = replace(found, first_scheduled=known.first_scheduled)
            if found != whole:
                self._times.keep(reply.id, found)
                self._changed(entry)

        self._causes.end(reply.id, times, explain)

    def _on_traced(self, traced: Traced) -> None:
        """The server has reported when it began a reply; one that was continued began before."""
        reply_id, queue_s = traced.request_id, traced.times.queue_s
        conversation, whole = self.conversation_of(reply_id), self._times.of(reply_id)
        reply = conversation.messages.get(reply_id) if conversation is not None else None
        if conversation is None or reply is None or reply.figures is None:
            return
        is_whole = reply_id not in self._open and not reply.figures.num_continued_tokens
        if whole is None or queue_s is None or not is_whole:
            return
        reply.figures = replace(reply.figures, queue_ms=queue_s * 1e3)
        self._times.keep(reply_id, replace(whole, first_scheduled=traced.times.first_scheduled))
        self._saver.save_now(reply)
        self.reply_changed.emit(conversation.id, reply_id)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._causes.take_steps(snapshot.steps)

    def _on_reconfigured(self, event: Reconfigured, text: str) -> None:
        kinds = {Change.CACHE_REBUILD: Cause.REBUILD, Change.RELOAD: Cause.RELOAD}
        cause = kinds.get(event.change, Cause.NONE) if event.change else Cause.NONE
        self._causes.take_change(Changed(time.perf_counter(), event.seconds, cause, text))

    def _follow_precision(self, entry: OpenReply) -> None:
        """Outputs and settings changes arrive in order, so this text has the current precision."""
        reply = entry.reply
        if not self._precision:
            return
        count = entry.num_before + entry.progress.num_tokens
        text = reply.text or "".join(token.text for token in reply.opening)
        passages = followed(reply.passages, text, count, self._precision)
        if passages != reply.passages:
            reply.passages = passages
            if len(passages) > 1:
                self._changed(entry)

    def show_states(self, text_of: Callable[[str], str]) -> None:
        """Show the replies whose state has changed."""
        for entry in list(self._open.values()):
            text = text_of(entry.reply.id) if entry.is_sent else ""
            if text != entry.state:
                entry.state = text
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
            self._fail(entry, failed.error)

    def _on_crashed(self, crash: EngineCrashed) -> None:
        for entry in list(self._open.values()):
            if entry.is_sent:
                self._fail(entry, crash.error)

    def _fail(self, entry: OpenReply, error: ErrorInfo) -> None:
        self._causes.drop(entry.reply.id)
        self._finish(entry, State.ERROR, error)

    def save_tokens(self) -> None:
        """Save the tokens of open replies."""
        self._saved_at = time.monotonic()
        for entry in self._open.values():
            self._keep_tokens(entry)

    def _keep_tokens(self, entry: OpenReply) -> None:
        count = entry.num_before + entry.progress.num_tokens
        if 0 < len(entry.tokens) == count:  # the engine has reported every one
            self._tokens.keep(entry.reply.id, ReplyTokens(entry.model, tuple(entry.tokens)))

    def _finish(self, entry: OpenReply, state: State, error: ErrorInfo | None = None) -> None:
        del self._open[entry.reply.id]
        self._keep_tokens(entry)
        entry.reply.state, entry.reply.error = state, error
        if entry.earlier is not None:
            entry.reply.opening = ()
        self._saver.save_now(entry.reply)
        self._changed(entry)

    def _changed(self, entry: OpenReply) -> None:
        self.reply_changed.emit(entry.conversation.id, entry.reply.id)


def _whole_times(entry: OpenReply, times: RequestTimes, num_computed: int) -> RequestTimes:
    if entry.earlier is None or entry.earlier.times is None:
        return times
    return continued(entry.earlier.times, times, num_computed)


def _sampling(entry: OpenReply) -> SamplingParams:
    """Max tokens of a continued reply apply to its new tokens."""
    sampling = entry.conversation.sampling
    if entry.earlier is None or sampling.max_tokens is None:
        return sampling
    return replace(sampling, max_tokens=sampling.max_tokens + len(entry.reply.opening))
