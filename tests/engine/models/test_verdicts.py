"""The smoke test runs in a process of its own, once: its results are on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.errors import LoadCancelled, UnsupportedModelError
from engine.kernels.cpu.library_cache import CACHE_VARIABLE, cache_folder
from engine.limited_process import LimitExceeded, ProcessCrashed, TargetFailed
from engine.models import smoke_test, verdicts
from engine.models.smoke_test import TESTED, check_architecture
from engine.models.verdicts import Verdict, key_of, record, recorded
from tests.engine.models.test_smoke_test import build


class Runs:
    """In the place of another process: returns or raises what it is told, and counts."""

    def __init__(self, outcome: Any = None) -> None:
        self.outcome, self.calls, self.limits = outcome, 0, {}

    def __call__(self, target: Callable[..., Any], *args: Any, **limits: Any) -> Any:
        self.calls += 1
        self.limits = limits
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of results alone: kernels that were compiled on this machine are not compiled again."""

    def folder(name: str) -> Path:
        with pytest.MonkeyPatch.context() as own:
            own.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
            return cache_folder(name)

    monkeypatch.setattr(verdicts, "cache_folder", folder)
    return tmp_path / "cache" / "smoke-tests"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(smoke_test, "run_limited", made)
    return made


@pytest.mark.slow
def test_an_untested_type_passes_in_a_process_of_its_own(cache: Path) -> None:
    check_architecture(*build("OlmoConfig"))
    (file,) = cache.iterdir()
    assert recorded(file.name) == Verdict(file.name, None)


@pytest.mark.slow
def test_a_crash_is_a_refusal(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(smoke_test, "judge", crash)
    with pytest.raises(UnsupportedModelError, match="SIGSEGV"):
        check_architecture(*build("OlmoConfig"))
    assert list(cache.iterdir()) == []


def crash(path: str, config_json: str) -> None:
    import ctypes

    ctypes.string_at(0)


@pytest.mark.parametrize("outcome", [None, "the reason 17"])
def test_a_result_is_used_again(runs: Runs, outcome: str | None) -> None:
    runs.outcome = outcome
    for _ in range(3):
        if outcome is None:
            check_architecture(*build("OlmoConfig"))
        else:
            with pytest.raises(UnsupportedModelError, match=r"OlmoForCausalLM.*17"):
                check_architecture(*build("OlmoConfig"))
    assert runs.calls == 1
    assert runs.limits["max_bytes"] >= 2**32 and 10 < runs.limits["seconds"] < 600
    check_architecture(*build("OlmoConfig", num_hidden_layers=30)) if outcome is None else None
    assert runs.calls == 1  # the same when shrunk
    if outcome is None:
        check_architecture(*build("OlmoConfig", hidden_size=32))
        assert runs.calls == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LimitExceeded("limit of 17 s"), "17"),
        (ProcessCrashed("signal 18"), "18"),
        (TargetFailed("OSError", "19"), "OSError.*19"),
    ],
)
def test_what_may_be_the_machine_is_tried_again(runs: Runs, error: Exception, words: str) -> None:
    runs.outcome = error
    for count in (1, 2):
        with pytest.raises(UnsupportedModelError, match=words):
            check_architecture(*build("OlmoConfig"))
        assert runs.calls == count


def test_a_cancel_ends_it(runs: Runs) -> None:
    def cancel() -> None:
        raise LoadCancelled("cancelled")

    check_architecture(*build("OlmoConfig"), cancel)
    assert runs.limits["check"] is cancel


@pytest.mark.parametrize(
    "content", [b"", b"{", b'"text"', b'{"key": "x", "reason": null}', b"\xff"]
)
def test_a_damaged_file_is_ignored(runs: Runs, cache: Path, content: bytes) -> None:
    check_architecture(*build("OlmoConfig"))
    (file,) = cache.iterdir()
    file.write_bytes(content)
    check_architecture(*build("OlmoConfig"))
    assert runs.calls == 2
    assert recorded(file.name) == Verdict(file.name, None)


def test_no_cache_is_no_error(runs: Runs, cache: Path) -> None:
    cache.parent.touch()
    check_architecture(*build("OlmoConfig"))
    check_architecture(*build("OlmoConfig"))
    assert runs.calls == 2


def test_the_key_depends_on_versions_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of("a", "b"), key_of("ab", ""), key_of("a", "c")}
    versions = verdicts._versions()
    assert transformers.__version__ in versions
    for place in range(len(versions)):
        changed = (*versions[:place], "other", *versions[place + 1 :])
        monkeypatch.setattr(verdicts, "_versions", lambda changed=changed: changed)
        keys.add(key_of("a", "b"))
    assert len(keys) == 3 + len(versions)


def test_a_tested_type_needs_no_process(
    runs: Runs, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke_test, "TESTED_WITH", {transformers.__version__})
    config, model_class = build("LlamaConfig")
    assert config.model_type in TESTED
    check_architecture(config, model_class)
    assert not cache.exists()  # nothing was computed
    monkeypatch.setattr(smoke_test, "TESTED_WITH", {"another version"})
    check_architecture(config, model_class)
    assert runs.calls == 0 and len(list(cache.iterdir())) == 1


def test_a_configuration_that_cannot_be_shrunk_is_refused(runs: Runs) -> None:
    config = transformers.Llama4Config()  # it has no layers of its own
    with pytest.raises(UnsupportedModelError, match="num_hidden_layers"):
        check_architecture(config, transformers.Llama4ForCausalLM)
    assert runs.calls == 0


def test_a_file_appears_whole(cache: Path) -> None:
    key = key_of("x")
    record(Verdict(key, "one"))
    record(Verdict(key, None))
    assert recorded(key) == Verdict(key, None)
    assert [file.name for file in cache.iterdir()] == [key]
    assert recorded(key_of("y")) is None
