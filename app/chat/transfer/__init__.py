"""Chats as files: JSON that can be read back with every branch, and markdown for people."""
