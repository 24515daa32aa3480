"""The client: the verbs of the data plane, with tensors for values.

Every verb takes `timeout_s` (seconds; None: the client's default) and raises an error of `dataplane_client.errors`
within that time. While the server cannot be reached, calls are repeated until then. Several threads or tasks may use a
client at once.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal

from dataplane_client._sync.claim_verbs import ClaimVerbs
from dataplane_client._sync.listing_verbs import ListingVerbs
from dataplane_client._sync.partition_verbs import PartitionVerbs
from dataplane_client._sync.sample_verbs import SampleVerbs
from dataplane_client._sync.session import Session
from dataplane_client._sync.transport import Transport
from dataplane_client.options import ClientOptions


def connect(target: str, **options: float | str) -> DataPlaneClient:
    """Connect to a server at `unix:///path` or `host:port` and wait until it answers.

    options: the settings of ClientOptions by name. Blocks for at most connect_timeout_s while the server is not
    reachable, then raises UnavailableError. Raises ValueError for a malformed address or setting.
    """
    settings = ClientOptions(**options)  # type: ignore[arg-type]  # __post_init__ refuses wrong values
    client = DataPlaneClient(Transport(target, settings))
    try:
        client.server_status(timeout_s=settings.connect_timeout_s)
    except BaseException:
        client.close()
        raise
    return client


class DataPlaneClient(PartitionVerbs, SampleVerbs, ClaimVerbs, ListingVerbs):
    """A client of one server; made by `connect`. A context manager that closes it at the end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._session = Session(transport)

    def __repr__(self) -> str:
        state = "closed" if self._transport.closed else "open"
        return f"<{type(self).__name__} {self._transport.target} {state}>"

    def __enter__(self) -> DataPlaneClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def transport(self) -> Literal["shm", "grpc"]:
        """How values travel now: through memory that the server shares with this host, or over gRPC."""
        return self._transport.name

    @property
    def target(self) -> str:
        """The server's address."""
        return self._transport.target

    def close(self) -> None:
        """Close the connection; does nothing if closed. The rows of open claims return to their tasks at once, as not
        delivered, and reserved groups are rolled back. Takes at most about 2 seconds.
        """
        try:
            self._transport.close()
        finally:
            self._session.close()
