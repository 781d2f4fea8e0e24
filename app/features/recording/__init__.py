"""Recordings of the engine, and reports of crashes.

    recorder     keeps the last minutes; file writes and reads them, shelf lists the saved ones
    player       replays a file: marks and scrubber are its events, about its settings and machine
    window       the engine's views on a recording
    panel        the list of recordings, commands save, open and delete them
    crash_watch  data for a crash report; restores the session
"""
