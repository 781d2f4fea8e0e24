"""What the chat needs of the engine: `app.engine_bridge.EngineBridge` is one."""

from __future__ import annotations

from typing import Any, Protocol

from engine.config import EngineConfig
from engine.messages import Prompt
from engine.sampling_params import SamplingParams
from engine.snapshot import ModelInfo


class ChatEngine(Protocol):
    """Commands return at once; what comes of them arrives by signals in the thread of the window.

    `state` is one of "no model", "loading", "ready", "crashed".
    """

    outputs: Any  # Signal(list[OutputEvent])
    request_failed: Any  # Signal(RequestFailed)
    crashed: Any  # Signal(EngineCrashed)
    state_changed: Any  # Signal(state): before the event's own signal
    tokens_counted: Any  # Signal(TokensCounted)
    loaded: Any  # Signal(Loaded)
    model: ModelInfo | None
    config: EngineConfig | None

    @property
    def is_ready(self) -> bool: ...
    @property
    def state(self) -> str: ...
    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        begin_with: tuple[int, ...] = (),
    ) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def count_tokens(self, key: str, text: str) -> None: ...
