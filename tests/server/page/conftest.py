"""Servers are started as those with TLS and an access file."""

from tests.integration.access.conftest import start

__all__ = ["start"]
