"""Who may import whom, read from the source of every file.

    app -> widgets, engine, resources
    widgets -> engine.snapshot, engine.units
    engine, resources -> nothing of ours

Inside app and engine the rooms are ordered: a room imports rooms before it, and no module circle
remains. An import in a function counts, one for type checkers alone does not.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tests.structure.imports import between_rooms, circles, imports, statements_of
from tests.structure.source import parse, read

PACKAGES = ("app", "engine", "widgets", "resources")

ALLOWED = {
    "app": ("app", "widgets", "engine", "resources"),
    "widgets": ("widgets", "engine.snapshot", "engine.units"),
    "engine": ("engine",),
    "resources": ("resources",),
}

ENGINE_LIBRARIES = {
    "torch", "triton", "transformers", "safetensors", "tokenizers", "numpy", "psutil", "msgspec",
    "jinja2",
    # reads a GPU's name and memory; optional, imported where it is used
    "pynvml",
}  # fmt: skip


WITHOUT_TORCH = (
    "engine", "engine.scheduling.scheduler", "engine.scheduling.block_pool",
    "engine.scheduling.request", "engine.sampling_params", "engine.config", "engine.snapshot",
    "engine.units",
    "engine.telemetry.metrics", "engine.messages", "engine.errors", "engine.engine_thread",
    "engine.hardware.peaks", "engine.telemetry.step_cost", "engine.telemetry.what_if",
    "engine.numerics.kv_dtype", "engine.evaluate", "engine.simulate.engine",
    "app.features.tune.forecast_process",  # in its own process
)  # fmt: skip

WITHOUT_QT = (
    "app.cli.child", "app.link.child_engine", "app", "app.__main__", "app.paths", "app.units",
    "app.cli.main", "app.cli.generate", "app.cli.bench", "app.cli.doctor", "app.bench.runner",
    "app.bench.report", "app.features.models.hub_download", "app.storage.trash",
    "app.cli.evaluate", "app.storage.report_store", "app.storage.report_export",
    "app.cli.serve", "app.server.server", "app.clients.attached", "app.server.attach_hub",
    "app.wire.snapshots", "engine.llm_engine", "app.clients.target", "app.clients.engine",
    "app.clients.probe", "app.clients.metrics", "app.clients.connection", "app.clients.look",
    "app.server.options", "app.features.serve.addresses", "app.server.call_log",
    "app.cli.docs", "app.desktop_entry", "app.managed.process",
)  # fmt: skip

APP_ROOMS = (
    "paths.py", "units.py", "log.py", "desktop_entry.py",
    "storage", "wire", "server", "clients", "managed", "bench",
    "link",  # from the window to an engine
    "window",  # what every feature uses; it may import link, never the other way
    "features/models", "features/chat", "features/tune", "features/compare",
    "features/quantize", "features/runs", "features/bench", "features/learn", "features/inspect",
    "features/serve",
    "features/preferences", "features/recording",
    "main", "screenshot", "cli", "__main__.py", "bundle",
)  # fmt: skip
"""Low to high."""

ENGINE_ROOMS = (
    "units.py", "errors.py", "snapshot", "json_file.py", "lazy_transformers.py",
    "python_process.py", "limited_process.py", "name_patterns.py",
    "hardware", "numerics", "config.py", "sampling_params.py", "messages.py", "text", "scheduling",
    "batch", "sampling", "formats", "kernels", "attention", "runner", "models", "parallel",
    "speculation", "memory", "host", "telemetry", "simulate", "step", "llm_engine.py",
    "heartbeat.py", "intake.py", "profile_run.py", "served_engine.py", "engine_worker.py",
    "engine_thread.py", "quantize", "evaluate",
)  # fmt: skip
"""Low to high."""

QT = ("PySide6", "shiboken6", "pyqtgraph")
HEAVY = ("torch", "transformers", "triton")


def source_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for part in statements_of(node):
        yield part
        yield from statements(part)


@cache
def imported_modules(file: Path) -> list[tuple[int, str]]:
    """(line, module) of every import in a file, wherever it stands."""
    return list(_imported_modules(file))


def _imported_modules(file: Path) -> Iterator[tuple[int, str]]:
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in statements(parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from engine import snapshot` imports engine.snapshot
            names = (f"{module}.{name.name}" for name in node.names)
            is_package = (ROOT / module.replace(".", "/")).is_dir()
            yield from ((node.lineno, name) for name in (names if is_package else (module,)))


def is_below(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_among_our_packages_go_one_way(package: str) -> None:
    files = source_files(package)
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in files
        for line, module in imported_modules(file)
        if module.split(".")[0] in (*PACKAGES, "tests") and not is_below(module, ALLOWED[package])
    ]
    assert wrong == []


def test_the_engine_imports_its_libraries_and_no_others() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in source_files("engine")
        for line, module in imported_modules(file)
        if (top := module.split(".")[0]) != "engine"
        and top not in sys.stdlib_module_names
        and top not in ENGINE_LIBRARIES
    ]
    assert wrong == []


@cache
def running_imports() -> dict[str, set[str]]:
    """Path of a file -> paths of the files that it imports when it runs."""
    return imports(read(ROOT))[0]


@pytest.mark.parametrize(
    ("package", "ordered"), [("app", APP_ROOMS), ("engine", ENGINE_ROOMS)], ids=["app", "engine"]
)
def test_a_room_imports_rooms_before_it(package: str, ordered: tuple[str, ...]) -> None:
    places = {f"{package}/{room}": place for place, room in enumerate(ordered)}
    rooms = between_rooms(running_imports())
    inits = {f"{package}/__init__.py", f"{package}/features/__init__.py"}
    assert {room for room in rooms if room.startswith(f"{package}/")} - inits <= set(places), (
        "a room is missing from the table"
    )
    against = {
        f"{room} -> {target}"
        for room, targets in rooms.items()
        for target in targets
        if room in places and target in places and places[target] >= places[room]
    }
    assert against == set()


@pytest.mark.parametrize("package", ["app", "engine", "widgets"])
def test_no_module_circle_remains(package: str) -> None:
    graph = {
        path: {target for target in targets if target.startswith(f"{package}/")}
        for path, targets in running_imports().items()
        if path.startswith(f"{package}/")
    }
    assert circles(graph) == []


def test_the_check_sees_what_it_should() -> None:
    """The rules above are worth what `imported_modules` sees."""
    files = (ROOT / "app" / "cli" / "main.py", ROOT / "app" / "paths.py")
    found = {module for file in files for _, module in imported_modules(file)}
    assert {"argparse", "app.cli.bench", "engine.errors", "importlib.metadata"} <= found


def test_pure_python_parts_import_no_torch() -> None:
    assert loaded_by_importing(WITHOUT_TORCH, (*HEAVY, *QT)) == []


def test_command_line_and_engine_import_no_qt() -> None:
    assert loaded_by_importing(WITHOUT_QT, QT) == []


def test_the_window_imports_neither_torch_nor_transformers_before_it_shows() -> None:
    pytest.importorskip("PySide6")
    found = loaded_by_importing(("app.main.start",), (*HEAVY, "PySide6"))
    assert found == ["app.main.start: PySide6"]


IN_TURN = """
import importlib, sys
seen = set()
for module in modules:
    importlib.import_module(module)
    found = [name for name in unwanted if name in sys.modules and name not in seen]
    for name in found:
        print(f"{module}: {name}")
    seen.update(found)
"""


def loaded_by_importing(modules: Sequence[str], unwanted: tuple[str, ...]) -> list[str]:
    """Which of the modules is the first to bring what, imported one after the other in a process
    of their own. (That each can be the first one follows from there being no circles.)"""
    given = f"{modules=}; {unwanted=}"
    done = subprocess.run(
        [sys.executable, "-c", given + IN_TURN],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
