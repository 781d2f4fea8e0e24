"""Fixtures of every test, and the guards that fail a Qt test which leaves something behind.

Works where pytest-qt and PySide6 are not installed: engine tests also run on machines without a
window system.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import crash_stacks, heap
from tests.crash_stacks import pytest_sessionstart, pytest_terminal_summary  # hooks

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.runner.model_runner import ModelRunner
    from engine.snapshot import TokenBudget

__all__ = ["pytest_sessionstart", "pytest_terminal_summary"]

heap.replace()
# Else every process of the tests, and every one that it starts, compiles all modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads of OpenMP that wait for work sleep: several workers of pytest share the processors, where
# a thread that spins takes the time of the one that it waits for. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# On a machine with a GPU the tests are about the CPU all the same, but where those of GPUs are
# asked for by their folder: `pytest tests/gpu`. (Workers inherit what the first process chose.)
_of_gpus = any("tests/gpu" in Path(word).as_posix() for word in sys.argv)
if "PYTEST_XDIST_WORKER" not in os.environ and not _of_gpus:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # read when Triton is imported, which parts of torch do: before any file of tests is
    os.environ["TRITON_INTERPRET"] = "1"
# The user's own keys are not read, and none of a test's is kept.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"
for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    os.environ.pop(name, None)
# The user's models and token are not there, nor is a proxy between a test and its own server.
os.environ["HF_HOME"] = os.path.join(tempfile.gettempdir(), f"no-hub-of-test-run-{os.getpid()}")
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"

try:
    import hypothesis
except ImportError:
    pass
else:
    for name, examples in (("fast tier", 25), ("both tiers", 100)):
        hypothesis.settings.register_profile(
            name,
            max_examples=examples,
            derandomize=True,
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],  # the machine may be
        )

try:
    from tests.patience import PatientBot
except ImportError:  # no window system, no pytest-qt
    pass
else:

    @pytest.fixture
    def qtbot(qapp: Any, request: pytest.FixtureRequest) -> PatientBot:
        return PatientBot(request)


ALLOWED_QT_WARNINGS = {
    "This plugin does not support propagateSizeHints()",
    "This plugin does not support raise()",
}
"""What the offscreen platform always says."""

LINGERING_THREADS = ("TMonitor", "pydevd")
"""Threads of other libraries that live as long as the process: tqdm's monitor, a debugger."""

ENDING_S = 10.0
"""So long a thread that was told to end may take."""

TASK_S = 120.0
"""So long a thread of `app.link.tasks` may take: nothing interrupts its work, and the window ends
without it. The first import of torch, for one, is slow on a busy machine."""

_folders = itertools.count()

QT_FIXTURES = {"qapp", "qtbot", "qapp_cls", "qtlog", "qtmodeltester"}


