"""The chat: its model (no Qt), its controller, and its page."""
