"""The order in which texts are encoded: short and long ones in lanes, clients in turn."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from engine.text.work import Check, Work

SHORT_CHARACTERS = 16 * 1024
"""A text with more is a long one."""


@dataclass(slots=True, eq=False)
class Job:
    """A piece of work and its result. work: None: prepare for some, for which the thread counts as
    free (another one would be ready later)."""

    work: Work | Check | None
    client: str = ""
    future: Future[list[int]] = field(default_factory=Future)

    @property
    def is_short(self) -> bool:
        if self.work is None or isinstance(self.work, Check):
            return True
        return self.work.num_characters <= SHORT_CHARACTERS


Lane = dict[str, deque[Job]]  # by client, the next one first


class FairQueue:
    """Jobs in two lanes. In a lane clients take turns, however many jobs one has."""

    def __init__(self) -> None:
        # reentrant: the garbage collector may close the queue while this thread holds the lock
        self._changed = threading.Condition(threading.RLock())
        self._short: Lane = {}
        self._long: Lane = {}
        self._num_free = {True: 0, False: 0}  # threads, by `only_short`
        self._is_closed = False
        self._is_finishing = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def put(self, job: Job) -> bool:
        """Queue a job. Whether it needs one more thread to be served at once."""
        with self._changed:
            if self._is_closed:
                job.future.cancel()
                return False
            lane = self._short if job.is_short else self._long
            lane.setdefault(job.client, deque()).append(job)
            self._changed.notify_all()
            num_long, num_any = _count(self._long), self._num_free[False]
            num = num_long + _count(self._short)
            return num_long > num_any or num > num_any + self._num_free[True]

    def add_free(self, *, only_short: bool) -> None:
        """A thread will take the next job: call it before others learn that its last is done."""
        with self._changed:
            self._num_free[only_short] += 1

    def take(self, *, only_short: bool) -> Job | None:
        """The next job, as soon as there is one; None when the queue is closed, or finishing and
        without any."""
        lanes = (self._short,) if only_short else (self._long, self._short)
        with self._changed:
            while not self._is_closed:
                for lane in lanes:
                    if lane:
                        job = _next(lane)
                        self._num_free[only_short] -= job.work is not None
                        return job
                if self._is_finishing:
                    return None
                self._changed.wait()
            return None

    def finish(self) -> None:
        """Serve the jobs that wait, and then no more. Put none after this."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Serve no more jobs, and cancel those that wait."""
        with self._changed:
            self._is_closed = True
            waiting = [
                job for lane in (self._short, self._long) for q in lane.values() for job in q
            ]
            self._short.clear()
            self._long.clear()
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()


def _next(lane: Lane) -> Job:
    client = next(iter(lane))
    jobs = lane.pop(client)
    job = jobs.popleft()
    if jobs:
        lane[client] = jobs  # behind the others
    return job


def _count(lane: Lane) -> int:
    return sum(job.work is not None for jobs in lane.values() for job in jobs)
