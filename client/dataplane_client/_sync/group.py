"""The rows of one prompt, put one by one and shown to claims all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dataplane_client._arguments import checked_name
from dataplane_client._requests import (
    Fields,
    GivenTag,
    checked_version,
    new_request_id,
    put_request,
    shared_put_request,
)
from dataplane_client._sync.handle import Handle
from dataplane_client._sync.row_writes import write_put
from dataplane_client._sync.session import Session
from dataplane_client.errors import GroupFencedError
from dataplane_client.meta import KVBatchMeta
from rl_dataplane.v1 import data_plane_pb2 as pb


class Group(Handle):
    """A reserved group; made by `reserve_group`. Its rows are hidden from claims until it is committed. As a context
    manager it commits on a clean exit; on an exception it aborts, with the name of the exception's type as the reason.

    group_id: its name in the partition. reservation_id: the name of this reservation on the server. meta: its rows.

    state: "open" until this object ends it ("committed", "aborted") or learns that the server has fenced it ("fenced").
    A group stays reserved as long as the client that holds it lives; with that client its rows vanish.
    """

    _fenced_error = GroupFencedError
    _fenced_reason = "GROUP_FENCED"
    _give_up_verb = "AbortGroup"
    _given_up_state = "aborted"

    state: Literal["open", "committed", "aborted", "fenced"]

    def __init__(self, session: Session, group_id: str, reservation_id: str, meta: KVBatchMeta) -> None:
        super().__init__(session, f"group {group_id!r}")
        self.group_id = group_id
        self.reservation_id = reservation_id
        self.meta = meta

    def __repr__(self) -> str:
        where = f"{self.meta.partition_id}/{self.group_id}"
        return f"<{type(self).__name__} {self.reservation_id} {where} {self.meta.size} rows {self.state}>"

    def put(
        self,
        sample_ids: Sequence[str],
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of some rows of the group, as put_samples does. May be called any number of times.

        Raises GroupFencedError when the group is no longer reserved, InvalidArgumentError for a row outside the group,
        and the errors of put_samples.
        """
        self._check_open()
        where = f"put into group {self.group_id!r}"
        partition_id, caller = self.meta.partition_id, self._session.transport.options.caller
        put = put_request(where, partition_id, sample_ids, fields, caller, tags=tags, sequence_lengths=sequence_lengths)
        put.header.reservation_id = self.reservation_id
        with self._watch_for_fence():
            return put.receipt(write_put(self._session.transport, put, timeout_s))

    def put_shared(self, fields: Fields, *, timeout_s: float | None = None) -> None:
        """Write values that all rows of the group share, such as an image of the prompt. They are stored once and read
        as part of every row.

        fields: columns of one row each, not per-token fields. Errors as `put`.
        """
        self._check_open()
        where = f"put_shared into group {self.group_id!r}"
        put = shared_put_request(where, self.meta.partition_id, fields, self._session.transport.options.caller)
        put.header.reservation_id = self.reservation_id
        with self._watch_for_fence():
            self._session.transport.write("PutSamples", put.header, put.columns, timeout_s)

    def commit(self, weight_version: int | None = None, *, timeout_s: float | None = None) -> int:
        """Show the rows to claims, all at once. Returns how many there are.

        weight_version: of the weights with which generation ended; claims with whole_groups return it. Raises
        PreconditionError while a row has no field (the group stays reserved), GroupFencedError when the group is no
        longer reserved.
        """
        self._check_open()
        request = pb.FinishGroupRequest(
            request_id=new_request_id(),
            reservation_id=self.reservation_id,
            weight_version=checked_version(weight_version, f"commit of group {self.group_id!r}"),
        )
        with self._watch_for_fence():
            response = self._session.transport.unary("FinishGroup", request, timeout_s)
        self.state = "committed"
        return int(response.rows)

    def abort(self, reason: str = "", *, timeout_s: float | None = None) -> int:
        """Remove the rows. Returns how many there were. reason: for the samples' history, at most 256 bytes.

        Raises GroupFencedError when the group is no longer reserved.
        """
        self._check_open()
        return int((self._give_up(self._give_up_request(reason), timeout_s)).removed_rows)

    def _give_up_request(self, reason: str) -> pb.AbortGroupRequest:
        checked = checked_name("reason", reason, f"abort of group {self.group_id!r}")
        return pb.AbortGroupRequest(request_id=new_request_id(), reservation_id=self.reservation_id, reason=checked)
