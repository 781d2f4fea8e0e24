"""From the window to an engine, local or remote. Imports nothing of the window.

    bridge            commands in, Qt signals out
    dispatcher        events from the engine's thread into the GUI thread, throttled
    engine_handle     the current engine: thread, child process or remote
    child_engine      the engine in its own process; child_process starts and ends it,
                      child_watch sees that it hangs, child_crash says why it ended
    row_names         engine messages with the window's labels
    hardware_monitor  GPU figures, measured peaks
    tasks             background tasks
"""
