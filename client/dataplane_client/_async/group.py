"""The rows of one prompt, put one by one and shown to claims all at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal

from dataplane_client._arguments import checked_name
from dataplane_client._async.session import AsyncSession
from dataplane_client._claim_requests import checked_version
from dataplane_client._puts import put_of, shared_put_of
from dataplane_client._requests import Fields, new_request_id
from dataplane_client.errors import DataPlaneError, GroupFencedError, PreconditionError
from dataplane_client.meta import KVBatchMeta, Tag
from rl_dataplane.v1 import data_plane_pb2 as pb

_NAME_LENGTH = 64  # of an exception's type, as a reason; the server takes 256 bytes


class AsyncGroup:
    """A reserved group; made by `reserve_group`. No claim sees its rows until it is committed. As a context manager it
    commits on a clean exit, and on an exception aborts with the name of its type as the reason.

    group_id: its name in the partition. reservation_id: the name of this reservation on the server. meta: its rows.

    state: "open" until this object has ended it ("committed", "aborted") or learnt that the server has ("fenced"). A
    group stays reserved as long as the client lives that holds it; when that dies its rows vanish.
    """

    def __init__(self, session: AsyncSession, group_id: str, reservation_id: str, meta: KVBatchMeta) -> None:
        self._session = session
        self.group_id = group_id
        self.reservation_id = reservation_id
        self.meta = meta
        self.state: Literal["open", "committed", "aborted", "fenced"] = "open"

    def __repr__(self) -> str:
        where = f"{self.meta.partition_id}/{self.group_id}"
        return f"<{type(self).__name__} {self.reservation_id} {where} {self.meta.size} rows {self.state}>"

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state != "open":
            return
        if kind is None:
            await self.commit()
        else:
            await self._abort_for(kind.__name__[:_NAME_LENGTH])

    async def _abort_for(self, reason: str) -> None:
        """Abort for an error that matters more than whether this can be said to the server now."""
        request = self._abort_request(reason)
        try:
            with contextlib.suppress(DataPlaneError):
                await self._aborted(request, None)
        finally:
            if self.state == "open":
                self._session.repeat("AbortGroup", request)
                self.state = "aborted"

    async def put(
        self,
        sample_ids: Sequence[str],
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, Tag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of some rows of the group, as put_samples does, as often as wanted.

        Raises GroupFencedError when the group is not reserved any more, InvalidArgumentError for a row that is not of
        the group, and what put_samples raises.
        """
        self._check_open()
        where = f"put into group {self.group_id!r}"
        partition_id, caller = self.meta.partition_id, self._session.transport.options.caller
        put = put_of(where, partition_id, sample_ids, fields, caller, tags=tags, sequence_lengths=sequence_lengths)
        put.header.reservation_id = self.reservation_id
        with self._fencing():
            return put.receipt(await self._session.transport.write("PutSamples", put.header, put.columns, timeout_s))

    async def put_shared(self, fields: Fields, *, timeout_s: float | None = None) -> None:
        """Write what all rows of the group have in common, as an image of the prompt: stored once, and read as if it
        stood in every row.

        fields: columns of one row each. Not for fields with one entry for each token. Errors as `put`.
        """
        self._check_open()
        where = f"put_shared into group {self.group_id!r}"
        put = shared_put_of(where, self.meta.partition_id, fields, self._session.transport.options.caller)
        put.header.reservation_id = self.reservation_id
        with self._fencing():
            await self._session.transport.write("PutSamples", put.header, put.columns, timeout_s)

    async def commit(self, weight_version: int | None = None, *, timeout_s: float | None = None) -> int:
        """Show the rows to claims, all at once; how many there are.

        weight_version: of the weights with which generation ended, for those who claim groups whole. Raises
        PreconditionError while a row has no field (the group stays reserved), GroupFencedError when the group is not
        reserved any more.
        """
        self._check_open()
        request = pb.FinishGroupRequest(
            request_id=new_request_id(),
            reservation_id=self.reservation_id,
            weight_version=checked_version(weight_version, f"commit of group {self.group_id!r}"),
        )
        with self._fencing():
            response = await self._session.transport.unary("FinishGroup", request, timeout_s)
        self.state = "committed"
        return int(response.rows)

    async def abort(self, reason: str = "", *, timeout_s: float | None = None) -> int:
        """Have the rows vanish; how many there were. reason: for the story of the samples, at most 256 bytes.

        Raises GroupFencedError when the group is not reserved any more.
        """
        self._check_open()
        return await self._aborted(self._abort_request(reason), timeout_s)

    async def _aborted(self, request: pb.AbortGroupRequest, timeout_s: float | None) -> int:
        with self._fencing():
            response = await self._session.transport.unary("AbortGroup", request, timeout_s)
        self.state = "aborted"
        return int(response.removed_rows)

    def _abort_request(self, reason: str) -> pb.AbortGroupRequest:
        checked = checked_name("reason", reason, f"abort of group {self.group_id!r}")
        return pb.AbortGroupRequest(request_id=new_request_id(), reservation_id=self.reservation_id, reason=checked)

    def _check_open(self) -> None:
        if self.state == "fenced":
            raise GroupFencedError(f"group {self.group_id!r} was fenced already", reason="GROUP_FENCED")
        if self.state != "open":
            raise PreconditionError(f"group {self.group_id!r} was {self.state} already")

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except GroupFencedError:
            self.state = "fenced"
            raise
