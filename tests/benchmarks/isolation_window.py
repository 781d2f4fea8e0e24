"""The real window, every dock in view, with its engine in a thread or in a process of its own:
reads one JSON command per line, answers each with one. Started by isolation."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from app.main.application import Application
from app.main.engine_status import factory_of
from app.main.garbage import GarbageCollector
from app.main.start import make_application
from engine.snapshot import EngineSnapshot, StepRecord
from tests.benchmarks.gui_window import Commands, WindowBenchmark
from tests.benchmarks.isolation_steps import step_figures


class StepBenchmark(WindowBenchmark):
    """Also notes what the engine says of its steps."""

    def __init__(self, application: Application, case: Any) -> None:
        super().__init__(application, case)
        self._steps: list[StepRecord] = []
        application.bridge.snapshot.connect(self._on_snapshot)

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        self._case = dataclasses.replace(self._case, num_chats=command["num_chats"])
        self._steps = []
        found = super().run({"visible": True, **command})
        if command["do"] == "segment":
            found |= step_figures(self._steps, command["num_chats"])
        return found

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._steps += snapshot.steps


def main() -> None:
    given = json.loads(sys.argv[1])
    from tests.benchmarks.gui_cases import cases
    from tests.benchmarks.workstation.place import show_all_docks

    case = cases(quick=False)[given["case"]]
    app = make_application()
    collector = GarbageCollector(app)
    collector.start()
    application = Application(app, factory_of(given["place"]))
    application.show()
    show_all_docks(application)
    benchmark = StepBenchmark(application, case)
    commands = Commands()

    def serve(command: dict[str, Any]) -> None:
        print(json.dumps(benchmark.run(command)), flush=True)

    def ready(_: object) -> None:
        print(json.dumps({"ready": True}), flush=True)
        commands.start()

    def failed(event: Any) -> None:
        print(event.error, file=sys.stderr)
        app.exit(1)

    commands.received.connect(serve)
    commands.ended.connect(app.quit)
    application.bridge.loaded.connect(ready)
    application.bridge.load_failed.connect(failed)
    application.bridge.crashed.connect(failed)
    application.session.load(case.config(given["num_threads"]))
    code = app.exec()
    collector.stop()
    application.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main()
