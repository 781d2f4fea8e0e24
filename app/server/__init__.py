"""An OpenAI-compatible server on the engine's thread, and the attach endpoint. No Qt.

    client  -- HTTP -->  the server's event loop       -- AddRequest, Abort -->  EngineThread
    client  <-- SSE --   OutputCollector (merges)  <-- EngineClient  <-- on_event --'

Neither side waits for the other: events go to a deque and wake the loop; text for a slow reader is
merged until it reads, and is never longer than the reply.

    options, errors          options and limits; error objects
    server, connection       ApiServer on its own thread; access control and connection limits
    engine_client            commands to the engine, events from it
    api, body_reader, bodies, openapi     routes; reading, declaring and describing request bodies
    call, reply              requests of one call and their output; its JSON, complete or streamed
    tokens                   the tokenizer
    metrics, call_log        /metrics; the latest calls
    attach_hub, attach_permissions, attach_session, attach_state, attach_stream    attached windows
"""
