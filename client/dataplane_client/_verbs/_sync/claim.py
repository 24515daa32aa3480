"""Claimed rows, until they are committed or released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dataplane_client._common.arguments import checked_name
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._requests.claim_requests import release_request
from dataplane_client._requests.padded_puts import carried_lengths
from dataplane_client._requests.requests import GivenTag, Put, new_request_id, put_request, wire_columns
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.codec import Fields
from dataplane_client._values.column_messages import column_message
from dataplane_client._verbs._sync.handle import Handle
from dataplane_client._verbs._sync.row_writes import write_rows
from dataplane_client._verbs._sync.session import Session
from dataplane_client.errors import ClaimFencedError, NotFoundError, PreconditionError, ReplacedError
from dataplane_client.records.descriptions import sample_description
from dataplane_client.records.grants import ClaimedGroup, Grant
from dataplane_client.records.meta import KVBatchMeta, Tag
from dataplane_client.records.provenance import RowProvenance, row_provenance
from rl_dataplane.v1 import data_plane_pb2 as pb


@short_tracebacks
class Claim(Handle):
    """An open claim; made by `claim`, `claim_shard` and `adopt_claim`. As a context manager it commits on a clean exit;
    on an exception it releases the rows, with the exception's type and message as the reason.

    meta: the rows. claim_id: its name on the server. deliveries: how often each row has been delivered to the task,
    this time included. staleness: how many versions each row was behind the partition's weight version when it was
    granted, -1 if unknown. Both are empty for an adopted claim. groups: with whole_groups, the groups in the order of
    their rows. committed: this is a shard, and a rank that shares it had committed it before; the rows count as
    consumed, and `commit` without fields returns the first answer.

    state: "open" until this object ends it ("committed", "released"), hands it over ("detached") or learns that the
    server has fenced it ("fenced"). A claim stays open, for hours if need be, as long as this object and the client
    that holds it live. When an open claim is garbage-collected, its rows return to the task as a failed delivery, with
    a ResourceWarning. A shard does not return then: other ranks may hold it, and claim_shard gives it out again.
    """

    _fenced_error = ClaimFencedError
    _fenced_reason = "CLAIM_FENCED"
    _give_up_verb = "ReleaseClaim"
    _given_up_state = "released"

    state: Literal["open", "committed", "released", "fenced", "detached"]

    def __init__(self, session: Session, grant: Grant, *, gives_back: bool = True) -> None:
        super().__init__(session, f"claim {grant.claim_id}", gives_back=gives_back)
        self.claim_id = grant.claim_id
        self.meta: KVBatchMeta = grant.meta
        self.deliveries: list[int] = grant.deliveries
        self.staleness: list[int] = grant.staleness
        self.groups: tuple[ClaimedGroup, ...] = grant.groups
        self.committed: bool = grant.committed

    def __repr__(self) -> str:
        where = f"{self.meta.partition_id}/{self.meta.task_name}"
        return f"<{type(self).__name__} {self.claim_id} {where} {self.meta.size} rows {self.state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise PreconditionError(
            f"{self._label} cannot be pickled, because the session of this process holds it: send claim.detach() and "
            "claim.meta, and call client.adopt_claim(claim_id, meta) there"
        )

    def detach(self) -> str:
        """Leave the claim open without this object, for another client to adopt. Returns claim_id.

        Until then this client's session holds it. Raises PreconditionError unless the claim is open.
        """
        self._check_open()
        self.state = "detached"
        return self.claim_id

    @property
    def fence(self) -> int:
        """A number that grows with every delivery of the server: of two claims on a row, the greater is the later."""
        return int(self.claim_id.rpartition("-")[2])

    @property
    def tags(self) -> list[dict[str, Tag]]:
        """The meta's tags. Raises PreconditionError if it has none, as the meta of an adopted claim may."""
        if self.meta.tags is None:
            raise PreconditionError(f"the meta of {self._label} has no tags")
        return self.meta.tags

    @property
    def sequence_lengths(self) -> list[int]:
        """The meta's tokens of each row. Raises PreconditionError if it has none: some row's length is not known."""
        if self.meta.sequence_lengths is None:
            known_by = "put the rows with sequence_lengths or a per-token field"
            raise PreconditionError(f"the meta of {self._label} has no sequence_lengths: {known_by}")
        return self.meta.sequence_lengths

    def write(self, fields: Fields, *, timeout_s: float | None = None) -> None:
        """Write columns of the claimed rows and keep the claim. fields: one row for each row of the meta, in its order.

        The write is atomic and happens only while the claim is open. Raises ClaimFencedError when the server has ended
        the claim, NotFoundError when a row was cleared (ReplacedError when it was also put again), and the errors of
        put_samples.
        """
        self._check_open()
        meta, caller = self.meta, self._session.transport.options.caller
        where = f"write under claim {self.claim_id}"
        put = put_request(where, meta.partition_id, meta.sample_ids, fields, caller, generations=meta.generations)
        put.write.lengths = put.write.lengths or meta.sequence_lengths
        self._put(put, timeout_s)

    def append_tokens(
        self,
        sample_ids: Sequence[str],
        fields: Fields,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Add entries to the end of the per-token fields of some claimed rows, as the client's append_tokens does, and
        keep the claim. The tags change in the same atomic step. The meta stays as it was granted.

        Raises ClaimFencedError when the server has ended the claim, NotFoundError for a row that was cleared,
        InvalidArgumentError for a row outside the claim, and the errors of append_tokens.
        """
        self._check_open()
        where, caller = f"append_tokens under claim {self.claim_id}", self._session.transport.options.caller
        put = put_request(where, self.meta.partition_id, sample_ids, fields, caller, tags=tags, append=True)
        self._put(put, timeout_s)

    def _put(self, put: Put, timeout_s: float | None) -> None:
        put.header.claim_id = self.claim_id
        with self._watch_for_fence():
            write_rows(self._session.transport, put.write, timeout_s)

    def commit(
        self, fields: Fields | None = None, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> int:
        """End the claim and consume its rows. Returns how many of them still existed.

        fields: columns to write in the same atomic step, one row for each row of the meta, in its order. The meta's
        sequence_lengths tell the padding of per-token fields, or else the column input_lengths. request_id: a name for
        this commit, at most 64 bytes; None for one that all commits of this object share. A repetition with the same
        name within ten minutes, also from another process, gets the first answer. All ranks that share a shard may
        commit it: the first commit counts.

        Raises ClaimFencedError when the server has ended the claim: nothing was written, and the rows may have been
        redelivered. Raises ClaimNotFoundError when the claim was committed or released elsewhere, NotFoundError when
        fields are given for a row that was cleared (the claim stays open), and the errors of put_samples.
        """
        self._check_open()
        where = f"commit of claim {self.claim_id}"
        meta = self.meta
        columns = wire_columns(fields, meta.sample_ids, where)
        lengths = meta.sequence_lengths or carried_lengths(fields, None, meta.sample_ids, where)
        if request_id is None:
            self._commit_id = self._commit_id or new_request_id()
        header = pb.CommitClaimHeader(
            request_id=self._commit_id if request_id is None else checked_name("request id", request_id, where),
            claim_id=self.claim_id,
            columns=[column_message(column) for column in columns],
        )
        write = RowWrite("CommitClaim", header, columns, meta.partition_id, meta.size, lengths)
        with self._watch_for_fence():
            response = write_rows(self._session.transport, write, timeout_s)
        self.state = "committed"
        return int(response.consumed_rows)

    def provenance(self, *, timeout_s: float | None = None) -> list[RowProvenance]:
        """What each row consists of, in the meta's order: producers, weight version, digests, deliveries, commit.

        Works while the rows are there, before or after the commit, at the cost of a call for each row. Raises
        NotFoundError for a row that was cleared, and if the task is not registered any more, ReplacedError for a row
        that was also put again, and PreconditionError if the meta has no generations, as that of an adopted claim may.
        """
        found, meta, transport = [], self.meta, self._session.transport
        deadline = transport.deadline(timeout_s)
        if meta.generations is None:
            raise PreconditionError(f"the meta of {self._label} has no generations, which say what was claimed")
        for sample_id, generation in zip(meta.sample_ids, meta.generations, strict=True):
            request = pb.GetSampleRequest(partition_id=meta.partition_id, sample_id=sample_id)
            row = sample_description(transport.unary("GetSample", request, deadline.left_s))
            if row.generation != generation:
                error, what = (ReplacedError, "put again") if row.resident else (NotFoundError, "cleared")
                raise error(f"provenance of {self._label}: sample {sample_id!r} was {what} since it was claimed")
            found.append(row_provenance(sample_id, row, meta.task_name or ""))
        return found

    def release(self, *, delay_s: float = 0.0, reason: str = "", timeout_s: float | None = None) -> int:
        """End the claim and return its rows to the head of the task's queue; those of a shard stay with their step,
        without a delay. Returns how many of them still existed.

        delay_s: seconds before the rows can be claimed again, at most a day. reason: at most 256 bytes. With a reason
        the delivery has failed and counts towards the partition's max_deliveries; without one ("") the rows count as
        not delivered. Raises ClaimFencedError when the server has ended the claim, ClaimNotFoundError when it was ended
        otherwise.
        """
        self._check_open()
        return int((self._give_up(release_request(self.claim_id, delay_s, reason), timeout_s)).released_rows)

    def _give_up_request(self, reason: str) -> pb.ReleaseClaimRequest:
        return release_request(self.claim_id, 0.0, reason)
