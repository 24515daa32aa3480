"""Servers in processes of their own, as `tests/integration/command` starts them."""

from __future__ import annotations

from tests.integration.command.conftest import books_balance, start_command

__all__ = ["books_balance", "start_command"]
