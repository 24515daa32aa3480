"""The rows of one prompt, put one by one and shown to claims all at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from dataplane_client._common.arguments import checked_name, checked_names
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._requests.claim_requests import checked_version
from dataplane_client._requests.requests import GivenTag, Put, new_request_id, put_request, shared_put_request
from dataplane_client._values.codec import Fields
from dataplane_client._verbs._async.handle import AsyncHandle
from dataplane_client._verbs._async.row_writes import write_rows
from dataplane_client._verbs._async.session import AsyncSession
from dataplane_client.errors import GroupFencedError
from dataplane_client.records.filters import Where
from dataplane_client.records.meta import KVBatchMeta
from rl_dataplane.v1 import data_plane_pb2 as pb

_growing = threading.Lock()
"""Held while the meta of a group gets the rows of an add."""


@short_tracebacks
class AsyncGroup(AsyncHandle):
    """A reserved group; made by `reserve_group`. Its rows are hidden from claims until it is committed. As a context
    manager it commits on a clean exit; on an exception, and if the commit is refused, it aborts, with the exception's
    type and message as the reason.

    group_id: its name in the partition. reservation_id: the name of this reservation on the server. meta: its rows,
    those that were added included. abort_hint: the server's answer to the last put: why the rows are too stale for a
    task already, so that generation may stop; empty if they are not.

    state: "open" until this object ends it ("committed", "aborted") or learns that the server has fenced it ("fenced").
    A group stays reserved as long as this object and the client that holds it live; after that its rows vanish, with a
    ResourceWarning if the object was garbage-collected first. An open group can be pickled, for other processes to put
    rows of it or to end it; it still belongs to the object from which it was pickled.
    """

    _fenced_error = GroupFencedError
    _fenced_reason = "GROUP_FENCED"
    _give_up_verb = "AbortGroup"
    _given_up_state = "aborted"

    state: Literal["open", "committed", "aborted", "fenced"]

    def __init__(
        self,
        session: AsyncSession,
        group_id: str,
        reservation_id: str,
        meta: KVBatchMeta,
        *,
        gives_back: bool = True,
    ) -> None:
        super().__init__(session, f"group {group_id!r}", gives_back=gives_back)
        self.group_id = group_id
        self.reservation_id = reservation_id
        self.meta = meta
        self.abort_hint = ""

    def __repr__(self) -> str:
        where = f"{self.meta.partition_id}/{self.group_id}"
        return f"<{type(self).__name__} {self.reservation_id} {where} {self.meta.size} rows {self.state}>"

    def __reduce__(self) -> tuple[object, ...]:
        self._check_open()
        return partial(type(self), gives_back=False), (self._session, self.group_id, self.reservation_id, self.meta)

    async def put(
        self,
        sample_ids: Sequence[str],
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        only_if: Where | None = None,
        once: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of some rows of the group, as put_samples does. May be called any number of times.

        Raises GroupFencedError when the group is no longer reserved, PreconditionError when this object has ended it,
        NotFoundError for a row that does not exist (`add` creates rows), InvalidArgumentError for a row outside the
        group, and the errors of put_samples.
        """
        where = f"put into group {self.group_id!r}"
        put = self._put_request(where, sample_ids, fields, tags, sequence_lengths, once, only_if)
        return await self._put(put, timeout_s)

    async def add(
        self,
        sample_ids: Sequence[str],
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        once: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Create rows of the group, with their first columns and tags, in one atomic put; the arguments are those of
        put_samples. May be called any number of times, also for a group that was reserved with rows. What put_shared
        writes, before or after, is part of every row. Ids that are rows of the group already are written as by `put`.

        Raises InvalidArgumentError for a row outside the group, or more than 4,096 rows in it, OutOfSpaceError when the
        server's limit of rows is reached, GroupFencedError when the group is no longer reserved, PreconditionError when
        this object has ended it, and the errors of put_samples.
        """
        put = self._put_request(f"add to group {self.group_id!r}", sample_ids, fields, tags, sequence_lengths, once)
        put.header.add_to_group = True
        added = await self._put(put, timeout_s)
        with _growing:
            self.meta = _with_rows(self.meta, added)
        return added

    def _put_request(
        self,
        where: str,
        sample_ids: Sequence[str],
        fields: Fields | None,
        tags: Sequence[Mapping[str, GivenTag]] | None,
        sequence_lengths: Sequence[int] | None,
        once: Sequence[str],
        only_if: Where | None = None,
    ) -> Put:
        self._check_open()
        partition_id, caller = self.meta.partition_id, self._session.transport.options.caller
        rows = (where, partition_id, sample_ids, fields, caller)
        return put_request(*rows, tags=tags, sequence_lengths=sequence_lengths, only_if=only_if, once=once)

    async def _put(self, put: Put, timeout_s: float | None) -> KVBatchMeta:
        put.header.reservation_id = self.reservation_id
        with self._watch_for_fence():
            response = await write_rows(self._session.transport, put.write, timeout_s)
        self.abort_hint = response.abort_hint
        return put.receipt(response)

    async def append_tokens(
        self,
        sample_ids: Sequence[str],
        fields: Fields,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Add entries to the end of the per-token fields of some rows of the group, as the client's append_tokens does.

        Raises GroupFencedError when the group is no longer reserved, NotFoundError for a row that does not exist,
        InvalidArgumentError for a row outside the group, and the errors of append_tokens.
        """
        self._check_open()
        where, caller = f"append_tokens in group {self.group_id!r}", self._session.transport.options.caller
        put = put_request(where, self.meta.partition_id, sample_ids, fields, caller, tags=tags, append=True)
        return await self._put(put, timeout_s)

    async def put_shared(self, fields: Fields, *, timeout_s: float | None = None) -> None:
        """Write values that all rows of the group share, such as an image of the prompt. They are stored once and read
        as part of every row, also of rows that are added later.

        fields: columns of one row each, not per-token fields. Errors as `put`.
        """
        self._check_open()
        where = f"put_shared into group {self.group_id!r}"
        put = shared_put_request(where, self.meta.partition_id, fields, self._session.transport.options.caller)
        await self._put(put, timeout_s)

    async def commit(self, weight_version: int | None = None, *, timeout_s: float | None = None) -> int:
        """Show the rows to claims, all at once. Returns how many there are.

        weight_version: of the weights with which generation ended; claims with whole_groups return it. A commit that
        was not answered can be repeated within ten minutes, and takes effect once. If the server has committed the
        group at its deadline, nothing more happens, and the rows are those that were complete then. Raises
        PreconditionError while the group has no row, or a row no field (the group stays reserved), and when this object
        has ended the group, GroupFencedError when the group is no longer reserved.
        """
        if self.state != "fenced":  # the server says how a fenced group ended
            self._check_open()
        self._commit_id = self._commit_id or new_request_id()
        request = pb.FinishGroupRequest(
            request_id=self._commit_id,
            reservation_id=self.reservation_id,
            weight_version=checked_version(weight_version, f"commit of group {self.group_id!r}"),
        )
        with self._watch_for_fence():
            response = await self._session.transport.unary("FinishGroup", request, timeout_s)
        self.state = "committed"
        return int(response.rows)

    async def fail(self, sample_ids: Sequence[str], reason: str = "", *, timeout_s: float | None = None) -> int:
        """Remove rows whose generation failed: no consumer sees them, and they count as "failed". The other rows stay
        reserved, and their tag "missing_rows" counts how many their group lacks. If none is left, also of those that
        copies of this object added, the group has been aborted. Returns how many were removed. reason: for the samples'
        history, at most 256 bytes.

        Raises GroupFencedError when the group is no longer reserved, NotFoundError for a row that does not exist,
        InvalidArgumentError for a row outside the group.
        """
        self._check_open()
        names = checked_names("sample id", sample_ids, f"fail in group {self.group_id!r}")
        if not names:
            return 0
        request = self._give_up_request(reason)
        request.sample_ids.extend(names)
        response = await self._give_up_rows(request, timeout_s)
        with _growing:
            self.meta = _without_rows(self.meta, names)
        if response.ended:  # the meta does not tell: other processes may have added rows
            self.state = "aborted"
        return int(response.removed_rows)

    async def abort(self, reason: str = "", *, timeout_s: float | None = None) -> int:
        """Remove the rows. Returns how many there were. reason: for the samples' history, at most 256 bytes.

        Raises GroupFencedError when the group is no longer reserved.
        """
        self._check_open()
        return int((await self._give_up(self._give_up_request(reason), timeout_s)).removed_rows)

    def _give_up_request(self, reason: str) -> pb.AbortGroupRequest:
        checked = checked_name("reason", reason, f"abort of group {self.group_id!r}")
        return pb.AbortGroupRequest(request_id=new_request_id(), reservation_id=self.reservation_id, reason=checked)


def _with_rows(meta: KVBatchMeta, added: KVBatchMeta) -> KVBatchMeta:
    """A group's meta with the rows of an add."""
    generation_of = dict(zip(meta.sample_ids, meta.generations or (), strict=True))
    generation_of.update(zip(added.sample_ids, added.generations or (), strict=True))
    return replace(meta, sample_ids=list(generation_of), generations=list(generation_of.values()))


def _without_rows(meta: KVBatchMeta, removed: Sequence[str]) -> KVBatchMeta:
    """A group's meta without some rows."""
    gone = set(removed)
    return meta.subset([place for place, sample_id in enumerate(meta.sample_ids) if sample_id not in gone])
