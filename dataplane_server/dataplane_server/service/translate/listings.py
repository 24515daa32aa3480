"""Lists of partitions, rows, claims and sessions, and explanations of waits, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dataplane_server.core.calls.causes import ExplainedWait, Explanation
from dataplane_server.core.calls.listings import ClaimInfo, Holder, OpenSessionInfo, SamplePage, WaitInfo
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.issued_ids import without_code
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.translate.rows import duration, int64_bytes, optional_duration, packed_tags, partition
from rl_dataplane.v1 import data_plane_pb2 as pb

_PAGE_TASKS = 256
"""Tasks of the partitions of a page. Each takes some 50 microseconds."""
_PAGE_BYTES = 1 << 20
_LISTED_TASKS = 8192
"""Tasks of all partitions that one answer may describe."""


def partitions(
    plane: DataPlane, seen: Iterable[str], request: pb.ListPartitionsRequest, now: float
) -> pb.ListPartitionsResponse:
    """A page of partitions; without a page_size all of them. seen: those that the caller may see. Refusal LIMIT_REACHED
    if they are too many.
    """
    left = sorted(name for name in seen if name > request.page_token)
    if not request.page_size:
        return _all_partitions(plane, left, now)
    page = pb.ListPartitionsResponse()
    tasks = size_bytes = 0
    for name in left[: request.page_size]:
        tasks += len(plane.partitions[name].tasks)
        if page.partitions and (tasks > _PAGE_TASKS or size_bytes > _PAGE_BYTES):
            break
        page.partitions.append(partition(plane.partition_info(name, now)))
        size_bytes += page.partitions[-1].ByteSize()
    if len(page.partitions) < len(left):
        page.next_page_token = page.partitions[-1].partition_id
    return page


def _all_partitions(plane: DataPlane, names: Sequence[str], now: float) -> pb.ListPartitionsResponse:
    tasks = sum(1 + len(plane.partitions[name].tasks) for name in names)
    if tasks <= _LISTED_TASKS:
        response = pb.ListPartitionsResponse(partitions=[partition(plane.partition_info(name, now)) for name in names])
        if response.ByteSize() <= MAX_MESSAGE_BYTES:
            return response
    message = f"{len(names)} partitions with their tasks are too many for one answer; ask for pages (page_size)"
    raise Refusal(Reason.LIMIT_REACHED, message)


def holders(held: Iterable[Holder]) -> list[pb.MemoryHolder]:
    return [
        pb.MemoryHolder(
            client_name=holder.name,
            lent_bytes=holder.lent_bytes,
            leased_bytes=holder.leased_bytes,
            owed_bytes=holder.owed_bytes,
        )
        for holder in held
    ]


def samples(page: SamplePage) -> pb.ListSamplesResponse:
    return pb.ListSamplesResponse(
        sample_ids=page.sample_ids,
        generations=int64_bytes(page.generations),
        sequence_lengths=int64_bytes(page.sequence_lengths),
        row_tags=map(packed_tags, page.tags),
        states=b"" if page.states is None else page.states.tobytes(),
        next_page_token=page.next_page,
    )


def claims(
    open_claims: Iterable[ClaimInfo], waits: Iterable[WaitInfo], *, whole_ids: bool = True
) -> pb.ListClaimsResponse:
    """whole_ids: of sessions, which name them in calls."""
    return pb.ListClaimsResponse(claims=[_claim(claim, whole_ids) for claim in open_claims], waiting=map(_wait, waits))


def _claim(claim: ClaimInfo, whole_ids: bool) -> pb.OpenClaim:
    return pb.OpenClaim(
        claim_id=claim.claim_id,
        partition_id=claim.partition_id,
        task=claim.task,
        rows=claim.rows,
        age=duration(claim.age_s),
        session_ids=claim.session_ids if whole_ids else map(without_code, claim.session_ids),
        client_names=claim.client_names,
        step=claim.step,
        dp_rank=claim.dp_rank,
    )


def _wait(wait: WaitInfo) -> pb.WaitingClaim:
    return pb.WaitingClaim(
        partition_id=wait.partition_id,
        task=wait.task,
        required_fields=wait.required_fields,
        min_size=wait.min_size,
        age=duration(wait.age_s),
        client_name=wait.client_name,
        ready=wait.ready,
        lacking_rows=wait.lacking,
    )


def waits(explanation: Explanation) -> pb.ExplainWaitsResponse:
    return pb.ExplainWaitsResponse(waits=map(_explained, explanation.waits), unexamined=explanation.unexamined)


def _explained(wait: ExplainedWait) -> pb.ExplainedWait:
    return pb.ExplainedWait(
        partition_id=wait.partition_id,
        task=wait.task,
        waiting=wait.waiting,
        client_name=wait.client,
        calls=wait.calls,
        age=optional_duration(wait.waits_s),
        wanted=wait.wanted,
        summary=wait.summary,
        causes=[
            pb.WaitCause(
                cause=finding.cause,
                text=finding.text,
                next_step=wait.next_step(finding),
                numbers=finding.numbers,
                field=finding.field_name,
            )
            for finding in wait.findings
        ],
    )


def sessions(infos: Iterable[OpenSessionInfo], *, whole_ids: bool) -> pb.ListSessionsResponse:
    """whole_ids: which name sessions in calls."""
    return pb.ListSessionsResponse(
        sessions=[
            pb.OpenSessionStatus(
                session_id=info.session_id if whole_ids else without_code(info.session_id),
                client_name=info.client_name,
                grace=duration(info.grace_s),
                silence=duration(info.silent_s),
                claims=info.claims,
                claimed_rows=info.rows,
                open_groups=info.groups,
            )
            for info in infos
        ]
    )