def pytest_configure(config: pytest.Config) -> None:
    crash_stacks.pytest_configure(config)
    if "hypothesis" in sys.modules:  # before the first file of tests, whose settings start from it
        is_fast = config.getoption("markexpr") == "not slow" and not _of_gpus
        hypothesis.settings.load_profile("fast tier" if is_fast else "both tiers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that say how many `seconds` they take come first, the longest at the beginning: at the
    end, other processors would wait for them."""
    items.sort(key=lambda item: -_seconds(item))


def _seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("slow")
    return 0.0 if marker is None else float(marker.kwargs.get("seconds", 0.0))


def pytest_unconfigure() -> None:
    heap.restore()
    if "tests.encoders" in sys.modules:
        sys.modules["tests.encoders"].end()


@pytest.fixture(autouse=True, scope="module")
def settled_heap() -> None:
    """Garbage is looked for among what this file's tests have made."""
    heap.settle()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Whoever draws numbers without a seed of its own gets the same in every run, whatever ran
    before."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized():
            torch.manual_seed(0)
        else:  # that one keeps the stack for every kind of device that is not in use: 2 ms
            torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def kept_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's tokenizers encode in the processes of those before."""
    if "engine.text.pool" in sys.modules:
        from tests.encoders import KeptProcess

        monkeypatch.setattr("engine.text.pool.WorkerProcess", KeptProcess)


_budgets: dict[EngineConfig, TokenBudget] = {}


@pytest.fixture(autouse=True)
def one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take as long in one test as in another: the token budget of a configuration is measured
    by the first test that loads it (0.3 s of CPU time)."""
    if "engine.host.loading" not in sys.modules:
        return
    from engine.host import loading
    from engine.host.token_budget import measured_budget

    def measured(config: EngineConfig, make_runner: Callable[[int], ModelRunner]) -> TokenBudget:
        if config not in _budgets:
            _budgets[config] = measured_budget(config, make_runner)
        return _budgets[config]

    monkeypatch.setattr(loading, "measured_budget", measured)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own. That of pytest is named after the test, and first looks through
    those of all tests before."""
    path = tmp_path_factory.getbasetemp() / f"test-{next(_folders)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats and settings of a test go to its own folder, never to the user's."""
    monkeypatch.setenv("INFERDECK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("INFERDECK_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture(autouse=True)
def qt_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a Qt test on a Qt warning, and on a thread, an active timer or a window left behind."""
    if not QT_FIXTURES & set(request.fixturenames) or "PySide6.QtCore" not in sys.modules:
        yield
        return
    from app.main.garbage import GarbageCollector

    collector = GarbageCollector(request.getfixturevalue("qapp"))
    collector.start()
    warnings = _QtWarnings()
    threads = set(threading.enumerate())
    timers, windows, unowned = _active_timers(), _windows(), set(_unowned())
    with warnings:
        yield
        leaks = _leaks(threads, timers, windows)
    _delete_unowned(unowned)
    collector.stop()
    collector.look()
    collector.deleteLater()
    problems = [f"Qt warning: {text}" for text in warnings.unexpected] + leaks
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


class _QtWarnings:
    """Collects Qt's messages from warning upwards, passing each on to the handler before."""

    def __init__(self) -> None:
        self.unexpected: list[str] = []
        self._before: Any = None

    def __enter__(self) -> None:
        from PySide6.QtCore import qInstallMessageHandler

        self._before = qInstallMessageHandler(self._on_message)

    def __exit__(self, *exc: object) -> None:
        from PySide6.QtCore import qInstallMessageHandler

        qInstallMessageHandler(self._before)

    def _on_message(self, kind: Any, context: Any, text: str) -> None:
        from PySide6.QtCore import QtMsgType

        serious = (QtMsgType.QtWarningMsg, QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg)
        if kind in serious and text not in ALLOWED_QT_WARNINGS:
            self.unexpected.append(text)
        elif self._before is not None:
            self._before(kind, context, text)


def _leaks(threads: set[threading.Thread], timers: set[int], windows: set[int]) -> list[str]:
    """What is there now and was not before, in words. A thread has ENDING_S to end, a task's
    TASK_S."""
    from PySide6.QtCore import QCoreApplication, QEvent

    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    problems: list[str] = []
    if _active_timers() - timers or _windows() - windows:
        gc.collect()  # what only a reference cycle keeps is not a leak
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        problems += [f"leaked timer: {_timer_name(t)}" for t in _active_timers() - timers]
        problems += [f"leaked window: {_window_name(w)}" for w in _windows() - windows]
    if _new_threads(threads):
        gc.collect()  # a tokenizer ends its threads when nothing refers to it
    began = time.monotonic()
    while left := _new_threads(threads):
        longest = max(TASK_S if thread.name == "task" else ENDING_S for thread in left)
        if time.monotonic() - began >= longest:
            break
        time.sleep(0.01)
    return problems + [f"leaked thread: {thread.name}" for thread in left]


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    if "tests.encoders" in sys.modules:
        before = before | sys.modules["tests.encoders"].threads()
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before
        and not isinstance(thread, threading._DummyThread)
        and not thread.name.startswith(LINGERING_THREADS)
        and type(thread).__name__ not in LINGERING_THREADS
    ]


def _timers() -> dict[int, Any]:
    import shiboken6
    from PySide6.QtCore import QTimer

    return {
        shiboken6.getCppPointer(o)[0]: o
        for o in shiboken6.getAllValidWrappers()
        if isinstance(o, QTimer) and o.isActive()
    }


def _active_timers() -> set[int]:
    return set(_timers())


def _timer_name(pointer: int) -> str:
    timer = _timers()[pointer]
    parent = timer.parent()
    return f"{timer.interval()} ms, parent {type(parent).__name__} {timer.objectName()}".strip()


def _top_level() -> dict[int, Any]:
    import shiboken6
    from PySide6.QtWidgets import QApplication

    if not isinstance(QApplication.instance(), QApplication):
        return {}
    return {
        shiboken6.getCppPointer(w)[0]: w
        for w in QApplication.topLevelWidgets()
        if w.parent() is None and w.metaObject().className() != "QTipLabel"
    }


def _unowned() -> dict[int, Any]:
    """Parts of the application that have no parent: Python alone keeps them."""
    import shiboken6
    from PySide6.QtCore import QObject

    return {
        shiboken6.getCppPointer(o)[0]: o
        for o in shiboken6.getAllValidWrappers()
        if isinstance(o, QObject) and type(o).__module__.startswith("app.") and o.parent() is None
    }


def _delete_unowned(before: set[int]) -> None:
    """A connection keeps the function that it calls, which garbage collection does not see: an
    object whose signal calls a function that refers to it, and with it a whole window, would
    live, and be looked through, until the last test."""
    from PySide6.QtCore import QCoreApplication, QEvent

    for pointer, made in _unowned().items():
        if pointer not in before:
            made.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def _windows() -> set[int]:
    return set(_top_level())


def _window_name(pointer: int) -> str:
    widget = _top_level()[pointer]
    return f"{type(widget).__name__} {widget.objectName()} {widget.windowTitle()!r}".strip()
