"""The client: the verbs of the data plane, with tensors for values."""

from __future__ import annotations

import dataclasses
from types import TracebackType

from dataplane_client._common.displays import html_table
from dataplane_client._connect.channel import target_or_default
from dataplane_client._connect.options import (
    ClientOptions,
    Credentials,
    TransportChoice,
    TransportName,
    with_known_options,
)
from dataplane_client._verbs._sync.claim_verbs import ClaimVerbs
from dataplane_client._verbs._sync.listing_verbs import ListingVerbs
from dataplane_client._verbs._sync.partition_verbs import PartitionVerbs
from dataplane_client._verbs._sync.runtime import opens
from dataplane_client._verbs._sync.sample_verbs import SampleVerbs
from dataplane_client._verbs._sync.session import Session, reopened_session
from dataplane_client._verbs._sync.transport import Transport


@with_known_options
@opens
def connect(
    target: str | None = None,
    *,
    transport: TransportChoice = "auto",
    timeout_s: float = 60.0,
    connect_timeout_s: float = 30.0,
    chunk_bytes: int = 2 << 20,
    first_backoff_s: float = 0.02,
    max_backoff_s: float = 1.0,
    session_grace_s: float = 10.0,
    client_name: str = "",
    credentials: Credentials | None = None,
) -> DataPlaneClient:
    """Connect to a server and wait until it answers.

    target: `unix:///path`, `host:port`, or in a process of a Ray cluster `ray://NAME`, the data plane of this name in
        the cluster, which may move between nodes; None for the environment variable DATAPLANE_SERVER.
    transport: how values travel. "auto": through memory if the server shares it with this host, else by its direct
        port if it has one (`dataplane-server --direct`), else over gRPC; "shm", "direct": so, or PreconditionError;
        "grpc": over gRPC.
    timeout_s: the deadline in seconds of a call that names none, or None. No call waits for ever.
    connect_timeout_s: how long to wait for the server here.
    chunk_bytes: size of the chunks in which values are sent; 1 to 4 MiB is best, servers accept at most 16 MiB.
    first_backoff_s, max_backoff_s: pauses between attempts while the server cannot be reached. Each is twice the one
        before, reduced by a random part of up to a half, so that clients do not return all at once.
    session_grace_s: after how long without a heartbeat from this process (it was killed or stopped, or cannot reach the
        server) its session expires and the rows that it has claimed go to other clients; 0.1 s to 1 h. Heartbeats are
        sent at least three times as often.
    client_name: the name of this client in the history of samples; at most 256 bytes, "" for host:pid.
    credentials: TLS and token; None for those of the environment (DATAPLANE_TLS_CA, DATAPLANE_TOKEN_FILE, and more).

    Raises UnavailableError when the server cannot be reached within connect_timeout_s, PreconditionError for
    `ray://NAME` before `ray.init`, and ValueError or TypeError for a malformed address or setting.
    """
    settings = ClientOptions(
        transport=transport,
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        chunk_bytes=chunk_bytes,
        first_backoff_s=first_backoff_s,
        max_backoff_s=max_backoff_s,
        session_grace_s=session_grace_s,
        client_name=client_name,
        credentials=credentials,
    )
    client = DataPlaneClient(Session(Transport(target_or_default(target), settings)))
    try:
        client.server_status(timeout_s=settings.connect_timeout_s)
    except BaseException:
        client.close()
        raise
    return client


def connect_later(target: str | None = None, options: ClientOptions | None = None) -> DataPlaneClient:
    """A client that connects with its first call, as one that was unpickled does. All such clients of a process that
    have the same settings share one connection and one session: closing one closes all.

    target: as `connect` takes it. options: None for those of `connect`. Raises ValueError or TypeError for a malformed
    address.
    """
    return DataPlaneClient(reopened_session(target_or_default(target), options or ClientOptions()))


class DataPlaneClient(PartitionVerbs, SampleVerbs, ClaimVerbs, ListingVerbs):
    """A client of one server; made by `connect`. A context manager that closes it at the end.

    Every verb takes timeout_s: seconds, or None for the client's own timeout_s, which is 60 s unless `connect` was
    given another; no call waits for ever. Within that time a verb returns or raises an error of
    `dataplane_client.errors`. Verbs for which the server may wait (claims, puts, commits) leave it up to 2 s more to
    answer, so that the error names what was missing. While the server cannot be reached, calls are repeated until the
    deadline. Several threads or tasks may use a client at once.

    An open client can be pickled, with what it was connected with. It connects again at the first call in the other
    process. All such clients of one process that have the same settings share one connection and one session: closing
    one closes all.
    """

    def __init__(self, session: Session) -> None:
        self._transport = session.transport
        self._session = session

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._session,)

    def __repr__(self) -> str:
        state = "closed" if self._transport.closed else "open"
        return f"<{type(self).__name__} {self._transport.target} {state}>"

    def _repr_html_(self) -> str:
        """A table of what it is connected with, for notebooks. Makes no call."""
        options = self._transport.options
        settings = [(one.name, getattr(options, one.name)) for one in dataclasses.fields(options)]
        return html_table(repr(self), ("setting", "value"), [("transport now", self.transport), *settings])

    def __enter__(self) -> DataPlaneClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def transport(self) -> TransportName:
        """How values travel now: through memory that the server shares with this host, by its direct port, or over
        gRPC.
        """
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
