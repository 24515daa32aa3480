"""Rows in a caller's hands, until it commits or releases them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

from dataplane_client._arguments import checked_name
from dataplane_client._claim_requests import release_request
from dataplane_client._layouts import column_message
from dataplane_client._puts import put_of
from dataplane_client._requests import Fields, new_request_id, wire_columns
from dataplane_client._sync.session import Session
from dataplane_client.errors import ClaimFencedError, DataPlaneError, PreconditionError
from dataplane_client.grants import ClaimedGroup, Grant
from dataplane_client.meta import KVBatchMeta
from rl_dataplane.v1 import data_plane_pb2 as pb

_NAME_LENGTH = 64  # of an exception's type, as a reason; the server takes 256 bytes


class Claim:
    """An open claim; made by `claim`, `claim_shard` and `adopt_claim`. As a context manager it commits on a clean exit,
    and on an exception releases with the name of its type as the reason.

    meta: the rows. claim_id: its name on the server. deliveries: how often each row has been delivered to the task,
    this time included; empty for an adopted claim. groups: with whole_groups, the groups in the order of their rows.

    state: "open" until this object has ended it ("committed", "released") or learnt that the server has ("fenced"). A
    claim stays open, for hours if need be, as long as the client lives that holds it.
    """

    def __init__(self, session: Session, grant: Grant) -> None:
        self._session = session
        self.claim_id = grant.claim_id
        self.meta: KVBatchMeta = grant.meta
        self.deliveries: list[int] = grant.deliveries
        self.groups: tuple[ClaimedGroup, ...] = grant.groups
        self.state: Literal["open", "committed", "released", "fenced"] = "open"

    def __repr__(self) -> str:
        where = f"{self.meta.partition_id}/{self.meta.task_name}"
        return f"<{type(self).__name__} {self.claim_id} {where} {self.meta.size} rows {self.state}>"

    @property
    def fence(self) -> int:
        """A number that grows with every delivery of the server: of two claims on a row, the greater is the later."""
        return int(self.claim_id.rpartition("-")[2])

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self._release_for(kind.__name__[:_NAME_LENGTH])

    def _release_for(self, reason: str) -> None:
        """Release for an error that matters more than whether this can be said to the server now."""
        request = release_request(self.claim_id, 0.0, reason)
        try:
            with contextlib.suppress(DataPlaneError):
                self._released(request, None)
        finally:
            if self.state == "open":
                self._session.repeat("ReleaseClaim", request)
                self.state = "released"

    def write(self, fields: Fields, *, timeout_s: float | None = None) -> None:
        """Write columns of the rows and keep the claim: one row for each row of the meta and in its order.

        All at once or not at all, and only while the claim is open: raises ClaimFencedError when the server has ended
        it, NotFoundError when a row was cleared (ReplacedError when it was also put again), and what put_samples
        raises.
        """
        self._check_open()
        meta, caller = self.meta, self._session.transport.options.caller
        where = f"write under claim {self.claim_id}"
        put = put_of(where, meta.partition_id, meta.sample_ids, fields, caller, generations=meta.generations)
        put.header.claim_id = self.claim_id
        with self._fencing():
            self._session.transport.write("PutSamples", put.header, put.columns, timeout_s)

    def commit(
        self, fields: Fields | None = None, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> int:
        """End the claim: its rows are consumed, once and for all. How many still existed.

        fields: columns to write in the same atomic step, one row for each row of the meta and in its order. request_id:
        a name of the caller's own for this commit, at most 64 bytes: whoever repeats it within ten minutes, be it
        another process, gets the first answer. All ranks that share a shard may commit it: the first commit counts.

        Raises ClaimFencedError when the server has ended the claim: then nothing was written, and the rows may be with
        others. Raises ClaimNotFoundError when it was committed or released otherwise, NotFoundError when fields are
        given for a row that was cleared (the claim stays open), and what put_samples raises.
        """
        self._check_open()
        where = f"commit of claim {self.claim_id}"
        columns = wire_columns(fields, self.meta.size, where)
        header = pb.CommitClaimHeader(
            request_id=new_request_id() if request_id is None else checked_name("request id", request_id, where),
            claim_id=self.claim_id,
            columns=[column_message(column) for column in columns],
        )
        with self._fencing():
            response = self._session.transport.write("CommitClaim", header, columns, timeout_s)
        self.state = "committed"
        return int(response.consumed_rows)

    def release(self, *, delay_s: float = 0.0, reason: str = "", timeout_s: float | None = None) -> int:
        """End the claim: its rows go back to the task, first in line. How many still existed.

        delay_s: for how many seconds nobody gets them, at most a day. reason: why, in at most 256 bytes. With a reason
        the delivery has failed and counts towards the partition's max_deliveries; "" says that the rows were not used,
        as if they had not been delivered. Raises ClaimFencedError when the server has ended the claim,
        ClaimNotFoundError when it was ended otherwise.
        """
        self._check_open()
        return self._released(release_request(self.claim_id, delay_s, reason), timeout_s)

    def _released(self, request: pb.ReleaseClaimRequest, timeout_s: float | None) -> int:
        with self._fencing():
            response = self._session.transport.unary("ReleaseClaim", request, timeout_s)
        self.state = "released"
        return int(response.released_rows)

    def _check_open(self) -> None:
        if self.state == "fenced":
            raise ClaimFencedError(f"claim {self.claim_id} was fenced already", reason="CLAIM_FENCED")
        if self.state != "open":
            raise PreconditionError(f"claim {self.claim_id} was {self.state} already")

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except ClaimFencedError:
            self.state = "fenced"
            raise
