"""Widgets of a chat: messages as they stream, the composer, the list of conversations."""
