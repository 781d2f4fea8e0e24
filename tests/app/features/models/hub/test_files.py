"""Which files of a repository are downloaded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.models.hub import DESCRIPTIONS, RepoFile, choose_files
from app.features.models.hub_errors import HubError
from tests.figures import numbers


def repo(*names: str) -> list[RepoFile]:
    return [RepoFile(name, 10 * (i + 1), f"{i:040x}") for i, name in enumerate(names)]


def names(files: tuple[RepoFile, ...]) -> set[str]:
    return {file.name for file in files}


SOME = st.lists(
    st.sampled_from([
        *DESCRIPTIONS, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "consolidated.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "q4.gguf",
        "onnx/model.safetensors", "picture.png", "README.md", "LICENSE",
    ]),
    unique=True,
)  # fmt: skip


@given(SOME)
def test_every_file_is_either_wanted_or_skipped_and_weights_are_safetensors(
    some: list[str],
) -> None:
    files = repo("config.json", "model.safetensors", *(n for n in some if n != "config.json"))
    choice = choose_files("a/b", files)
    assert names(choice.wanted) | names(choice.skipped) == names(tuple(files))
    assert not names(choice.wanted) & names(choice.skipped)
    assert not any(n.endswith((".bin", ".gguf", ".png")) or "/" in n for n in names(choice.wanted))
    assert choice.size == sum(f.size for f in choice.wanted) >= choice.weights > 0
    assert [f.size for f in choice.wanted] == sorted(f.size for f in choice.wanted)


def test_what_is_left_out_is_said_by_kind() -> None:
    choice = choose_files(
        "a/b", repo("config.json", "model.safetensors", "a.bin", "b.bin", "q.gguf", "cat.png")
    )
    *kinds, rest = choice.skipped_text.split(", ")
    assert kinds == ["2 .bin", "1 .gguf"] and numbers(rest) == [1]
    assert choose_files("a/b", repo("config.json", "model.safetensors")).skipped_text == ""


def test_weights_that_are_there_twice_are_downloaded_once() -> None:
    choice = choose_files(
        "a/b", repo("config.json", "consolidated.safetensors", "model-00001-of-00001.safetensors")
    )
    assert "consolidated.safetensors" in names(choice.skipped)
    assert choice.skipped_text == "1 .safetensors"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (("tiny.gguf",), "GGUF"),
        (("config.json", "pytorch_model.bin"), "(1 .bin)"),
        (("model.safetensors",), "no config.json"),
        (("config.json", "adapter_model.safetensors"), "1 .safetensors"),
        ((), "no files"),
    ],
)
def test_what_holds_no_model_is_refused_with_what_it_holds(
    there: tuple[str, ...], said: str
) -> None:
    with pytest.raises(HubError) as refused:
        choose_files("acme/x", repo(*there))
    assert "acme/x" in refused.value.cause and said in refused.value.cause
    assert refused.value.remedy
