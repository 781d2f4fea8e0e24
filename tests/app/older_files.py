"""A copy of the files that version 0.1 wrote: `tests/fixtures/version_0_1`. How they were
made is in `tests/fixtures/README.md`.

Where modules move, imports of the tests that read it follow; what they expect stays.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app import paths
from app.features.chat.conversation import Conversation
from app.storage import ChatStore
from engine.snapshot import PackedTokens

OLDER = Path(__file__).parents[1] / "fixtures" / "version_0_1"
ANSWER = "<think>Blocks of a cache.</think>\n\nPaging keeps the cache in **blocks**."
NOTES = "# Notes\n\n```python\nprint('größe')\n```\n"
CHOSEN = {
    "max_num_seqs": 64, "kv_cache_dtype": "k=int8,v=fp8", "quantization": "int4",
    "quantization_group_size": 64, "speculative_method": "ngram", "num_speculative_tokens": 6,
    "watermark": 0.1, "enable_prefix_caching": False, "max_model_len": 1024,
    "kv_cache_memory_bytes": 2**27, "gpu_layers": "3", "device": "cpu",
}  # fmt: skip
"""The settings that were chosen for /models/tiny, and saved as a profile."""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy whose folders "data" and "config" are those of the program in this test."""
    shutil.copytree(OLDER, tmp_path, dirs_exist_ok=True)
    return tmp_path


@contextmanager
def chats() -> Iterator[ChatStore]:
    store = ChatStore(paths.chats_file())
    try:
        yield store
    finally:
        store.close()


def conversation(store: ChatStore, title: str) -> Conversation:
    (record,) = [one for one in store.conversations() if one.title == title]
    found = Conversation.from_record(record)
    found.load(store.messages(record.id))
    return found


def plain(value: Any) -> Any:
    """A record as JSON has it: fields by name."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(part) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value))
    if isinstance(value, (tuple, list, PackedTokens)):
        return list(map(plain, value))
    return value


GONE = {
    "tensor_parallel_size", "pipeline_parallel_size", "num_ranks", "num_stages", "exchange_s",
}  # fmt: skip
"""Fields that nothing reads any more. Programs of then have defaults for them."""
STEP_OF_THEN = 17
"""Fields of a step's array, of which the last is gone."""


def assert_holds(found: Any, told: Any, where: str = "") -> None:
    """Everything that was told then is there now; fields that came later may be there too."""
    if isinstance(told, dict):
        told = {name: part for name, part in told.items() if name not in GONE}
        assert isinstance(found, dict) and told.keys() <= found.keys(), where
        for name, part in told.items():
            assert_holds(found[name], part, f"{where}.{name}")
    elif isinstance(told, list):
        assert isinstance(found, list) and len(found) == len(told), where
        for place, (one, other) in enumerate(zip(found, told, strict=True)):
            assert_holds(one, other, f"{where}[{place}]")
    else:
        assert found == told and type(found) is type(told), where


def assert_goes_on(sent: Any, then: Any, where: str = "") -> None:
    """What is sent now is what was sent then, maybe with more behind it: a program of then reads
    it."""
    if isinstance(then, dict):
        then = {name: part for name, part in then.items() if name not in GONE}
        assert isinstance(sent, dict) and then.keys() <= sent.keys(), where
        for name, part in then.items():
            assert_goes_on(sent[name], part, f"{where}.{name}")
    elif isinstance(then, list):
        if len(then) == STEP_OF_THEN and isinstance(then[-1], float):
            then = then[:-1]  # exchange_s
        assert isinstance(sent, list) and len(sent) >= len(then), where
        for place, part in enumerate(then):
            assert_goes_on(sent[place], part, f"{where}[{place}]")
    else:
        assert sent == then, where
