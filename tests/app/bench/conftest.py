"""Servers that answer as the test says."""

from __future__ import annotations

from tests.app.clients.conftest import server

__all__ = ["server"]
