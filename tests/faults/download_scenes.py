"""A model is downloaded when a fault strikes: the next start resumes, and every byte is right."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.faults.bench import WAIT_S, nothing_left
from tests.faults.fault import Fault
from tests.faults.storage_scenes import killed

MODEL = "acme/tiny"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": random.Random(1).randbytes(9_000),
    "model.safetensors": random.Random(0).randbytes(300_000),
}


def queued(fault: Fault, folder: Path) -> None:
    import huggingface_hub.constants
    from PySide6.QtCore import QCoreApplication

    from app.features.models import hub_download
    from app.features.models.downloads import DownloadQueue, State
    from app.features.models.hub import Hub
    from tests.app.features.models.hub.server import HubServer, Model

    huggingface_hub.constants.HF_HUB_OFFLINE = False
    hub_download.CHUNK = 1 << 14
    with HubServer(Model(MODEL, FILES)) as server:
        hub = Hub(server.url, folder / "hub")
        if fault.kind == "kill":

            def die(note: Callable[[str], None]) -> None:
                fault.arm()
                hub_download.ModelDownload(hub, MODEL).run()

            killed(die)
        application = QCoreApplication([])
        journal = folder / "downloads.json"

        def run() -> tuple[State, DownloadQueue]:
            queue = DownloadQueue(hub, journal)
            with suppress(MemoryError):  # of a slot: the program goes on
                queue.start(MODEL)
            deadline = time.monotonic() + WAIT_S
            while (download := queue.get(MODEL)) is None or download.state not in (
                State.DONE, State.FAILED,
            ):  # fmt: skip
                assert time.monotonic() < deadline, f"the download hangs: {download}"
                application.processEvents()
                time.sleep(0.002)
            queue.close()
            return download.state, queue

        if fault.kind != "kill":
            fault.arm()
            state, queue = run()
            assert fault.hits, "the point was not reached"
            if state is State.FAILED:
                download = queue.get(MODEL)
                assert download is not None
                fault.check_words(download.error)
                again = DownloadQueue(hub, journal)
                assert again.get(MODEL) is not None, "the download is forgotten"
        state, queue = run()
        download = queue.get(MODEL)
        assert download is not None and state is State.DONE, f"not resumed: {download}"
        for name, content in FILES.items():
            assert (Path(download.path) / name).read_bytes() == content, f"{name} is wrong"
        left = [path.name for path in (folder / "hub").rglob("*.incomplete")]
        assert not left, f"left behind: {left}"
    nothing_left()
