"""The changes of a cycle: live settings, the cache rebuilt, the model reloaded, another model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from engine import messages as m
from engine.config import EngineConfig
from tests.soak.ledger import Ledger
from tests.soak.process import MODEL, OTHER
from tests.soak.streams import Window

SETTINGS: tuple[Mapping[str, tuple[Any, Any]], ...] = (
    {"max_num_seqs": (16, 64)},
    {"block_size": (32, 16)},
    {"max_num_batched_tokens": (128, 512)},
    {"enable_prefix_caching": (False, True)},
    {"seed": (1, 0)},  # loads the model again; the requests have seeds of their own
    {"kv_cache_memory_bytes": (2**25, 2**26)},
    {"speculative_method": ("ngram", "off")},
)
"""Each changed and changed back. None changes a reply."""
KV_DTYPES = ("int8", "auto")
"""With int8 the last bit of a key, which is another in another batch, may change its code."""
PER_ROUND = len(SETTINGS) + 2
CHANGE_S = 180.0


class Controller:
    """Does one change at a time, each through a window that attaches for it."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._url, self._ledger = url, ledger
        self.done = 0

    def steps(self) -> Iterator[None]:
        """A change for every turn, again and again. Each round ends with another KV cache dtype and
        with a change to another model and back."""
        for turn in itertools.count():
            for setting in SETTINGS:
                self._reconfigure({name: pair[turn % 2] for name, pair in setting.items()})
                yield
            self._other_replies(KV_DTYPES[turn % 2])
            yield
            self._other_model()
            yield

    def _reconfigure(self, changes: Mapping[str, Any]) -> None:
        with _Attached(self._url, self._ledger) as window:
            if window is None:
                return
            window.engine.submit(m.Reconfigure(changes))
            kinds = (m.Reconfigured, m.ReconfigureFailed)
            if not window.wait(lambda events: any(isinstance(e, kinds) for e in events), CHANGE_S):
                self._ledger.fault(f"no answer to {changes}")
            elif (failed := window.last(m.ReconfigureFailed)) is not None:
                self._ledger.fault(f"{changes} failed: {failed.error}")  # type: ignore[union-attr]
            else:
                self.done += 1

    def _other_replies(self, kv_dtype: str) -> None:
        """Requests that run go on with the other dtype."""
        with self._ledger.closed():
            self._ledger.is_compared = False
            self._reconfigure({"kv_cache_dtype": kv_dtype})
            if not self._ledger.wait_quiet(CHANGE_S):
                self._ledger.fault(f"requests did not end with kv_cache_dtype {kv_dtype}")
            self._ledger.is_compared = kv_dtype == "auto"

    def _other_model(self) -> None:
        with _Attached(self._url, self._ledger) as window:
            if window is None:
                return
            loaded = window.last(m.Loaded)
            assert isinstance(loaded, m.Loaded)
            with self._ledger.closed(at_change=True):
                self.done += all(
                    self._load(window, loaded.config.replace(model=self._name(window, path.name)))
                    for path in (OTHER, MODEL)
                )

    def _load(self, window: Window, config: EngineConfig) -> bool:
        """Whether `config` is loaded and everything that ran before has ended."""
        kinds = (m.Loaded, m.LoadFailed)
        window.clear()
        window.engine.submit(m.Load(config))
        if not window.wait(lambda events: any(isinstance(e, kinds) for e in events), CHANGE_S):
            self._ledger.fault(f"no answer to the change to {config.model}")
        elif (failed := window.last(m.LoadFailed)) is not None:
            self._ledger.fault(f"{config.model} failed: {failed.error}")  # type: ignore[union-attr]
        elif not self._ledger.wait_quiet(CHANGE_S):
            self._ledger.fault(f"requests did not end at the change to {config.model}")
        else:
            return True
        return False

    def _name(self, window: Window, folder: str) -> str:
        """As the server offers it: its own starter model has another name."""
        offers = window.engine.offers
        if offers is None:
            return str(OTHER if folder == OTHER.name else MODEL)
        return folder if folder in offers else "starter"


class _Attached:
    """A window that is live and has heard which model is loaded; None if that takes too long."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._window, self._ledger = Window(url), ledger

    def __enter__(self) -> Window | None:
        window = self._window
        if window.wait_live() and window.wait(
            lambda events: any(isinstance(e, m.Loaded) for e in events), CHANGE_S
        ):
            return window
        self._ledger.fault("the controlling window could not attach")
        return None

    def __exit__(self, *exc: object) -> None:
        self._window.close()
