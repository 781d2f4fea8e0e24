"""The command palette: what the window can do, and its settings, by a few letters."""
