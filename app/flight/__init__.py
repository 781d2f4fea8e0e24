"""The flight recorder: a session of the engine in a file, and the way back."""
