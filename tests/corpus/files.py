"""What stands in the place of a file: a pipe, a folder, a link, nothing, or damaged JSON."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.commands import generate
from tests.corpus.configs import rewrite

INDEX = "model.safetensors.index.json"
DEPTH = 100_000

OPTIONAL = ("generation_config.json", "tokenizer_config.json")
"""A model may do without."""
JSON_FILES = ("config.json", "tokenizer.json", *OPTIONAL, INDEX)
FILES = (*JSON_FILES[:-1], "model.safetensors")


def _socket(file: Path) -> None:
    here = Path.cwd()
    os.chdir(file.parent)  # the name of a socket is at most 107 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(file.name)
    os.chdir(here)


def _loop(file: Path) -> None:
    file.symlink_to(file.name)


def _outside(file: Path) -> None:
    """As in the cache of the Hub: a link to the content elsewhere."""
    blob = file.parent.parent / "blobs" / file.name
    blob.parent.mkdir()
    shutil.move(blob.parent.parent / "moved", blob)
    file.symlink_to(blob)


PLACES: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda file: None,
    "folder": lambda file: file.mkdir(),
    "fifo": lambda file: os.mkfifo(file),
    "socket": _socket,
    "link_to_nothing": lambda file: file.symlink_to("nowhere"),
    "link_to_itself": _loop,
    "link_to_zeros": lambda file: file.symlink_to("/dev/zero"),
    "link_to_null": lambda file: file.symlink_to("/dev/null"),
    "link_to_fifo": lambda file: (os.mkfifo(file.parent / "pipe"), file.symlink_to("pipe")),
    "link_to_memory": lambda file: file.symlink_to("/proc/self/mem"),
    "empty": lambda file: file.touch(),
    "sparse": lambda file: (file.touch(), os.truncate(file, 2**40)),
}
"""In place of the file, which is gone."""


def _before_end(text: bytes) -> Callable[[bytes], bytes]:
    return lambda raw: raw.rstrip().removesuffix(b"}") + b", " + text + b"}"


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], Expected]] = {
    "cut": (lambda raw: raw[: len(raw) // 2], "refused"),
    "byte_order_mark": (lambda raw: b"\xef\xbb\xbf" + raw, "sound"),
    "utf-16": (lambda raw: raw.decode().encode("utf-16"), "refused"),
    "not_utf-8": (_before_end(b'"x": "\xff\xfe"'), "refused"),
    "list": (lambda raw: b"[" + raw + b"]", "refused"),
    "text": (lambda raw: b'"text"', "refused"),
    "number": (lambda raw: b"5", "refused"),
    "null": (lambda raw: b"null", "refused"),
    "zeros": (lambda raw: bytes(len(raw)), "refused"),
    "html": (lambda raw: b"<!DOCTYPE html><html>404</html>", "refused"),
    "lfs": (lambda raw: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "refused"),
    "deep_list": (_before_end(b'"x": ' + b"[" * DEPTH + b"]" * DEPTH), "refused"),
    "deep_object": (_before_end(b'"x": ' + b'{"a":' * DEPTH + b"1" + b"}" * DEPTH), "refused"),
    "deep_open": (lambda raw: b'{"a":' * DEPTH, "refused"),
    "huge_number": (_before_end(b'"x": ' + b"9" * 10_000), "sound"),
    "huge_exponent": (_before_end(b'"x": 1e999999999'), "sound"),
    "nan": (_before_end(b'"x": NaN'), "sound"),
    "lone_surrogate": (_before_end(b'"x": "\\ud800"'), "sound"),
    "zero_byte": (_before_end(b'"x": "a\\u0000b"'), "sound"),
    "same_key_twice": (lambda raw: raw.replace(b"{", b'{"model_type": "x",', 1), "sound"),
    "trailing_comma": (lambda raw: raw.rstrip().removesuffix(b"}") + b",}", "refused"),
    "blanks": (lambda raw: raw + b" " * 300_000_000, "sound"),
    "many_keys": (_before_end(b",".join(b'"k%d":0' % i for i in range(300_000))), "sound"),
}

WEIGHT_MAPS: dict[str, tuple[Callable[[dict], Any], Expected]] = {
    "null": (lambda names: None, "refused"),
    "list": (lambda names: list(names), "refused"),
    "text": (lambda names: "model.safetensors", "refused"),
    "5": (lambda names: 5, "refused"),
    "empty": (lambda names: {}, "refused"),
    "numbers": (lambda names: dict.fromkeys(names, 5), "refused"),
    "nulls": (lambda names: dict.fromkeys(names), "refused"),
    "lists": (lambda names: {name: [file] for name, file in names.items()}, "refused"),
    "objects": (lambda names: {name: {} for name in names}, "refused"),
    "one_number": (lambda names: {**names, "x": 5}, "refused"),
    "empty_names": (lambda names: dict.fromkeys(names, ""), "refused"),
    "folder": (lambda names: dict.fromkeys(names, "."), "refused"),
    "parent": (lambda names: {n: f"../outside/{f}" for n, f in names.items()}, "refused"),
    "parent_of_child": (lambda names: {n: f"a/../../x/{f}" for n, f in names.items()}, "refused"),
    "absolute": (lambda names: dict.fromkeys(names, "/etc/passwd"), "refused"),
    "device": (lambda names: dict.fromkeys(names, "/dev/zero"), "refused"),
    "zero_byte": (lambda names: {n: f"{f}\0" for n, f in names.items()}, "refused"),
    "long_name": (lambda names: dict.fromkeys(names, "x" * 5000), "refused"),
    "backslashes": (lambda names: {n: f"..\\{f}" for n, f in names.items()}, "refused"),
    "surrogate": (lambda names: dict.fromkeys(names, "\ud800"), "refused"),
    "missing_file": (lambda names: {**names, "x": "model-9.safetensors"}, "refused"),
    "missing_tensor": (lambda names: {**names, "x": next(iter(names.values()))}, "refused"),
    "wrong_file": (lambda names: dict(zip(names, reversed(names.values()), strict=True)), "sound"),
    "config": (lambda names: dict.fromkeys(names, "config.json"), "refused"),
    "itself": (lambda names: dict.fromkeys(names, INDEX), "refused"),
    "part": (lambda names: dict(list(names.items())[:3]), "sound"),
    "many": (lambda names: {**names, **{f"x{i}": f"f{i}" for i in range(50_000)}}, "refused"),
    "shards_in_folder": (lambda names: {n: f"sub/{f}" for n, f in names.items()}, "refused"),
    "without": (lambda names: ..., "refused"),
}

OTHERS_NAMED = ("missing_file", "zero_byte", "long_name", "config", "part", "shards_in_folder")
"""The message names the files or tensors that are missing, not the index."""


def cases() -> Iterator[Case]:
    for name in FILES:
        for place, make in PLACES.items():
            harmless = name in OPTIONAL
            expected: Expected = "sound" if harmless else "refused"
            if harmless and place == "nothing":
                expected = "same"
            yield Case(
                "folder", f"place/{name}/{place}", generate, partial(_replace, name, make),
                "llama", expected, () if harmless or place == "nothing" else (name,),
            )  # fmt: skip
        yield Case("folder", f"place/{name}/link_outside", generate, partial(_move_outside, name),
                   "llama", "same")  # fmt: skip
        yield Case(
            "folder", f"place/{name}/unreadable", generate, partial(_hide, name), "llama",
            "refused", (name,), unprivileged=True,
        )  # fmt: skip
    for name in JSON_FILES:
        control = "sharded" if name == INDEX else "llama"
        for damage, (change, wanted) in DAMAGE.items():
            # what is in this file may go unread
            expected = "sound" if name in OPTIONAL else wanted
            yield Case(
                "folder", f"json/{name}/{damage}", generate, partial(_damage, name, change),
                control, expected, () if name in OPTIONAL else (name,),
            )  # fmt: skip
    for key, (change_map, wanted) in WEIGHT_MAPS.items():
        yield Case(
            "folder", f"index/{key}", generate, partial(_map, change_map), "sharded", wanted,
            () if key in OTHERS_NAMED else (INDEX,),
        )  # fmt: skip
    yield Case("folder", "index/unchanged", generate, control="sharded", expected="same")
    for key, (change_folder, wanted) in FOLDERS.items():
        yield Case("folder", f"folder/{key}", generate, change_folder, "sharded", wanted)


def _replace(name: str, make: Callable[[Path], Any], folder: Path) -> None:
    (folder / name).unlink()
    make(folder / name)


def _move_outside(name: str, folder: Path) -> None:
    shutil.move(folder / name, folder.parent / "moved")
    _outside(folder / name)


def _hide(name: str, folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o755)
    (folder / name).chmod(0)


def _damage(name: str, change: Callable[[bytes], bytes], folder: Path) -> None:
    file = folder / name
    file.write_bytes(change(file.read_bytes()))


def _map(change: Callable[[dict], Any], folder: Path) -> None:
    def changed(values: dict[str, Any]) -> dict[str, Any]:
        weight_map = change(values.pop("weight_map"))
        return values if weight_map is ... else {**values, "weight_map": weight_map}

    for outside in (folder.parent / "outside", folder.parent / "x"):
        shutil.copytree(folder, outside)
    (folder / "a").mkdir()
    rewrite(folder / INDEX, changed)


def _remove(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            for file in folder.glob(name):
                file.unlink()

    return change


def _swap_shards(folder: Path) -> None:
    first, second, *_ = sorted(folder.glob("model-*.safetensors"))
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)


def _same_twice(folder: Path) -> None:
    """A second file has a tensor of the first under the same name, with other content."""
    from tests.corpus.weights import Weights

    file = min(folder.glob("model-*.safetensors"))
    shutil.copy(file, folder / "model-extra.safetensors")
    weights = Weights(folder, "model-extra.safetensors")
    weights.data = bytearray(len(weights.data))
    weights.save()
    (folder / INDEX).unlink()


FOLDERS: dict[str, tuple[Callable[[Path], Any], Expected]] = {
    "empty": (_remove("*"), "refused"),
    "no_weights": (_remove("*.safetensors"), "refused"),
    "no_index": (_remove(INDEX), "same"),
    "no_index_one_missing": (_remove(INDEX, "model-00001-of-*"), "refused"),
    "one_missing": (_remove("model-00002-of-*"), "refused"),
    "swapped_shards": (_swap_shards, "sound"),
    "same_tensor_twice": (_same_twice, "refused"),
    "only_pickles": (
        lambda folder: [f.rename(f.with_suffix(".bin")) for f in folder.glob("*.safetensors")],
        "refused",
    ),
    "only_gguf": (lambda folder: (_remove("*")(folder), (folder / "m.gguf").touch()), "refused"),
    "code_beside": (
        lambda folder: (folder / "sitecustomize.py").write_text("raise SystemExit(5)"), "same"
    ),
    "hidden_files": (lambda folder: (folder / "._model.safetensors").write_bytes(b"x"), "same"),
    "other_weights": (lambda folder: (folder / "adapter.safetensors").write_bytes(b"x"), "same"),
    "is_file": (lambda folder: (shutil.rmtree(folder), folder.touch()), "refused"),
    "is_fifo": (lambda folder: (shutil.rmtree(folder), os.mkfifo(folder)), "refused"),
    "is_nothing": (lambda folder: shutil.rmtree(folder), "refused"),
    "is_link_to_itself": (
        lambda folder: (shutil.rmtree(folder), folder.symlink_to(folder)), "refused"
    ),
    "is_device": (lambda folder: (shutil.rmtree(folder), folder.symlink_to("/dev")), "refused"),
    "is_proc": (lambda folder: (shutil.rmtree(folder), folder.symlink_to("/proc/self")), "refused"),
    "bad_reference": (
        lambda folder: (
            _remove("*")(folder), (folder / "snapshots").mkdir(), (folder / "refs").mkdir(),
            (folder / "refs" / "main").write_bytes(b"\xff../../.."),
        ), "refused",
    ),
    "reference_out": (
        lambda folder: (
            shutil.copytree(folder, folder.parent / "outside"), _remove("*")(folder),
            (folder / "snapshots").mkdir(), (folder / "refs").mkdir(),
            (folder / "refs" / "main").write_text("../../outside"),
        ), "refused",
    ),
}  # fmt: skip
