"""Who is encoded next: short texts never wait for long ones, clients take turns."""

from __future__ import annotations

import threading

import pytest

from engine.text.lanes import SHORT_CHARACTERS, FairQueue, Job
from engine.text.work import Chat, Check, Text

LONG = "x" * (SHORT_CHARACTERS + 1)


def put(jobs: FairQueue, client: str, *texts: str) -> list[Job]:
    made = [Job(Text(text), client) for text in texts]
    for job in made:
        jobs.put(job)
    return made


def taken(jobs: FairQueue, count: int, *, only_short: bool = False) -> list[str]:
    found = [jobs.take(only_short=only_short) for _ in range(count)]
    return [f"{job.client}{len(job.work.text) % 10}" for job in found if job is not None]  # type: ignore[union-attr]


def test_clients_take_turns() -> None:
    jobs = FairQueue()
    put(jobs, "a", "1", "12", "123")
    put(jobs, "b", "1", "12")
    put(jobs, "c", "1")
    assert taken(jobs, 6) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_one_thread_takes_short_texts_only() -> None:
    jobs = FairQueue()
    put(jobs, "a", LONG, LONG)
    put(jobs, "b", "1")
    assert taken(jobs, 1, only_short=True) == ["b1"]
    end = len(LONG) % 10
    assert taken(jobs, 2) == [f"a{end}", f"a{end}"]


def test_the_length_of_a_chat_is_that_of_its_messages() -> None:
    half = {"role": "user", "content": "x" * (SHORT_CHARACTERS // 2 + 1)}
    assert Job(Chat([half])).is_short
    assert not Job(Chat([half, half])).is_short
    assert Job(None).is_short and Job(Check("", 10**9)).is_short


@pytest.mark.parametrize(
    ("free", "texts", "more"),
    [
        ([], ["1"], [True]),
        ([True], ["1"], [False]),
        ([True], [LONG], [True]),  # a thread for short texts is no help
        ([True, False], [LONG, "1", "1"], [False, False, True]),
    ],
)
def test_it_says_when_one_more_thread_would_help(
    free: list[bool], texts: list[str], more: list[bool]
) -> None:
    jobs = FairQueue()
    for only_short in free:
        jobs.add_free(only_short=only_short)
    assert [jobs.put(Job(Text(text))) for text in texts] == more


def test_closing_cancels_what_waits_and_ends_who_waits() -> None:
    jobs = FairQueue()
    ends: list[object] = ["not yet"]
    waiting = threading.Thread(target=lambda: ends.append(jobs.take(only_short=True)))
    waiting.start()
    (job,) = put(jobs, "a", LONG)
    jobs.close()
    waiting.join(10)
    assert ends == ["not yet", None]
    assert job.future.cancelled()
    late = Job(Text("1"))
    assert not jobs.put(late) and late.future.cancelled()
