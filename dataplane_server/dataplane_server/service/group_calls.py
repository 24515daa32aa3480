"""Reserved groups: rows of a prompt that claims see all at once, or never."""

from __future__ import annotations

import time

from dataplane_server.service import translate_claims
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import data_plane_pb2 as pb


class GroupCalls:
    """The methods of the service that deal with reserved groups, but for the puts."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._plane = shell.plane

    async def reserve(self, request: pb.ReserveGroupRequest) -> pb.ReserveGroupResponse:
        reserve = translate_claims.reserve(request)
        return translate_claims.reserved(
            self._shell.settled(lambda: self._plane.reserve_group(reserve, time.monotonic()))
        )

    async def finish(self, request: pb.FinishGroupRequest) -> pb.FinishGroupResponse:
        version = request.weight_version if request.HasField("weight_version") else None
        result = self._shell.settled(
            lambda: self._plane.finish_group(request.request_id, request.reservation_id, version, time.monotonic())
        )
        return pb.FinishGroupResponse(rows=result.rows)

    async def abort(self, request: pb.AbortGroupRequest) -> pb.AbortGroupResponse:
        result = self._shell.settled(
            lambda: self._plane.abort_group(
                request.request_id, request.reservation_id, request.reason, time.monotonic()
            )
        )
        return pb.AbortGroupResponse(removed_rows=result.removed_rows)
