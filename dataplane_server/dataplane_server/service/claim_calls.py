"""Claims: rows handed out, waited for, and what becomes of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from functools import partial

from google.protobuf.message import Message

from dataplane_server.core.calls import Grant, Waiting
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import translate, translate_claims
from dataplane_server.service.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import data_plane_pb2 as pb

ClaimingRequest = pb.ClaimSamplesRequest | pb.ClaimShardRequest


class ClaimCalls:
    """The methods of the service that deal with claims, but for the commit, which is a write."""

    def __init__(self, shell: Shell, metrics: Metrics) -> None:
        self._shell = shell
        self._plane = shell.plane
        self._metrics = metrics

    async def claim_samples(self, request: pb.ClaimSamplesRequest) -> pb.ClaimSamplesResponse:
        began = time.monotonic()
        answer = self._shell.settled(lambda: self._plane.claim(translate_claims.claim(request), began))
        grant = await self._granted(answer, request)
        response = translate_claims.grant(grant)
        self._check_fits(response, grant, request)
        self._metrics.claim_waited(time.monotonic() - began)
        return response

    async def claim_shard(self, request: pb.ClaimShardRequest) -> pb.ClaimShardResponse:
        began = time.monotonic()
        answer = self._shell.settled(lambda: self._plane.claim_shard(translate_claims.shard(request), began))
        grant = await self._granted(answer, request)
        response = pb.ClaimShardResponse(claim=translate_claims.grant(grant))
        self._check_fits(response, grant, request)
        self._metrics.claim_waited(time.monotonic() - began)
        return response

    async def _granted(self, answer: Grant | Waiting, request: ClaimingRequest) -> Grant:
        """The rows, now or when they are there.

        A caller that goes away while it waits may come back with the same request_id: then it waits anew, or is handed
        what it was granted just before. One that does not says so (ReleaseClaim), or dies with its session.
        """
        if isinstance(answer, Grant):
            return answer
        ticket, wait_s = answer.ticket, translate.seconds(request.wait_timeout)
        give_up = partial(self._shell.settled, lambda: self._plane.give_up_claim(ticket, time.monotonic()))
        try:
            return await self._shell.waiters.wait(ticket, Grant, wait_s, give_up)
        except asyncio.CancelledError:
            self._shell.settled(lambda: self._plane.abandon_claim(ticket, time.monotonic()))
            raise

    def _check_fits(self, response: Message, grant: Grant, request: ClaimingRequest) -> None:
        """Give rows back whose ids and tags are more than a message takes; Refusal LIMIT_REACHED."""
        size = response.ByteSize()
        if size <= MAX_MESSAGE_BYTES:
            return
        self._shell.settled(lambda: self._take_back(grant, request))
        message = (
            f"ids and tags of the {len(grant.sample_ids)} rows take {size} bytes, at most {MAX_MESSAGE_BYTES} travel; "
            "the rows were given back: claim fewer (batch_size)"
        )
        raise Refusal(Reason.LIMIT_REACHED, message, partition_id=request.partition_id, task=request.task)

    def _take_back(self, grant: Grant, request: ClaimingRequest) -> None:
        """Once: a repeated request has the same id here too, so it does not take rows from whoever got them since."""
        now, own_id = time.monotonic(), uuid.uuid5(uuid.NAMESPACE_OID, request.request_id).hex
        if grant.claim_id:
            self._plane.abandon_request(own_id, request.request_id, now)
        else:  # delivery was consumption
            self._plane.reset_task(own_id, request.partition_id, request.task, grant.sample_ids, now)

    async def release_claim(self, request: pb.ReleaseClaimRequest) -> pb.ReleaseClaimResponse:
        if request.claim_id and request.claim_request_id:
            message = "a release names a claim or the request of one (claim_request_id), not both"
            raise Refusal(Reason.INVALID_REQUEST, message)
        if request.claim_request_id:
            result = self._shell.settled(
                lambda: self._plane.abandon_request(request.request_id, request.claim_request_id, time.monotonic())
            )
        else:
            delay_s = translate.seconds(request.delay)
            result = self._shell.settled(
                lambda: self._plane.release_claim(
                    request.request_id, request.claim_id, time.monotonic(), delay_s=delay_s, reason=request.reason
                )
            )
        return pb.ReleaseClaimResponse(released_rows=result.released_rows)

    async def adopt_claim(self, request: pb.AdoptClaimRequest) -> pb.AdoptClaimResponse:
        self._shell.settled(
            lambda: self._plane.adopt_claim(request.request_id, request.claim_id, request.session_id, time.monotonic())
        )
        return pb.AdoptClaimResponse()

    async def reset_task(self, request: pb.ResetTaskRequest) -> pb.ResetTaskResponse:
        sample_ids = translate_claims.reset_selection(request)
        result = self._shell.settled(
            lambda: self._plane.reset_task(
                request.request_id, request.partition_id, request.task, sample_ids, time.monotonic()
            )
        )
        return pb.ResetTaskResponse(reset_rows=result.reset_rows, fenced_claims=result.fenced_claims)

    async def list_dead_letters(self, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
        return translate_claims.dead_letters(self._plane.dead_letters(request.partition_id, request.task))
