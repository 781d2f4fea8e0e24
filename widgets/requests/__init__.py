"""The table of all requests."""
