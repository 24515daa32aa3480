"""Verbs that list samples, claims, groups and sessions, and explain waits. They change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_client._common.arguments import checked_name
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._requests.requests import list_request
from dataplane_client._verbs._sync.transport import Transport
from dataplane_client.records.filters import Where
from dataplane_client.records.listings import (
    ClaimList,
    Explanation,
    GroupList,
    SamplePage,
    SessionDescription,
    claim_list,
    explanation,
    group_list,
    sample_page,
    session_list,
)
from rl_dataplane.v1 import data_plane_pb2 as pb


@short_tracebacks
class ListingVerbs:
    """Part of the client."""

    _transport: Transport

    def list_samples(
        self,
        partition_id: str,
        *,
        task_name: str | None = None,
        states: Sequence[str] | None = None,
        where: Where | None = None,
        page_size: int = 1000,
        page: int | None = None,
        timeout_s: float | None = None,
    ) -> SamplePage:
        """List rows in order of arrival, with tags and without values.

        task_name: adds the state of each row for this task. states: only rows in one of these states of the task:
        "untaken", "claimed", "consumed", "delayed", "dead". where: only rows that fit a filter, such as
        "std > 0.1 and age_s < 60", or a mapping of the tags that they have; see docs/semantics.md, "Filters".
        page_size: 1 to 65,536 rows. page: next_page of the page before; None for the first. A page may hold fewer rows
        than page_size, and even none, while next_page is not None: with `where`, one call looks at 65,536 rows.

        A page shows one point in time. Raises NotFoundError for an unknown partition or task, InvalidArgumentError for
        states without a task and for an expression that is no filter.
        """
        request = list_request(partition_id, task_name, states, where, page_size, page)
        return sample_page(self._transport.unary("ListSamples", request, timeout_s), partition_id, task_name)

    def claims(
        self, partition_id: str | None = None, task_name: str | None = None, *, timeout_s: float | None = None
    ) -> ClaimList:
        """List open claims (who holds how many rows since when) and waiting claims (who waits for what). None: of all
        partitions, of all tasks. Raises NotFoundError for an unknown partition or task.
        """
        request = pb.ListClaimsRequest(
            partition_id=checked_name("partition id", partition_id or "", "claims"),
            task=checked_name("task name", task_name or "", "claims"),
        )
        return claim_list(self._transport.unary("ListClaims", request, timeout_s))

    def groups(self, partition_id: str, *, timeout_s: float | None = None) -> GroupList:
        """List the groups of a partition that are reserved, with who fills them and what each lacks, and those that
        were given up. Raises NotFoundError for an unknown partition.
        """
        request = pb.ListGroupsRequest(partition_id=checked_name("partition id", partition_id, "groups"))
        return group_list(self._transport.unary("ListGroups", request, timeout_s))

    def why(
        self, partition_id: str | None = None, task_name: str | None = None, *, timeout_s: float | None = None
    ) -> Explanation:
        """Explain why calls wait: claims, puts, commits, groups and draws, the longest wait first. Changes nothing.

        None: of all partitions, of all tasks. With a partition, also its tasks that take no rows although no claim
        waits; with a task, its claims only. docs/why.md lists the causes. Raises NotFoundError for an unknown partition
        or task.
        """
        request = pb.ExplainWaitsRequest(
            partition_id=checked_name("partition id", partition_id or "", "why"),
            task=checked_name("task name", task_name or "", "why"),
        )
        return explanation(self._transport.unary("ExplainWaits", request, timeout_s))

    def sessions(self, *, timeout_s: float | None = None) -> list[SessionDescription]:
        """List open sessions and what they hold, the oldest first."""
        return session_list(self._transport.unary("ListSessions", pb.ListSessionsRequest(), timeout_s))
