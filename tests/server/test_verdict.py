"""When a server is healthy, judged by its status.

White-box: statuses that no server reaches in a test.
"""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from dataplane_server.observe.verdict import AILMENTS, reasons_of
from rl_dataplane.v1 import data_plane_pb2 as pb

HOLDERS = [pb.MemoryHolder(client_name="rollout-0", lent_bytes=501)]
UP = pb.Node(number=1, host="host-a", up=True)
SILENT = pb.Node(number=2, host="host-b")
MIRRORED = pb.Node(number=4, host="host-b", mirrors=[1])
ENDED = pb.Node(number=4, host="host-b", mirrors=[1], ended=True)
UNHEARD = pb.Node(number=3)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"waiting_claims": 500}, []),
        ({"memory_used_bytes": 1000}, []),
        ({"memory_used_bytes": 950, "waiting_puts": 2}, []),
        ({"memory_used_bytes": 951, "waiting_puts": 2}, [("memory_full", "95 % full and 2 puts wait for space")]),
        ({"longest_put_wait": Duration(seconds=30), "waiting_puts": 1}, []),
        ({"longest_put_wait": Duration(seconds=31), "waiting_puts": 1}, [("puts_wait", "waited for space for 31 s")]),
        ({"rows": 98}, []),
        ({"rows": 99}, [("row_limit", "99 of at most 100 rows")]),
        ({"rows": 99, "max_rows": 0}, []),
        ({"held_bytes": 500, "holders": HOLDERS}, []),
        ({"held_bytes": 501, "holders": HOLDERS}, [("memory_held", "rollout-0")]),
        ({"draining": True, "rows": 100}, [("draining", "new calls are refused"), ("row_limit", "100 of at most 100")]),
        ({"nodes": [UP, UP]}, []),
        (
            {"nodes": [UP, SILENT]},
            [("nodes_silent", "node 2 on host-b does not answer")],
        ),
        ({"nodes": [UNHEARD, SILENT]}, [("nodes_silent", "nodes 3, 2 on host-b do not answer")]),
        ({"nodes": [UP, MIRRORED]}, [("nodes_silent", "its rows are read from mirrors")]),
        ({"nodes": [MIRRORED, SILENT]}, [("nodes_silent", "their rows are lost")]),
        ({"nodes": [UP, ENDED]}, []),
    ],
)
def test_a_server_is_unhealthy_for_these_reasons_only(changes: dict[str, object], found: list[tuple[str, str]]) -> None:
    quiet: dict[str, object] = {"memory_budget_bytes": 1000, "max_rows": 100}
    reasons = list(reasons_of(pb.GetServerStatusResponse(**quiet | changes)))  # type: ignore[arg-type]
    assert [reason.ailment for reason in reasons] == [ailment for ailment, _ in found]
    assert all(words in reason.text for reason, (_, words) in zip(reasons, found, strict=True))
    assert {reason.ailment for reason in reasons} <= set(AILMENTS)
