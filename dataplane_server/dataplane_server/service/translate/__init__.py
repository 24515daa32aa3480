"""Messages to calls of the core, and answers to messages. Decides nothing that the core could decide."""

from dataplane_server.service.translate import claims, filters, listings, rows

__all__ = ["claims", "filters", "listings", "rows"]
