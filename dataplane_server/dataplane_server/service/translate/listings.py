"""Lists of partitions, rows, claims and sessions, what is known of a row, and why calls wait, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dataplane_server.core.calls.answers import ResidentSample, SampleEvent, SampleHistory
from dataplane_server.core.calls.causes import ExplainedWait, Explanation, Finding
from dataplane_server.core.calls.listings import (
    ClaimInfo,
    GroupInfo,
    GroupList,
    Holder,
    OpenSessionInfo,
    SamplePage,
    WaitInfo,
)
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.issued_ids import without_code
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.translate.forms import MAPPER
from dataplane_server.service.translate.rows import partition
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.records import duration

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


holder = MAPPER.writer(Holder, pb.MemoryHolder)
MAPPER.writer(GroupInfo, pb.ListedGroup)
samples = MAPPER.writer(SamplePage, pb.ListSamplesResponse, row_tags="tags")
_claim = MAPPER.writer(ClaimInfo, pb.OpenClaim)
_wait = MAPPER.writer(WaitInfo, pb.WaitingClaim)
_session = MAPPER.writer(OpenSessionInfo, pb.OpenSessionStatus)
_cause = MAPPER.writer(
    Finding, pb.WaitCause, field="field_name", leave=("next_step", "partition_id", "task", "waiting")
)


def claims(
    open_claims: Iterable[ClaimInfo], waits: Iterable[WaitInfo], *, whole_ids: bool = True
) -> pb.ListClaimsResponse:
    """whole_ids: of sessions, which name them in calls."""
    if not whole_ids:
        open_claims = (replace(info, session_ids=tuple(map(without_code, info.session_ids))) for info in open_claims)
    return pb.ListClaimsResponse(claims=map(_claim, open_claims), waiting=map(_wait, waits))


groups = MAPPER.writer(GroupList, pb.ListGroupsResponse)


def _causes(wait: ExplainedWait) -> Iterator[pb.WaitCause]:
    for finding in wait.findings:
        cause = _cause(finding)
        cause.next_step = wait.next_step(finding)
        yield cause


_explained = MAPPER.writer(ExplainedWait, pb.ExplainedWait, causes=_causes, leave=("findings",))
waits = MAPPER.writer(Explanation, pb.ExplainWaitsResponse)


def sessions(infos: Iterable[OpenSessionInfo], *, whole_ids: bool) -> pb.ListSessionsResponse:
    """whole_ids: which name sessions in calls."""
    if not whole_ids:
        infos = (replace(info, session_id=without_code(info.session_id)) for info in infos)
    return pb.ListSessionsResponse(sessions=map(_session, infos))


_resident = MAPPER.writer(ResidentSample, pb.GetSampleResponse, resident=lambda _: True, leave=("events",))
_event = MAPPER.writer(SampleEvent, pb.SampleEvent, leave=("age", "at"))


def sample(value: SampleHistory, now: float) -> pb.GetSampleResponse:
    response = pb.GetSampleResponse() if value.resident is None else _resident(value.resident)
    for event in value.events:
        message = _event(event)
        message.age.CopyFrom(duration(max(0.0, now - event.at)))
        response.events.append(message)
    return response
