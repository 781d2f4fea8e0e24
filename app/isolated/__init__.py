"""The engine in a process of its own, started by the window and ended with it. No Qt."""
