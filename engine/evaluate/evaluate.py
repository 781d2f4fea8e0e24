"""One evaluation, from the task to the report.

    reference   load -> read the text: hidden states to a file -> replies, speed -> unload,
                except for its output head
    candidate   load -> read the text: logits of both from their states, tile by tile
                     -> replies, speed -> unload

The two models are never in memory together. Peak memory: the candidate with a cache of one context
(four with prompts), the reference's output head [vocab, hidden], six tiles of logits of 32 MiB, and
the activations of one chunk. The file holds tokens * hidden numbers in the reference's dtype.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import torch

from engine.errors import ConfigError, OutOfMemoryError, is_out_of_memory
from engine.evaluate.answers import Answer, answer, compare, equal_tokens, measure_speed
from engine.evaluate.head import Head
from engine.evaluate.reading import (
    EncodedText,
    StateFile,
    encode_parts,
    read_states,
    split_specials,
)
from engine.evaluate.report import EvaluationReport, ModelFacts, TextFacts, WorstToken
from engine.evaluate.scoring import Scores
from engine.evaluate.side import (
    PARALLEL_ANSWERS,
    Need,
    Side,
    facts_of,
    opened,
    prepare,
)
from engine.evaluate.task import (
    ANSWERS,
    CANDIDATE,
    REFERENCE,
    SPEED,
    TEXT,
    Cancelled,
    EvaluationTask,
    Progress,
    TextError,
    check,
)
from engine.evaluate.windows import choose_cut
from engine.hardware.machine import machine_info
from engine.llm_engine import LLMEngine
from engine.text.tokenizer import Tokenizer

FEWEST_TOKENS = 32
FEW_TOKENS = 2000
"""Below this the percentiles and the perplexity still move with every sentence."""


def run(
    task: EvaluationTask,
    progress: Progress = lambda stage, done, total: None,
    cancelled: Cancelled = lambda: False,
) -> EvaluationReport:
    """Measure. For a thread of its own: nothing is shared with another engine but torch's number
    of threads, which is put back at the end.

    Raises what loading raises, ConfigError, TextError, OutOfMemoryError, NumericalError, or
    EvaluationCancelled (within one chunk); nothing stays behind then.
    """
    threads = torch.get_num_threads()
    try:
        return _Evaluation(task, progress, cancelled).run()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"Out of memory during evaluation{': ' if str(error) else ''}{error}.",
            "Choose a smaller context length or max_num_batched_tokens, or close other programs.",
        ) from error
    finally:
        torch.set_num_threads(threads)


@dataclass(slots=True)
class _Found:
    """The results of one model besides its scores."""

    facts: ModelFacts
    answers: list[Answer]


@dataclass(slots=True)
class _Evaluation:
    task: EvaluationTask
    progress: Progress
    cancelled: Cancelled
    context: int = 0
    text: EncodedText | None = None
    scores: Scores | None = None
    is_cut: bool = False
    _notices: list[str] = field(default_factory=list)

    def run(self) -> EvaluationReport:
        began = time.perf_counter()
        task = self.task
        check(self.cancelled)
        candidate = prepare(CANDIDATE, task.candidate)
        reference = None
        if task.reference is not None:
            config = task.reference
            if config.dtype == "auto":  # only the requested settings should differ
                config = config.replace(dtype=candidate.config.dtype)
            reference = prepare(REFERENCE, config)
            _check_comparable(reference, candidate, task.text)
        self._plan_text(candidate, reference)
        with ExitStack() as stack:
            before: _Found | None = None
            stored: tuple[Head, StateFile] | None = None
            if reference is not None:
                states = stack.enter_context(closing(StateFile()))
                before, head = self._measure_reference(reference, states)
                stored = None if head is None else (head, states)
            found = self._measure_candidate(candidate, stored)
        return self._report(found, before, candidate.tokenizer, time.perf_counter() - began)

    def _plan_text(self, candidate: Side, reference: Side | None) -> None:
        task = self.task
        sides = [side for side in (candidate, reference) if side is not None]
        longest = min(side.max_model_len for side in sides)
        encode, empty = candidate.tokenizer.encode, candidate.tokenizer.encode("")
        prefix, ids = split_specials(encode(task.text), empty)
        cut = choose_cut(task.context_length, task.stride, len(prefix), longest)
        self.context = cut.context_length
        if not task.text:
            return
        counts: list[bool] | None = None
        if task.scored:
            ids, counts = encode_parts(
                task.text, task.scored, lambda part: split_specials(encode(part), empty)[1]
            )
        self.is_cut = task.max_tokens is not None and task.max_tokens < len(ids)
        self.text = EncodedText(ids[: task.max_tokens], prefix, cut, counts)
        num_scored = len(self.text.scored)
        if num_scored < FEWEST_TOKENS:
            raise TextError(
                f"{task.text_name or 'Evaluation text'} has only {num_scored:,} tokens to score.",
                f"Use at least {FEWEST_TOKENS} tokens; a few thousand give stable results.",
            )
        if num_scored < FEW_TOKENS:
            self._notices.append(
                f"Small sample ({num_scored:,} tokens): results may differ for other text."
            )

    def _text_facts(self, text: EncodedText, tokenizer: Tokenizer) -> TextFacts:
        task = self.task
        scored = [text.token_ids[i] for i in text.scored]
        return TextFacts(
            name=task.text_name,
            sha256=hashlib.sha256(task.text.encode(errors="surrogatepass")).hexdigest(),
            num_tokens=len(text.token_ids),
            num_scored=len(scored),
            num_bytes=len(tokenizer.decode(scored).encode(errors="replace")),
            num_windows=len(text.windows),
            context_length=text.cut.context_length,
            stride=text.cut.stride,
            is_cut=self.is_cut,
        )

    def _measure_reference(self, side: Side, states: StateFile) -> tuple[_Found, Head | None]:
        with self._engine(side) as engine:
            head = None
            if self.text is not None:
                head = Head(engine.runner.model)
                for rows in read_states(
                    engine, head, self.text, self._counter(side, TEXT), self.cancelled
                ):
                    states.append(rows)
                head.close()
            found = self._rest(side, engine)
            if head is not None:
                head.keep_alone()
            return found, head

    def _measure_candidate(self, side: Side, stored: tuple[Head, StateFile] | None) -> _Found:
        with self._engine(side) as engine:
            if self.text is not None:
                head = Head(engine.runner.model)
                scores = self.scores = Scores(self.text, self.task.num_worst)
                for rows in read_states(
                    engine, head, self.text, self._counter(side, TEXT), self.cancelled
                ):
                    reference = None
                    if stored is not None:
                        end = scores.count + len(rows)
                        reference = stored[0], stored[1].read(scores.count, end)
                    scores.add(head, rows, reference, self.cancelled)
                head.close()
            return self._rest(side, engine)

    def _rest(self, side: Side, engine: LLMEngine) -> _Found:
        """Replies and speed, after the text: they leave prefixes in the cache."""
        task = self.task
        answers: list[Answer] = []
        if task.prompts:
            is_chat = engine.model_info.has_chat_template and not task.raw_prompts
            lines = [line.for_model(is_chat) for line in task.prompts]
            answers = answer(
                engine, lines, task.prompts_name or "Evaluation prompts",
                self._counter(side, ANSWERS), self.cancelled,
            )  # fmt: skip
        speed = None
        if task.measure_speed:
            speed = measure_speed(engine, self.context, self._counter(side, SPEED), self.cancelled)
        return _Found(facts_of(engine, speed), answers)

    def _engine(self, side: Side) -> AbstractContextManager[LLMEngine]:
        prompts = self.task.prompts
        need = Need(
            window=self.context,
            longest=self.context + max((line.max_tokens for line in prompts), default=0),
            num_sequences=min(PARALLEL_ANSWERS, max(1, len(prompts))),
        )
        return opened(side, need, self.progress, self.cancelled)

    def _counter(self, side: Side, what: str) -> Callable[[int, int], None]:
        stage = f"{side.name}: {what}"
        return lambda done, total: self.progress(stage, done, total)

    def _report(
        self, found: _Found, before: _Found | None, tokenizer: Tokenizer, seconds: float
    ) -> EvaluationReport:
        task, text, scores = self.task, None, self.scores
        answers = loss = reference_loss = divergence = None
        worst: tuple[WorstToken, ...] = ()
        if before is not None and task.prompts:
            answers = compare(
                task.prompts, before.answers, found.answers, tokenizer, task.prompts_name
            )
        if self.text is not None and scores is not None:
            text = self._text_facts(self.text, tokenizer)
            loss = scores.loss("candidate", text.num_bytes)
            if before is not None:
                reference_loss = scores.loss("reference", text.num_bytes)
                divergence, worst = scores.divergence(), scores.worst(tokenizer)
        return EvaluationReport(
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            duration_s=seconds,
            candidate=found.facts,
            reference=before.facts if before else None,
            text=text,
            candidate_loss=loss,
            reference_loss=reference_loss,
            divergence=divergence,
            worst=worst,
            answers=answers,
            notices=tuple(self._notices),
            machine=asdict(machine_info()),
        )


def _check_comparable(reference: Side, candidate: Side, text: str) -> None:
    """Raise ConfigError unless both models have the same tokens for the text and the same
    vocabulary."""
    if reference.checkpoint.path == candidate.checkpoint.path:
        return
    remedy = "Compare precisions of the same model. Perplexity needs no reference model."
    names = f"{reference.checkpoint.name} (reference)", f"{candidate.checkpoint.name}"
    known, found = reference.tokenizer.tokens(), candidate.tokenizer.tokens()
    if len(known) != len(found):
        raise ConfigError(
            f"The tokenizers differ: {len(known):,} tokens in {names[0]}, {len(found):,} in "
            f"{names[1]}.",
            remedy,
        )
    differing = [i for i, (a, b) in enumerate(zip(known, found, strict=True)) if a != b]
    if differing:
        first = differing[0]
        raise ConfigError(
            f"The tokenizers differ in {len(differing):,} of {len(known):,} tokens: token "
            f"{first:,} is {known[first]!r} in {names[0]}, {found[first]!r} in {names[1]}.",
            remedy,
        )
    ids = reference.tokenizer.encode(text), candidate.tokenizer.encode(text)
    if ids[0] != ids[1]:
        raise ConfigError(
            f"The tokenizers split the text differently: {len(ids[0]):,} tokens with {names[0]}, "
            f"{len(ids[1]):,} with {names[1]}; the first {equal_tokens(*ids):,} match.",
            remedy,
        )
    if reference.vocab_size != candidate.vocab_size:
        raise ConfigError(
            f"The vocabulary sizes differ: {reference.vocab_size:,} in {names[0]}, "
            f"{candidate.vocab_size:,} in {names[1]}.",
            remedy,
        )
