"""The settings dialog, and what it is made from: program settings, the engine's, the keyboard."""
