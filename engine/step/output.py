"""A request's output: text, stop sequences, log probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import ErrorInfo, NumericalError
from engine.messages import DraftRound, OutputEvent, TokenLogprob
from engine.sampling.draw import RowLogprobs
from engine.scheduling.request import Grant, Outcome, Request
from engine.snapshot import FinishReason, RequestTimes
from engine.speculation.statistics import num_accepted
from engine.speculation.verify import Verified
from engine.text.detokenizer import IncrementalDetokenizer
from engine.text.tokenizer import Tokenizer

NUMERICAL_FAILURE = NumericalError(
    "The model produced NaN or infinite logits.",
    "Set dtype to float32. If it happens again, the checkpoint is likely corrupted.",
)


@dataclass(slots=True)
class RequestOutput:
    """The finished (or growing) output of one request, as `LLMEngine.generate` returns it."""

    request_id: str
    num_prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    metrics: RequestTimes | None = None
    error: ErrorInfo | None = None
    drafts: list[DraftRound] = field(default_factory=list)

    def extend(self, event: OutputEvent) -> None:
        self.text += event.text
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        self.num_cached_tokens = event.num_cached_tokens
        self.finish_reason = event.finish_reason
        self.metrics = event.times or self.metrics
        self.error = event.error
        if event.drafts is not None:
            self.drafts.append(event.drafts)


class OutputStream:
    """Turns sampled tokens of one request into text and decides where it ends."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, request.params, request.prompt_token_ids
        )
        self._text = ""
        self._opening = ""  # text of tokens that were given, until it has gone out
        self._logprobs: tuple[TokenLogprob, ...] = ()
        self._drafts: DraftRound | None = None
        self.error: ErrorInfo | None = None

    def open(self, token_ids: Sequence[int]) -> FinishReason | None:
        """Begin the output with tokens that were not sampled; the reason where one of them ends
        it."""
        for token_id in token_ids:
            text, reason = self._push(token_id)
            self._opening += text
            self.request.token_ids.append(token_id)
            if reason is not None:
                return reason
        return None

    def accept(self, verified: Verified, draft_token_ids: tuple[int, ...] = ()) -> Outcome:
        """The outcome of a step's tokens, which the scheduler has not booked yet. They are cut
        where the request ends: at EOS, a stop string or its length."""
        kept: list[int] = []
        described: list[TokenLogprob] = []
        self._text, reason = "", None
        for token_id, logprobs in zip(*verified, strict=True):
            text, reason = self._push(token_id, num_before=len(kept))
            self._text += text
            kept.append(token_id)
            if logprobs is not None:
                described.append(self._describe(token_id, logprobs))
            if reason is not None:
                break
        self._logprobs = tuple(described)
        self._drafts = self._round(draft_token_ids, kept, reason) if draft_token_ids else None
        return Outcome(tuple(kept), reason)

    def _round(
        self, drafts: tuple[int, ...], kept: list[int], reason: FinishReason | None
    ) -> DraftRound:
        accepted = num_accepted(drafts, kept)
        # behind the end of the output nothing was rejected
        wanted = self.request.params.logprobs is not None and reason is None
        rejected = drafts[accepted:] if wanted else ()
        return DraftRound(drafts, accepted, tuple(map(self._tokenizer.token_text, rejected)))

    def _push(self, token_id: int, num_before: int = 0) -> tuple[str, FinishReason | None]:
        """The text that a token completes, and the reason where the output ends with it.
        `num_before`: tokens that were pushed and are not the request's yet."""
        reason = self.request.stop_reason(token_id, num_before)
        stopped_by_token = reason is FinishReason.STOP
        text = "" if stopped_by_token else self._detokenizer.push(token_id)
        if self._detokenizer.stopped_by is not None:
            return text, FinishReason.STOP
        return (text, None) if reason is None else (text + self._detokenizer.flush(), reason)

    def close(self, error: ErrorInfo | None = None) -> None:
        """The request ends for another reason than its tokens, with `error` if it failed; its
        held-back text goes out with the last event."""
        self.error = error
        self._text = self._detokenizer.flush()
        self._logprobs, self._drafts = (), None

    def event(self, outcome: Outcome, now: float, step_index: int) -> OutputEvent:
        request = self.request
        text, self._opening = self._opening + self._text, ""
        is_first = len(request.token_events) == 1 and bool(outcome.token_ids)
        return OutputEvent(
            request_id=request.request_id,
            text=text,
            token_ids=outcome.token_ids,
            time=now,
            step_index=step_index,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            logprobs=self._logprobs,
            finish_reason=outcome.finish_reason,
            times=request.times() if is_first or outcome.finish_reason else None,
            is_first=is_first,
            error=self.error,
            drafts=self._drafts,
            num_preemptions=request.num_preemptions,
            blocks=request.last_blocks,
        )

    def _describe(self, token_id: int, row: RowLogprobs) -> TokenLogprob:
        token_text = self._tokenizer.token_text
        return TokenLogprob(
            token_id=token_id,
            token=token_text(token_id),
            logprob=row.logprob,
            rank=row.rank,
            alternatives=tuple((i, token_text(i), value) for i, value in row.alternatives),
        )


def accept(
    streams: Mapping[str, OutputStream], sampling: Sequence[Grant], verified: Sequence[Verified]
) -> dict[str, Outcome]:
    """The outcomes of a step by request; one whose logits were NaN or infinite has failed."""
    outcomes = {}
    for grant, found in zip(sampling, verified, strict=True):
        request_id = grant.request.request_id
        if found.token_ids:
            outcomes[request_id] = streams[request_id].accept(found, grant.draft_token_ids)
        else:
            streams[request_id].close(NUMERICAL_FAILURE.info())
            outcomes[request_id] = Outcome((), FinishReason.ERROR)
    return outcomes
