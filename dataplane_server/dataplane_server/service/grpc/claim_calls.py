"""Claims of rows and of shards: they may wait, and their grants must fit into one message."""

from __future__ import annotations

import contextlib
import time
import uuid

from google.protobuf.message import Message

from dataplane_server.core.calls.answers import Grant
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbandonRequest, ClaimSamples, ClaimShard, ReleaseClaim, ResetTask
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import translate
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.records import seconds


class ClaimCalls:
    """Serves ClaimSamples and ClaimShard."""

    def __init__(self, shell: Shell, metrics: Metrics) -> None:
        self._shell = shell
        self._metrics = metrics

    async def claim_samples(self, request: pb.ClaimSamplesRequest) -> pb.ClaimSamplesResponse:
        return await self._claim(translate.claims.claim(request), seconds(request.wait_timeout))

    async def claim_shard(self, request: pb.ClaimShardRequest) -> pb.ClaimShardResponse:
        claim = await self._claim(translate.claims.shard(request), seconds(request.wait_timeout))
        return pb.ClaimShardResponse(claim=claim)

    async def _claim(self, call: ClaimSamples | ClaimShard, wait_s: float) -> pb.ClaimSamplesResponse:
        began = time.monotonic()
        grant: Grant = await self._shell.answer(self._shell.apply(call), wait_s)
        response = translate.claims.grant(grant)
        self._check_fits(response, grant, call)
        self._metrics.claim_waited(time.monotonic() - began)
        return response

    def _check_fits(self, response: Message, grant: Grant, call: ClaimSamples | ClaimShard) -> None:
        """Refusal LIMIT_REACHED if the response exceeds a message. The rows are released before, those of a shard to
        their step.
        """
        size = response.ByteSize()
        if size <= MAX_MESSAGE_BYTES:
            return
        # The same id for a repeated request: it releases nothing that other claims got since.
        own_id = uuid.uuid5(uuid.NAMESPACE_OID, call.request_id).hex
        outcome = "were released: claim fewer (batch_size)"
        if isinstance(call, ClaimShard):
            outcome = "stay with their step: reset them (reset), and claim fewer (batch_size)"
            with contextlib.suppress(Refusal):  # it has ended, as by another caller of the shard
                self._shell.apply(ReleaseClaim(own_id, grant.claim_id))
        elif grant.claim_id:
            self._shell.apply(AbandonRequest(own_id, call.request_id))
        else:  # a claim in consume mode
            self._shell.apply(ResetTask(own_id, call.partition_id, call.task, grant.sample_ids))
        message = (
            f"ids and tags of the {len(grant.sample_ids)} rows take {size} bytes, the limit is {MAX_MESSAGE_BYTES}; "
            f"the rows {outcome}"
        )
        raise Refusal(Reason.LIMIT_REACHED, message, partition_id=call.partition_id, task=call.task)
