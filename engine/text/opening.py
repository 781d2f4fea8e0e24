"""From a checkpoint folder to its tokenizer, by way of transformers."""

from __future__ import annotations

import errno
import stat
import threading
from collections.abc import Hashable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from engine.errors import CheckpointError, is_out_of_memory, is_panic
from engine.text.files import check_files
from engine.text.pool import EncoderPool
from engine.text.work import MAX_BYTES, REMEDY, Check, Source, reason_of

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
_READ = frozenset((
    *_TOKENIZER_FILES, "config.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
    "tokenizer_config.json",
))  # fmt: skip
"""What transformers reads, whatever the class."""
_KINDS = frozenset({".json", ".txt", ".model", ".jinja", ".tiktoken"})
"""Of the files that a tokenizer may be made of."""


_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Opening:
    """The tokenizer of a folder, on its way. Where tokenizer.json describes it, a process of its
    own reads that first, from the constructor on: a hostile one may take all memory, or never end.
    (What other files hold cannot: words, and which class of transformers reads them.)"""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a folder without a tokenizer."""
        path = path.absolute()  # for errors
        size = _check_sizes(path)
        check_files(path)
        self.path = path
        self.pool = EncoderPool()
        self._checked: Future[list[int]] | None = None
        if (path / "tokenizer.json").is_file():
            self._checked = self.pool.check(Check(str(path), size))

    def read(self) -> Any:
        """transformers' tokenizer. Raises CheckpointError, and closes the pool after any error."""
        try:
            import engine.lazy_transformers  # noqa: F401 - takes seconds, while the other reads

            if self._checked is not None:
                self._checked.result()
            return read_folder(self.path)
        except BaseException:
            self.pool.close()
            raise


def read_folder(path: Path) -> Any:
    """transformers' tokenizer of a folder. Raises CheckpointError where it cannot be read."""
    from engine.lazy_transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
        if not _works(tokenizer) and (path / "tokenizer.json").is_file():
            # The class of the model's family cannot read every kind of tokenizer.json.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
        works = _works(tokenizer)
    except BaseException as error:  # a damaged file raises Exception, or panics in Rust
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        if (shortage := _shortage(error)) is not None:
            raise shortage from None
        raise CheckpointError(
            f"Cannot read the tokenizer in {path}: {reason_of(error)}.", REMEDY
        ) from None
    if not works:
        raise CheckpointError(f"The tokenizer in {path} has an empty vocabulary.", REMEDY)
    return tokenizer


def _shortage(error: BaseException | None) -> BaseException | None:
    """The lack of memory or of file descriptors that caused an error."""
    for _ in range(100):  # an error may be its own cause
        if error is None or is_out_of_memory(error) or getattr(error, "errno", 0) in _SHORTAGES:
            return error
        error = error.__cause__ or error.__context__
    return None


def _works(tokenizer: Any) -> bool:
    return len(tokenizer) > len(tokenizer.all_special_ids) and bool(tokenizer.encode("a"))


def make_source(tokenizer: Any, path: Path) -> Source:
    """What another process needs to encode as `tokenizer` does."""
    template: Any = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    backend = encoding_backend(tokenizer)
    return Source(
        tokenizer=b"" if backend is None else backend.to_str().encode(),
        folder=str(path),
        splits_special=bool(getattr(tokenizer, "split_special_tokens", False)),
        template=template or None,
        special_tokens=dict(tokenizer.special_tokens_map),
    )


def encoding_backend(tokenizer: Any) -> Any:
    """The object in Rust that alone does what `encode` does; None if there is more to it."""
    from engine.lazy_transformers import PreTrainedTokenizerFast as Fast

    kind = type(tokenizer)
    is_plain = issubclass(kind, Fast) and all(
        getattr(kind, name) is getattr(Fast, name) for name in ("encode", "_encode_plus")
    )
    return tokenizer.backend_tokenizer if is_plain else None


def _check_sizes(path: Path) -> int:
    """Bytes of the files that a tokenizer may be made of."""
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        # Without this check transformers may build an empty tokenizer from config.json alone.
        raise CheckpointError(
            f"{path} has no tokenizer (found none of {', '.join(_TOKENIZER_FILES)}).", REMEDY
        )
    total = 0
    for file in _files(path):
        found = file.stat()
        is_read = file.name in _READ or file.suffix not in (".json", ".txt")
        if not is_read and (found.st_size > MAX_BYTES or not stat.S_ISREG(found.st_mode)):
            continue  # data or a log beside the model
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{file} is not a regular file.", REMEDY)
        if found.st_size > MAX_BYTES:
            raise CheckpointError(
                f"{file} has {found.st_size:,} bytes; the limit is {MAX_BYTES:,}.", REMEDY
            )
        total += found.st_size
    return total


def _files(path: Path) -> list[Path]:
    """Those of a tokenizer. (An index of weights is none, and may be large.)"""
    return sorted(
        file
        for file in path.iterdir()
        if file.suffix in _KINDS and file.exists() and not file.name.endswith(".index.json")
    )


class Shared:
    """Tokenizers in use, by the files that they were read from. Any thread may use it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._lock = threading.RLock()

    def get(self, path: Path) -> Any:
        with self._lock:
            return self._known.get(_state(path))

    def put(self, path: Path, tokenizer: Any) -> None:
        with self._lock:
            self._known[_state(path)] = tokenizer


def _state(path: Path) -> Hashable:
    """Another one when a file of the tokenizer changes."""
    try:
        files = [(file.name, file.stat()) for file in _files(path)]
        return str(path.resolve()), *((name, s.st_mtime_ns, s.st_size) for name, s in files)
    except OSError:
        return str(path)
