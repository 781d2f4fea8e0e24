"""What a child says on its pipes is read as it was meant, and its end is put in words."""

from __future__ import annotations

import io
import logging
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.link.child_crash import crash_of
from app.link.child_process import LogSender, Ready, parse_ready, parse_record, ready_line


@given(st.text(), st.sampled_from((logging.INFO, logging.WARNING, logging.ERROR)))
def test_a_record_of_the_log_crosses_as_one_line(text: str, level: int) -> None:
    stream = io.StringIO()
    LogSender(stream).emit(logging.LogRecord("engine.x", level, "", 0, "%s", (text,), None))
    line = stream.getvalue()
    assert line.endswith("\n") and line.count("\n") == 1
    record = parse_record(line)
    assert record is not None
    assert (record.getMessage(), record.levelno, record.name) == (text, level, "engine.x")


@given(st.text())
def test_what_was_printed_is_no_record(text: str) -> None:
    assert parse_record(text.lstrip("\x1e")) is None
    assert parse_record("\x1e" + text) is None


def test_a_traceback_goes_with_its_record() -> None:
    stream = io.StringIO()
    try:
        raise ValueError("seven")
    except ValueError as error:
        given_to = (type(error), error, error.__traceback__)
    LogSender(stream).emit(logging.LogRecord("app", 40, "", 0, "it failed", (), given_to))
    record = parse_record(stream.getvalue())
    assert record is not None and record.getMessage().endswith("ValueError: seven")


def test_a_child_says_where_it_listens() -> None:
    assert parse_ready(ready_line(Ready(4711, 12))) == Ready(4711, 12)
    for line in ("", "hello", "[1, 2]", '{"port": "x", "pid": 1}', "{}"):
        assert parse_ready(line) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "SIGKILL"),
        (-11, "SIGSEGV"),
        (-6, "SIGABRT"),
        (-int(signal.SIGTERM), "SIGTERM"),
        (-99, "signal 99"),
        (0xC0000005, "0xC0000005"),
        (0xC0000005 - 2**32, "0xC0000005"),
        (3, "exit code 3. Last output: ValueError: seven"),
        (0, "exit code 0"),
    ],
)
def test_the_end_of_a_child_is_put_in_words(code: int, said: str) -> None:
    error = crash_of(code, ["Traceback:", "ValueError: seven", ""], was_ready=True)
    assert error.kind == "ProcessEnded" and said in error.cause
    assert error.remedy


def test_a_child_that_did_not_start_says_its_last_line() -> None:
    error = crash_of(1, ["ImportError: no module named torch"], was_ready=False)
    assert error.kind == "ProcessNotStarted" and "exit code 1." in error.cause
    assert error.cause.endswith("ImportError: no module named torch")
    assert "settings" in error.remedy
    assert "smaller model" in crash_of(-9, [], was_ready=False).remedy
