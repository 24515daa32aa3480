"""Messages to calls of the core, and answers to messages. Decides nothing that the core could decide."""

from dataplane_server.service.translate import claims, draws, filters, listings, policies, rows, samples

__all__ = ["claims", "draws", "filters", "listings", "policies", "rows", "samples"]
