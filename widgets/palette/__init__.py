"""The command palette."""
