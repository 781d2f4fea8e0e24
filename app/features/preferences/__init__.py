"""The settings dialog and the keyboard page."""
