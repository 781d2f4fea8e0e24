"""Recordings of the engine, and reports of crashes.

    recorder     keeps the last minutes; file writes and reads them
    player       replays a file; about shows its settings and machine
    window       the engine's views on a recording
    commands     save and open recordings
    crash_watch  data for a crash report; restores the session
"""
