"""Verbs that claim rows for a task, and that reserve groups."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from dataplane_client._common.arguments import checked_name
from dataplane_client._common.arrays import generations_of
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._connect.deadline import ANSWER_MARGIN_S, Deadline
from dataplane_client._connect.options import MAX_TIMEOUT_S
from dataplane_client._requests.claim_requests import (
    Balance,
    claim_request,
    release_request,
    reserve_request,
    reset_request,
    shard_request,
)
from dataplane_client._requests.requests import GivenTag, new_request_id, put_request
from dataplane_client._values.codec import Fields
from dataplane_client._verbs._sync.claim import Claim
from dataplane_client._verbs._sync.group import Group
from dataplane_client._verbs._sync.row_writes import write_rows
from dataplane_client._verbs._sync.runtime import opens
from dataplane_client._verbs._sync.session import Session
from dataplane_client._verbs._sync.transport import Transport
from dataplane_client.errors import ClaimTimeoutError, DataPlaneError, GroupFencedError
from dataplane_client.records.descriptions import DeadLetter, dead_letter
from dataplane_client.records.filters import Where
from dataplane_client.records.grants import Grant, decode_grant
from dataplane_client.records.meta import KVBatchMeta, checked_meta
from dataplane_client.records.tasks import BatchUnit, ClaimOrder, Selection
from rl_dataplane.v1 import data_plane_pb2 as pb

_NO_RESERVATION = "-"
"""No server gives a reservation this name."""


@short_tracebacks
class ClaimVerbs:
    """Part of the client."""

    _transport: Transport
    _session: Session

    @opens
    def claim(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        min_size: int | None = None,
        whole_groups: bool = False,
        unit: BatchUnit | None = None,
        max_tokens: int | None = None,
        where: Where | None = None,
        order: ClaimOrder | None = None,
        order_tag: str = "",
        timeout_s: float = 60.0,
    ) -> Claim:
        """Claim rows for a task until they are committed or released, or this client dies.

        Claims rows that hold all required fields and that the task has not taken, in the order in which they became
        ready. Blocks until min_size rows are ready (None: batch_size) and claims up to batch_size.

        whole_groups: claim the rows of a group together, and only when all are ready; batch_size and min_size then
        count groups, and a row outside of groups counts as a group. unit: "rows" makes them count rows of such groups:
        the claim takes the next groups as long as their rows fit into batch_size. max_tokens: claim no more rows (or
        groups) than have this many tokens together; None for no limit. Both take at least one row (or group), and may
        take less than min_size.

        where: claim only rows that fit, such as "weight_version >= 17 and std > 0" (with whole_groups, only groups of
        which every row fits). order, order_tag: which rows come first, as in `TaskPolicy`; None for the order of the
        task's policy. Claims of one filter and order are served first come, first served.

        Raises ClaimTimeoutError, with nothing claimed, when timeout_s passes first; EndOfDataError, at once, when the
        partition is closed and fewer than min_size rows are left for the task; NotFoundError for an unknown partition
        or task; InvalidArgumentError for an undeclared field or invalid sizes. Rows whose grant did not arrive here
        return to the task.
        """
        request = claim_request(
            partition_id,
            task_name,
            required_fields,
            batch_size,
            mode=pb.CLAIM_MODE_ACKNOWLEDGED,
            min_size=min_size,
            whole_groups=whole_groups,
            max_tokens=max_tokens,
            unit=unit,
            selection=Selection(where, order, order_tag),
        )
        return self._session.request_grant(
            "ClaimSamples",
            request,
            timeout_s,
            lambda found: Claim(self._session, decode_grant(found, request, {})),
        )

    @opens
    def claim_shard(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        step: int,
        dp_rank: int,
        dp_world: int,
        min_size: int | None = None,
        balance: Balance = "tokens",
        max_tokens: int | None = None,
        whole_groups: bool = False,
        unit: BatchUnit | None = None,
        where: Where | None = None,
        order: ClaimOrder | None = None,
        order_tag: str = "",
        again: bool = False,
        timeout_s: float = 60.0,
    ) -> Claim:
        """Claim the rows of one data-parallel rank for one step.

        The first call of a step claims the rows of all ranks, as `claim` does (batch_size, min_size, unit and
        max_tokens count all ranks together), and splits them. Every call for the same step and rank gets the same rows
        under the same claim, so all tensor-, context- and pipeline-parallel ranks see one shard. They hold it together:
        it stays claimed while one of them lives, and the first commit ends it for all. Rows that are no longer held
        stay with their step and go to the next caller, under a new claim. Calls of one step must agree on all but
        dp_rank.

        step: a number on which the ranks agree; the server remembers about the last 64. balance: "tokens" makes the
        sums of sequence_lengths as equal as possible, with numbers of rows that differ by at most one; "rows" splits in
        order. whole_groups: a group goes to one rank. Then "tokens" gives ranks numbers of groups that differ by at
        most one, "rows" makes their numbers of rows as equal as possible, and "groups" splits groups in order. A rank
        may get no row if there are fewer groups than ranks. In a cluster, ranks then exchange rows or groups, so that
        more of them are on the node of their rank, which changes sums by 1 % at most; not with "groups". where, order,
        order_tag: as in `claim`. The meta's extra_info holds dp_rank.

        A shard that another rank has committed is returned with `committed` set, so that a slow rank sees its rows. A
        client whose session was opened after the commit, such as that of a trainer that starts again, is refused
        (PreconditionError, reason SHARD_COMMITTED), unless again=True. Such a trainer goes on with
        `partition(...).task(...).next_step`. Blocks and raises as `claim`, and InvalidArgumentError for a call that
        contradicts the step.
        """
        request = shard_request(
            partition_id,
            task_name,
            required_fields,
            batch_size,
            step=step,
            dp_rank=dp_rank,
            dp_world=dp_world,
            min_size=min_size,
            balance=balance,
            max_tokens=max_tokens,
            whole_groups=whole_groups,
            unit=unit,
            selection=Selection(where, order, order_tag),
            again=again,
        )

        def taken(response: pb.ClaimShardResponse) -> Claim:
            grant = decode_grant(response.claim, request, {"dp_rank": dp_rank})
            return Claim(self._session, grant, gives_back=False)

        return self._session.request_grant("ClaimShard", request, timeout_s, taken)

    @opens
    def adopt_claim(self, claim_id: str, meta: KVBatchMeta, *, timeout_s: float | None = None) -> Claim:
        """Take over an open claim from another client, which sends claim.detach() and claim.meta. From now on it lives
        as long as this client. A call that is cancelled releases the claim, unless it is a shard; one that got no
        answer can be repeated.

        Raises ClaimFencedError or ClaimNotFoundError when the claim has ended.
        """
        checked_meta(meta, "adopt_claim")
        request = pb.AdoptClaimRequest(claim_id=checked_name("claim id", claim_id, "adopt_claim"))
        gives_back = "dp_rank" not in meta.extra_info
        grant = Grant(claim_id, meta, [])
        try:
            return self._session.request_grant(
                "AdoptClaim", request, timeout_s, lambda _: Claim(self._session, grant, gives_back=gives_back)
            )
        except BaseException as error:
            if gives_back and not isinstance(error, DataPlaneError):
                self._session.call_later("ReleaseClaim", release_request(claim_id, 0.0, ""))
            raise

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        """Take rows for a task and consume them at once. Rows that the caller loses are not redelivered; use `claim` to
        avoid that.

        Waits as `claim` does for exactly batch_size rows. blocking=False: returns a meta without rows if fewer are
        ready. dp_rank is copied into the meta's extra_info; it does not affect which rows are taken. Raises
        EndOfDataError, also if blocking=False, when the partition is closed and fewer than batch_size rows are left.
        """
        mode = pb.CLAIM_MODE_CONSUME
        request = claim_request(partition_id, task_name, required_fields, batch_size, mode=mode)
        request.request_id = new_request_id()
        try:
            response = self._transport.unary("ClaimSamples", request, timeout_s, waits=blocking)
        except ClaimTimeoutError:
            if blocking:
                raise
            response = pb.ClaimSamplesResponse()
        extra_info: dict[str, object] = {} if dp_rank is None else {"dp_rank": dp_rank}
        return decode_grant(response, request, extra_info).meta

    def reset(
        self,
        partition_id: str,
        task_name: str,
        sample_ids: Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Return rows (None: all) to a task as if it had never taken them, whether consumed, claimed, delayed or dead.
        Returns how many it had taken. Fences every claim that holds any of them. Ignores unknown ids.

        Raises NotFoundError for an unknown partition or task.
        """
        request = reset_request(partition_id, task_name, sample_ids)
        if not request.sample_ids and not request.whole_task:
            return 0
        return int((self._transport.unary("ResetTask", request, timeout_s)).reset_rows)

    def dead_letters(self, partition_id: str, task_name: str, *, timeout_s: float | None = None) -> list[DeadLetter]:
        """The dead letters of a task: rows delivered max_deliveries times and never committed. In order of arrival, at
        most 65,536. `reset` makes them claimable again. Raises NotFoundError for an unknown partition or task.
        """
        where = f"dead_letters of {partition_id!r}"
        request = pb.ListDeadLettersRequest(
            partition_id=checked_name("partition id", partition_id, where),
            task=checked_name("task name", task_name, where),
        )
        response = self._transport.unary("ListDeadLetters", request, timeout_s)
        return [dead_letter(message) for message in response.dead_letters]

    @opens
    def reserve_group(
        self,
        partition_id: str,
        group_id: str,
        sample_ids: Sequence[str] = (),
        *,
        weight_version: int | None = None,
        deadline_s: float | None = None,
        min_rows: int | None = None,
        complete_fields: Sequence[str] = (),
        max_regenerations: int | None = None,
        timeout_s: float | None = None,
    ) -> Group:
        """Reserve the rows of one prompt. They exist from now on, but are hidden from claims until the group is
        committed. They vanish if this client dies before that. Waits for room in the partition as put_samples does, at
        most timeout_s (None: that of the client); see FlowPolicy.

        group_id: a name in the partition, such as that of the prompt. sample_ids: its rows as far as they are known;
        `add` creates more. weight_version: of the weights with which generation begins, a tag of each row.

        deadline_s: how long the group may stay reserved, at most a day (None: for ever). Then the server commits it
        with the rows that are complete, if they are at least min_rows, and removes the others, which have failed; the
        tag "missing_rows" of its rows counts these. Otherwise it removes the group. complete_fields: what a complete
        row has; none: any value of its own. max_regenerations: how often a group of this id may be reserved again after
        it was removed, by its deadline, `abort`, or with its client.

        Raises PreconditionError when a row or the group exists already, or was removed too often (reason
        GROUP_GIVEN_UP), InvalidArgumentError for more than 4,096 rows and for terms that make no sense, NotFoundError
        for an unknown partition.
        """
        request = reserve_request(
            partition_id,
            group_id,
            sample_ids,
            weight_version,
            deadline_s=deadline_s,
            min_rows=min_rows,
            complete_fields=complete_fields,
            max_regenerations=max_regenerations,
        )

        def taken(response: pb.ReserveGroupResponse) -> Group:
            ids = list(request.sample_ids)
            meta = KVBatchMeta(partition_id, None, ids, generations=generations_of(response.generations, len(ids)))
            return Group(self._session, group_id, response.reservation_id, meta)

        return self._session.request_grant("ReserveGroup", request, timeout_s, taken)

    def put_group(
        self,
        partition_id: str,
        group_id: str,
        sample_ids: Sequence[str],
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        weight_version: int | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Put a whole group: reserve it, write its rows, show them to claims. If a step fails, nothing of it is left.
        Returns how many rows it has.

        weight_version: as in reserve_group. request_id: as in put_samples, whose arguments the others are. Errors as
        reserve_group, put_samples and Group.commit.
        """
        where = f"put_group {group_id!r} of {partition_id!r}"
        deadline = self._transport.deadline(timeout_s)
        rows = (where, partition_id, sample_ids, fields, self._transport.options.caller)
        put = put_request(*rows, tags=tags, sequence_lengths=sequence_lengths)
        name = new_request_id() if request_id is None else checked_name("request id", request_id, where)
        finish = pb.FinishGroupRequest(request_id=name, reservation_id=_NO_RESERVATION)
        if request_id is not None:
            finish.request_digest = put.digest(group_id, weight_version)
            with contextlib.suppress(GroupFencedError):  # no earlier call of this name has finished the group
                return int((self._transport.unary("FinishGroup", finish, deadline.left_s)).rows)
        with self.reserve_group(
            partition_id, group_id, put.sample_ids, weight_version=weight_version, timeout_s=deadline.left_s
        ) as group:
            longest_s = min(deadline.left_s + ANSWER_MARGIN_S, MAX_TIMEOUT_S)
            group._give_up_by = Deadline(longest_s)  # noqa: SLF001 - as the put that may fail
            put.header.reservation_id = finish.reservation_id = group.reservation_id
            write_rows(self._transport, put.write, deadline.left_s)
            rows = (self._transport.unary("FinishGroup", finish, deadline.left_s)).rows
            group.state = "committed"
        return int(rows)
