"""The kernels that a self-contained build of the program brings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.cpu import build

ALL_FLAGS = sorted({flag for needed in build.PROCESSORS.values() for flag in needed.split()})


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prebuilt")
    for processor in build.PROCESSORS:
        (folder / build.prebuilt_name(processor)).touch()
    return folder


@given(st.sets(st.sampled_from(ALL_FLAGS)))
def test_a_processor_gets_the_best_library_that_it_can_run(
    libraries: Path, flags: set[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "PREBUILT", libraries)
        patch.setattr(build, "_processor_flags", lambda: " ".join(flags))
        found = build._prebuilt()
    fitting = [one for one, needed in build.PROCESSORS.items() if set(needed.split()) <= flags]
    assert found == (libraries / build.prebuilt_name(fitting[0]) if fitting else None)


def test_without_a_compiler_the_prebuilt_library_is_used(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PREBUILT", libraries)
    monkeypatch.setattr(build, "machine_problem", lambda: "")
    monkeypatch.setattr(build, "_processor_flags", lambda: " ".join(ALL_FLAGS))
    monkeypatch.setattr(build, "_compiler_path", lambda: None)
    path, compiler = build.compiled()
    assert path.name == build.prebuilt_name(next(iter(build.PROCESSORS)))
    assert compiler.origin == "prebuilt"
    build.is_expected.cache_clear()
    assert build.is_expected()
    build.is_expected.cache_clear()
