"""The gRPC service: translates each request into a call of the core, and the answer into a response.

All methods run on one event loop and apply a call between two awaits, so each call is atomic. Claims and sessions are
in `claim_calls` and `session_calls`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

import grpc

from dataplane_server.access.gate import OPEN_GATE, Gate, current_caller
from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation, Stored, Waiting
from dataplane_server.core.calls.refusal import Reason, Refusal, superseded
from dataplane_server.core.calls.requests import (
    AdoptClaim,
    ClosePartition,
    DropPartition,
    EndRead,
    FinishWrite,
)
from dataplane_server.observe.metrics import MOST_HOLDERS, Metrics
from dataplane_server.observe.verdict import reasons_of
from dataplane_server.service import translate
from dataplane_server.service.grpc.claim_calls import ClaimCalls
from dataplane_server.service.grpc.session_calls import SessionCalls
from dataplane_server.service.grpc.value_streams import ValueStreams
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES, FrameReader, Header
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.recent import Recent
from dataplane_server.service.shell import Shell
from dataplane_server.service.snapshots import Snapshots
from dataplane_server.service.translate.filters import rows_that_fit
from dataplane_server.service.values import Begun, Values, Write, begin_write
from dataplane_server.version import VERSION
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1.records import duration, seconds

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

_PAGE_ROWS = 1000


class DataPlaneServicer(pb_grpc.DataPlaneServiceServicer):
    """Serves one core. The comments in data_plane.proto are the contract."""

    no_snapshots = "this server keeps no snapshots; start it with --data-dir DIR"

    def __init__(
        self, shell: Shell, values: Values, metrics: Metrics, gate: Gate = OPEN_GATE, *, started: float | None = None
    ) -> None:
        """started: when the server was, by the time of calls; None for now."""
        self._shell = shell
        self._gate = gate
        self._plane = shell.plane
        self._values = values
        self._metrics = metrics
        self._messages = Messages(self._plane.limits)
        self._put_streams, self._commit_streams = ValueStreams(), ValueStreams()
        self._claims = ClaimCalls(shell, metrics)
        self._sessions = SessionCalls(shell, gate)
        self._started = shell.now() if started is None else started
        self._shared_memory: pb.SharedMemory | None = None
        self._direct_port: pb.DirectPort | None = None
        self._snapshots: Snapshots | None = None
        self.durability = "memory"
        self.recent = Recent(shell.plane, shell.now)

    def share_memory(self, nonce: bytes, abstract_socket: str) -> None:
        """Make server status say how clients of this host reach the arena."""
        self._shared_memory = pb.SharedMemory(nonce=nonce, abstract_socket=abstract_socket)

    def serve_directly(self, port: int, nonce: bytes) -> None:
        """Make server status name the direct port."""
        self._direct_port = pb.DirectPort(port=port, nonce=nonce)

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def RegisterPartition(
        self, request: pb.RegisterPartitionRequest, context: object
    ) -> pb.RegisterPartitionResponse:
        registered = self._shell.apply(translate.rows.register(request))
        self.recent.begin(request.partition_id)
        return translate.rows.registered(registered)

    async def ExtendPartition(self, request: pb.ExtendPartitionRequest, context: object) -> pb.ExtendPartitionResponse:
        info = self._shell.apply(translate.rows.extend(request))
        return pb.ExtendPartitionResponse(partition=translate.rows.partition(info))

    async def ClosePartition(self, request: pb.ClosePartitionRequest, context: object) -> pb.ClosePartitionResponse:
        result = self._shell.apply(ClosePartition(request.request_id, request.partition_id))
        return pb.ClosePartitionResponse(ended_claims=result.ended_claims)

    async def SetWeightVersion(
        self, request: pb.SetWeightVersionRequest, context: object
    ) -> pb.SetWeightVersionResponse:
        retired = self._shell.apply(translate.rows.set_version(request))
        return pb.SetWeightVersionResponse(retired_rows=retired.rows, aborted_groups=retired.groups)

    async def SetPolicies(self, request: pb.SetPoliciesRequest, context: object) -> pb.SetPoliciesResponse:
        info = self._shell.apply(translate.rows.set_policies(request))
        return pb.SetPoliciesResponse(partition=translate.rows.partition(info))

    async def DropPartition(self, request: pb.DropPartitionRequest, context: object) -> pb.DropPartitionResponse:
        result = self._shell.apply(DropPartition(request.request_id, request.partition_id))
        return pb.DropPartitionResponse(dropped_rows=result.dropped_rows)

    async def GetPartition(self, request: pb.GetPartitionRequest, context: object) -> pb.GetPartitionResponse:
        info = self._plane.partition_info(request.partition_id, self._shell.now())
        response = pb.GetPartitionResponse(partition=translate.rows.partition(info))
        self.recent.tell([response.partition])
        return response

    async def ListPartitions(self, request: pb.ListPartitionsRequest, context: object) -> pb.ListPartitionsResponse:
        caller = current_caller()
        seen = [name for name in self._plane.partitions if caller.may("ListPartitions", name)]
        response = translate.listings.partitions(self._plane, seen, request, self._shell.now())
        self.recent.tell(response.partitions)
        return response

    async def GetConsumptionStatus(
        self, request: pb.GetConsumptionStatusRequest, context: object
    ) -> pb.GetConsumptionStatusResponse:
        info = self._plane.consumption(request.partition_id, list(request.tasks), self._shell.now())
        return translate.rows.consumption(info)

    async def GetServerStatus(self, request: pb.GetServerStatusRequest, context: object) -> pb.GetServerStatusResponse:
        status = self.status()
        status.unhealthy.extend(reason.text for reason in reasons_of(status))
        status.caller_proof = self._gate.proof()
        return status

    def status(self) -> pb.GetServerStatusResponse:
        """The server as it is now, without the verdict on it."""
        totals = self._plane.totals(self._shell.now())
        return pb.GetServerStatusResponse(
            version=VERSION,
            memory_budget_bytes=totals.memory_budget_bytes,
            memory_used_bytes=totals.memory_used_bytes,
            rows=totals.rows,
            uptime=duration(self._shell.now() - self._started),
            waiting_claims=totals.waiting_claims,
            waiting_puts=totals.waiting_puts,
            shared_memory=self._shared_memory,
            direct_port=self._direct_port,
            sessions=totals.sessions,
            largest_free_bytes=totals.largest_free_bytes,
            longest_put_wait=None if totals.longest_put_wait_s is None else duration(totals.longest_put_wait_s),
            draining=totals.draining,
            max_rows=self._plane.limits.max_rows,
            durability=self.durability,
            held_bytes=totals.held_bytes,
            holders=map(translate.listings.holder, self._plane.holders(MOST_HOLDERS)),
        )

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def keep_snapshots(self, snapshots: Snapshots) -> None:
        """Serve these snapshots. Until then, calls for one are refused."""
        self._snapshots = snapshots

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: object) -> pb.CreateSnapshotResponse:
        manifest = await self._kept_snapshots().create(request.snapshot, request.request_id)
        return pb.CreateSnapshotResponse(snapshot=translate.rows.snapshot(manifest))

    async def RestoreSnapshot(self, request: pb.RestoreSnapshotRequest, context: object) -> pb.RestoreSnapshotResponse:
        manifest, restored = await self._kept_snapshots().restore(request.snapshot, request.request_id)
        return pb.RestoreSnapshotResponse(snapshot=translate.rows.snapshot(manifest), restored=restored)

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: object) -> pb.ListSnapshotsResponse:
        listed = await self._kept_snapshots().listed()
        return pb.ListSnapshotsResponse(snapshots=map(translate.rows.snapshot, listed))

    def _kept_snapshots(self) -> Snapshots:
        if self._snapshots is None:
            raise Refusal(Reason.INVALID_REQUEST, self.no_snapshots)
        return self._snapshots

    # -- writes --------------------------------------------------------------------------------------------------------

    async def PutSamples(  # type: ignore[override]  # frames are bytes, see Boundary
        self, request_iterator: AsyncIterator[bytes], context: object
    ) -> pb.PutSamplesResponse:
        frames = FrameReader(request_iterator, pb.PutSamplesHeader, self._messages)
        result = await self._write("PutSamples", frames, translate.rows.put, self._put_streams)
        return translate.rows.put_result(cast("PutResult", result))  # a write finishes as it began

    async def CommitClaim(  # type: ignore[override]  # likewise
        self, request_iterator: AsyncIterator[bytes], context: object
    ) -> pb.CommitClaimResponse:
        frames = FrameReader(request_iterator, pb.CommitClaimHeader, self._messages)
        result = await self._write("CommitClaim", frames, translate.rows.commit, self._commit_streams)
        return pb.CommitClaimResponse(consumed_rows=cast("CommitResult", result).consumed_rows)

    async def _write(
        self, verb: str, frames: FrameReader[Header], call_of: Callable[[Header], Write], streams: ValueStreams
    ) -> PutResult | CommitResult:
        header = await frames.first()
        self._gate.permit(verb, header)
        wait_s, digests = seconds(header.wait_timeout), header.digests
        at_hand = frames.only_chunk() if header.one_frame else None
        begun = begin_write(self._shell, self._values, call_of(header), at_hand, digests)
        del header, at_hand  # which may be large, and the write may wait
        result = await self._complete(begun, wait_s, frames, digests, streams)
        self._metrics.carried(verb, "grpc", frames.received_bytes)
        return result

    async def _complete(
        self,
        begun: Begun,
        wait_s: float,
        frames: FrameReader[Header],
        value_digests: bytes,
        streams: ValueStreams,
    ) -> PutResult | CommitResult:
        """Complete a write that has begun: wait for its reservation and a place, receive the values, finish. A failure
        leaves nothing of the write.
        """
        if isinstance(begun, Stored):
            frames.received_bytes = frames.first_bytes
            return begun.result
        if not isinstance(begun, (Reservation, Waiting)):
            return begun
        reservation = await self._shell.reservation(begun, wait_s)
        with self._shell.aborted_on_error(reservation.ticket):
            if reservation.size_bytes <= frames.first_bytes:
                await self._receive(reservation, frames)
            else:
                async with streams.place(wait_s):
                    await self._receive(reservation, frames)
            digests = self._values.digests(reservation)
            once = digests if isinstance(digests, bytes) else await digests
            finish = FinishWrite(reservation.ticket, digests=once, value_digests=value_digests)
            if not self._plane.holds_reservation(reservation.ticket):  # others may have its space, or what rows had
                raise superseded()
            self._values.complete(reservation)
            return self._shell.apply(finish)

    async def _receive(self, reservation: Reservation, frames: FrameReader[Header]) -> None:
        writer = self._values.writer(reservation.runs)
        async for data in frames.chunks(reservation.size_bytes):
            if not self._plane.holds_reservation(reservation.ticket):
                raise superseded()
            writer.write(data)

    async def ClearSamples(self, request: pb.ClearSamplesRequest, context: object) -> pb.ClearSamplesResponse:
        result = self._shell.apply(translate.rows.clear(request))
        return pb.ClearSamplesResponse(cleared_rows=result.cleared_rows, size_bytes=result.size_bytes)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def ReadColumns(  # type: ignore[override]  # likewise
        self, request: pb.ReadColumnsRequest, context: object
    ) -> AsyncIterator[bytes]:
        plan = self._shell.apply(translate.rows.read(request))
        try:
            async for frame in self._values.frames(translate.rows.read_header(plan), plan.runs):
                yield frame
        finally:
            self._shell.give_back(EndRead(plan.ticket))
        self._metrics.carried("ReadColumns", "grpc", plan.size_bytes)

    async def GetSample(self, request: pb.GetSampleRequest, context: object) -> pb.GetSampleResponse:
        sample = self._plane.sample(request.partition_id, request.sample_id)
        return translate.listings.sample(sample, self._shell.now())

    async def ListSamples(self, request: pb.ListSamplesRequest, context: object) -> pb.ListSamplesResponse:
        page = self._plane.list_samples(
            request.partition_id,
            request.task,
            list(request.states),
            rows_that_fit(request.where),
            request.page_size or _PAGE_ROWS,
            request.page_token,
            self._shell.now(),
        )
        response = translate.listings.samples(page)
        if response.ByteSize() > MAX_MESSAGE_BYTES:
            message = (
                f"partition {request.partition_id!r}: ids and tags of {len(page.sample_ids)} rows exceed a message of "
                f"{MAX_MESSAGE_BYTES} bytes; ask for fewer rows (page_size)"
            )
            raise Refusal(Reason.LIMIT_REACHED, message, partition_id=request.partition_id)
        return response

    # -- claims --------------------------------------------------------------------------------------------------------

    async def ClaimSamples(self, request: pb.ClaimSamplesRequest, context: object) -> pb.ClaimSamplesResponse:
        return await self._claims.claim_samples(request)

    async def ClaimShard(self, request: pb.ClaimShardRequest, context: object) -> pb.ClaimShardResponse:
        return await self._claims.claim_shard(request)

    async def ReleaseClaim(self, request: pb.ReleaseClaimRequest, context: object) -> pb.ReleaseClaimResponse:
        result = self._shell.apply(translate.claims.release(request))
        return pb.ReleaseClaimResponse(released_rows=result.released_rows)

    async def AdoptClaim(self, request: pb.AdoptClaimRequest, context: object) -> pb.AdoptClaimResponse:
        self._shell.apply(AdoptClaim(request.request_id, request.claim_id, request.session_id))
        return pb.AdoptClaimResponse()

    async def ResetTask(self, request: pb.ResetTaskRequest, context: object) -> pb.ResetTaskResponse:
        result = self._shell.apply(translate.claims.reset(request))
        return pb.ResetTaskResponse(reset_rows=result.reset_rows, fenced_claims=result.fenced_claims)

    async def ListDeadLetters(self, request: pb.ListDeadLettersRequest, context: object) -> pb.ListDeadLettersResponse:
        return translate.claims.dead_letters(self._plane.dead_letters(request.partition_id, request.task))

    async def DrawSamples(self, request: pb.DrawSamplesRequest, context: object) -> pb.DrawSamplesResponse:
        begun, wait_s = self._shell.apply(translate.claims.draw(request)), seconds(request.wait_timeout)
        return translate.claims.drawn(await self._shell.answer(begun, wait_s), request.partition_id)

    # -- groups --------------------------------------------------------------------------------------------------------

    async def ReserveGroup(self, request: pb.ReserveGroupRequest, context: object) -> pb.ReserveGroupResponse:
        begun, wait_s = self._shell.apply(translate.claims.reserve(request)), seconds(request.wait_timeout)
        return translate.claims.reserved(await self._shell.answer(begun, wait_s))

    async def FinishGroup(self, request: pb.FinishGroupRequest, context: object) -> pb.FinishGroupResponse:
        return pb.FinishGroupResponse(rows=self._shell.apply(translate.claims.finish_group(request)).rows)

    async def AbortGroup(self, request: pb.AbortGroupRequest, context: object) -> pb.AbortGroupResponse:
        result = self._shell.apply(translate.claims.abort_group(request))
        return pb.AbortGroupResponse(removed_rows=result.removed_rows, ended=result.ended)

    async def ListGroups(self, request: pb.ListGroupsRequest, context: object) -> pb.ListGroupsResponse:
        return translate.listings.groups(self._plane.list_groups(request.partition_id, self._shell.now()))

    async def ListClaims(self, request: pb.ListClaimsRequest, context: object) -> pb.ListClaimsResponse:
        claims, waits = self._plane.list_claims(request.partition_id, request.task, self._shell.now())
        return translate.listings.claims(claims, waits, whole_ids=current_caller().runs_the_server)

    async def ExplainWaits(self, request: pb.ExplainWaitsRequest, context: object) -> pb.ExplainWaitsResponse:
        return translate.listings.waits(
            self._plane.explain_waits(request.partition_id, request.task, self._shell.now())
        )

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def ListSessions(self, request: pb.ListSessionsRequest, context: object) -> pb.ListSessionsResponse:
        sessions = self._plane.list_sessions(self._shell.now())
        return translate.listings.sessions(sessions, whole_ids=current_caller().runs_the_server)

    async def Session(  # type: ignore[override]  # likewise
        self, request_iterator: object, context: Context
    ) -> Coroutine[Any, Any, None]:
        return await self._sessions.open(context)
