"""The blocking client."""

from dataplane_client._sync.claim import Claim
from dataplane_client._sync.client import DataPlaneClient, connect

__all__ = ["Claim", "DataPlaneClient", "connect"]
