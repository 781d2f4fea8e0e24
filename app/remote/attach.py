"""Turn the window to an engine that runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.connections.target import OnEvent, Target
from app.remote.address import address_of

if TYPE_CHECKING:
    from app.engine_bridge import EngineBridge
    from app.engine_seat import EngineThreadLike


def attach(bridge: EngineBridge, target: Target) -> None:
    """`bridge` shows the engine at `target` from now on: `bridge.link_changed` tells how the line
    to it stands. Raises ConfigError where the target has no address."""
    address_of(target)

    def remote(on_event: OnEvent) -> EngineThreadLike:
        from app.remote.client import RemoteEngine  # its libraries are needed from here on

        return RemoteEngine(on_event, target)

    bridge.attach(remote)
