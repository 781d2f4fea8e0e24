"""From the window to an engine: bridge, dispatcher, child process, tasks."""
