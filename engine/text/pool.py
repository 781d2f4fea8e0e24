"""Encodes texts for one tokenizer in processes of their own.

    submit -> FairQueue -> a thread takes the next job -> its process -> Future

The first thread takes short texts only, so that none waits for long ones; others start when work
waits. A process that takes too much time or memory for a text, or dies, is replaced, and the
text's future has the error. One at work on a text whose future was cancelled is replaced soon.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from engine import errors
from engine.errors import InferdeckError, refusal_of
from engine.text.lanes import FairQueue, Job
from engine.text.length import check_characters
from engine.text.process import WorkerProcess
from engine.text.work import Check, Done, Failed, Reply, Source, Work

MAX_PROCESSES = 2 + min(2, (os.cpu_count() or 1) // 8)
_UNWANTED_S = 1.0
"""How long a text that nobody wants any more may take. Replacing its process takes about as long.
"""


class EncoderPool:
    """Any thread may use it. Threads and processes start with the first work."""

    def __init__(self) -> None:
        self._queue = FairQueue()
        self._lock = threading.RLock()
        self._threads: list[_Worker] = []
        self._ending: list[_Worker] = []
        self.make_source: Callable[[], Source] | None = None

    def check(self, check: Check) -> Future[list[int]]:
        """Read a folder before this program does. The future raises CheckpointError."""
        return self._put(Job(check))

    def use(self, make_source: Callable[[], Source]) -> None:
        """Encode with this tokenizer. The first process prepares for it at once; `make_source` is
        called on its thread, and again for every process."""
        self.make_source = make_source
        self._put(Job(None))

    def submit(self, work: Work, client: str = "") -> Future[list[int]]:
        """The token ids of a text or a chat. The future raises InvalidRequestError for what cannot
        be encoded within the limits of time and memory, and ContextLengthError. `client`: clients
        take turns."""
        try:
            check_characters(work.num_characters, work.context)
        except InferdeckError as error:
            refused: Future[list[int]] = Future()
            refused.set_exception(error.with_traceback(None))
            return refused
        return self._put(Job(work, client))

    def rest(self) -> None:
        """End threads and processes when their work is done; the next work starts others."""
        with self._lock:
            if self._queue.is_closed:
                return
            self._queue.finish()
            self._queue = FairQueue()
            self._ending = [thread for thread in self._ending if thread.is_alive()]
            self._ending += self._threads
            self._threads = []

    def close(self) -> None:
        """End threads and processes soon, whatever they do; cancels what they do and what waits."""
        self._queue.close()
        for thread in [*self._threads, *self._ending]:
            thread.close()

    def join(self) -> None:
        """After `close`: wait until threads and processes have ended."""
        for thread in [*self._threads, *self._ending]:
            thread.join()

    @property
    def pids(self) -> list[int]:
        """Of the running processes."""
        return [thread.process.pid for thread in self._threads if thread.process is not None]

    def _put(self, job: Job) -> Future[list[int]]:
        future = job.future
        with self._lock:
            needs_thread = self._queue.put(job)
            if not self._threads:
                self._start(only_short=True)
                needs_thread = not job.is_short
            if needs_thread and len(self._threads) < MAX_PROCESSES:
                self._start(only_short=False)
        return future

    def _start(self, *, only_short: bool) -> None:
        thread = _Worker(self, self._queue, only_short=only_short)
        self._threads.append(thread)
        thread.start()


class _Worker(threading.Thread):
    """Serves the queue with one process."""

    def __init__(self, pool: EncoderPool, jobs: FairQueue, *, only_short: bool) -> None:
        super().__init__(name="encoder", daemon=True)
        self._pool = pool
        self._jobs = jobs
        self._only_short = only_short
        self.process: WorkerProcess | None = None

    def close(self) -> None:
        """End soon. Any thread may call this."""
        self._jobs.close()
        process = self.process
        if process is not None:
            process.kill()

    def run(self) -> None:
        try:
            self._jobs.add_free(only_short=self._only_short)
            while (job := self._jobs.take(only_short=self._only_short)) is not None:
                outcome = self._outcome(job)
                if job.work is not None:
                    self._jobs.add_free(only_short=self._only_short)
                if not job.future.set_running_or_notify_cancel():
                    pass  # nobody wants it any more
                elif isinstance(outcome, BaseException):
                    job.future.set_exception(outcome)
                else:
                    job.future.set_result(outcome)
                del job, outcome  # with texts
        finally:
            self._end_process()

    def _end_process(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None

    def _outcome(self, job: Job) -> list[int] | Exception:
        """Token ids or an error; of no meaning where the job is cancelled."""
        began = time.monotonic()

        def check() -> None:
            if job.future.cancelled() and time.monotonic() - began > _UNWANTED_S:
                raise CancelledError

        if job.future.cancelled():
            return []
        try:
            match self._ask(job.work, check):
                case Done(token_ids):
                    return array("i", token_ids).tolist()
                case Failed(cause, remedy, kind):
                    known: InferdeckError = getattr(errors, kind)(cause, remedy)
                    return known
        except BaseException as error:  # somebody waits for the outcome
            self._end_process()
            if self._jobs.is_closed:
                job.future.cancel()
            if isinstance(error, OSError):
                error = InferdeckError(
                    f"Cannot start the tokenizer process: {error}.",
                    "Close other programs, then try again.",
                )
            return refusal_of(error).with_traceback(None)

    def _ask(self, work: Work | Check | None, check: Callable[[], None]) -> Reply:
        """The reply of this thread's process, which is started where there is none."""
        if self.process is not None and not self.process.is_running:
            self._end_process()
        if self.process is None:
            self.process = WorkerProcess()
            if self._jobs.is_closed:  # `close` has not seen this one
                raise CancelledError
        make_source = self._pool.make_source
        if make_source is not None and self.process.source is not make_source:
            if isinstance(reply := self.process.ask(make_source()), Failed):
                return reply
            self.process.source = make_source
        return Done() if work is None else self.process.ask(work, check)
