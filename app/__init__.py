"""The application: command line, window, and the bridge between the window and the engine."""
