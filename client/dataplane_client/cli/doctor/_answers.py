"""Whether the server answers, and how long that takes."""

from __future__ import annotations

import statistics
import time

from dataplane_client.cli._server import Server
from dataplane_client.cli.doctor._check import Check
from dataplane_client.errors import DataPlaneError
from rl_dataplane.v1 import data_plane_pb2 as pb

_CALLS = 5
_SLOW_S = 0.1
"""A hundred times what a call takes on one host."""


def answers(server: Server) -> tuple[Check, pb.GetServerStatusResponse | None]:
    """The check, and what the server answered if it did."""
    try:
        first_s, answer = _asked(server)
        seconds = statistics.median(_asked(server)[0] for _ in range(_CALLS))
    except DataPlaneError as error:
        advice = "see that it runs and listens at this address, in this network namespace or on this volume"
        return Check("server", "problem", str(error), advice), None
    found = f"a call takes {seconds * 1e3:.1f} ms (the first, with the connection, {first_s * 1e3:.1f} ms)"
    if seconds > _SLOW_S:
        advice = "see whether its processors are busy (dataplane_event_loop_lag_seconds), or the way there is long"
        return Check("server", "warning", found, advice), answer
    return Check("server", "ok", found), answer


def _asked(server: Server) -> tuple[float, pb.GetServerStatusResponse]:
    began_s = time.perf_counter()
    answer = server.ask("GetServerStatus", pb.GetServerStatusRequest())
    return time.perf_counter() - began_s, answer
