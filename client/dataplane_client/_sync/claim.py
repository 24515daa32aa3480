"""Rows in a caller's hands, until it commits or releases them."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Literal

from dataplane_client._layouts import column_message
from dataplane_client._requests import Fields, new_request_id, wire_columns
from dataplane_client._sync.transport import Transport
from dataplane_client.errors import DataPlaneError, PreconditionError
from dataplane_client.meta import KVBatchMeta
from rl_dataplane.v1 import data_plane_pb2 as pb


class Claim:
    """An open claim; made by `claim`. As a context manager it commits on a clean exit and releases on an exception.

    meta: the rows. claim_id: its name on the server. state: open, committed or released.
    """

    def __init__(self, transport: Transport, claim_id: str, meta: KVBatchMeta) -> None:
        self._transport = transport
        self.claim_id = claim_id
        self.meta = meta
        self.state: Literal["open", "committed", "released"] = "open"

    def __repr__(self) -> str:
        where = f"{self.meta.partition_id}/{self.meta.task_name}"
        return f"<{type(self).__name__} {self.claim_id} {where} {self.meta.size} rows {self.state}>"

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state != "open":
            return
        if error is None:
            self.commit()
        else:
            with contextlib.suppress(DataPlaneError):  # the caller's own error matters more
                self.release()

    def commit(self, fields: Fields | None = None, *, timeout_s: float | None = None) -> int:
        """End the claim: its rows are consumed. How many still existed.

        fields: columns to write in the same atomic step, one row for each row of the meta and in its order. Raises
        ClaimNotFoundError when the claim has ended on the server, NotFoundError when fields are given for a row that
        was cleared (the claim stays open), and what put_samples raises.
        """
        self._check_open()
        columns = wire_columns(fields, self.meta.size, f"commit of claim {self.claim_id}")
        header = pb.CommitClaimHeader(
            request_id=new_request_id(),
            claim_id=self.claim_id,
            columns=[column_message(column) for column in columns],
        )
        response = self._transport.write("CommitClaim", header, columns, timeout_s)
        self.state = "committed"
        return int(response.consumed_rows)

    def release(self, *, timeout_s: float | None = None) -> int:
        """End the claim: its rows go back to the task, first in line. How many still existed.

        Raises ClaimNotFoundError when the claim has ended on the server.
        """
        self._check_open()
        request = pb.ReleaseClaimRequest(request_id=new_request_id(), claim_id=self.claim_id)
        response = self._transport.unary("ReleaseClaim", request, timeout_s)
        self.state = "released"
        return int(response.released_rows)

    def _check_open(self) -> None:
        if self.state != "open":
            raise PreconditionError(f"claim {self.claim_id} was {self.state} already")
