"""An OpenAI-compatible server on the engine's thread. Imports no Qt.

    client  -- HTTP -->  loop of the server's thread  -- AddRequest, Abort -->  EngineThread
    client  <-- SSE --   Flight (merges what waits)   <-- EngineGate  <-- on_event --'

Neither side waits for the other: the engine's events go to a deque and wake the loop; text that a
slow reader has not taken is merged until it does, and is never longer than the reply.

    options      what the server is started with; what is not safe is refused
    server       ApiServer: start and stop, on a thread of its own
    gate, flight the border to the engine; the requests of one call
    api          the routes; chat, completions, tokens: what is behind them
    fields       every field of a request body, declared once
    guard, protocol, body: who may call, how much, how slowly
"""
