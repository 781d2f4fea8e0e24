"""An engine in another process, over a line: our own stream beside the OpenAI routes. No Qt.

window   EngineBridge -- commands --> RemoteEngine ==== WebSocket ==== Stream --> Hub --> engine
         EngineBridge <-- events ---- RemoteEngine ==== frames =====  Session <-- Hub <-- engine

protocol     version, limits, the first words of both sides, frames
codec        every command and event as bytes; `snapshots`, `blocks`: as what changed
ledger       numbers, acknowledgements: nothing lost or doubled over a cut line
outbox       what waits for a slow window, merged
hub, session what the engine's side keeps: windows, who asked what, history
offers       which models a window may ask for, by name
clock        the server's clock in ours
client       RemoteEngine, the engine as the window sees it
"""
