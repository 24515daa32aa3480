"""The blocking client."""

from dataplane_client._verbs._sync.claim import Claim
from dataplane_client._verbs._sync.client import DataPlaneClient, connect, connect_later
from dataplane_client._verbs._sync.group import Group

__all__ = ["Claim", "DataPlaneClient", "Group", "connect", "connect_later"]
