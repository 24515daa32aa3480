"""The end of claims that nobody will use, or whose use has failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from dataplane_client.client import Claim
from dataplane_client.errors import DataPlaneError

CLOSING_S = 5.0
"""How long one step of closing a loader may take: a call, the end of a thread or of a process."""


def give_back(claims: Iterable[Claim], reason: str = "") -> None:
    """Release claims that are open; without a reason as if they had never been delivered. A server that cannot be told
    finds out when the session ends.
    """
    for claim in claims:
        if claim.state == "open":
            with contextlib.suppress(DataPlaneError):
                claim.release(reason=reason, timeout_s=CLOSING_S)
