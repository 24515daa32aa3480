"""When a server is healthy, judged by its status.

White-box: statuses that no server reaches in a test.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from dataplane_client.answers.descriptions import MemoryHolder, NodeDescription, ServerStatus
from dataplane_client.cli._health import health_of

QUIET = ServerStatus(
    version="1",
    memory_budget_bytes=1000,
    memory_used_bytes=0,
    rows=0,
    uptime_s=1.0,
    waiting_claims=0,
    waiting_puts=0,
    sessions=0,
    max_rows=100,
)
HOLDERS = (MemoryHolder("rollout-0", 501, 0, 0),)
FIGURES = dict.fromkeys([one.name for one in fields(NodeDescription)], 0)
UP = NodeDescription(**FIGURES | {"number": 1, "host": "host-a", "up": True})  # type: ignore[arg-type]
SILENT = NodeDescription(**FIGURES | {"number": 2, "host": "host-b", "up": False})  # type: ignore[arg-type]
MIRRORED = replace(SILENT, number=4, mirrors=(1,))
ENDED = replace(MIRRORED, ended=True)
UNHEARD = NodeDescription(**FIGURES | {"number": 3, "host": "", "up": False})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "beginnings"),
    [
        ({}, []),
        ({"waiting_claims": 500}, []),
        ({"memory_used_bytes": 1000}, []),
        ({"memory_used_bytes": 950, "waiting_puts": 2}, []),
        ({"memory_used_bytes": 951, "waiting_puts": 2}, ["memory is over 95 % full and 2 puts wait for space"]),
        ({"longest_put_wait_s": 30.0, "waiting_puts": 1}, []),
        ({"longest_put_wait_s": 30.5, "waiting_puts": 1}, ["a put has waited for space for 30 s"]),
        ({"rows": 98}, []),
        ({"rows": 99}, ["it holds 99 of at most 100 rows"]),
        ({"rows": 99, "max_rows": 0}, []),
        ({"held_bytes": 500, "holders": HOLDERS}, []),
        (
            {"held_bytes": 501, "holders": HOLDERS},
            ["no clear frees 501 B of 1000 B, which clients hold until they let"],
        ),
        ({"draining": True, "rows": 100}, ["it is draining", "it holds 100 of at most 100 rows"]),
        ({"nodes": (UP, UP)}, []),
        ({"nodes": (UP, SILENT)}, ["node 2 on host-b does not answer: if this lasts, its rows are lost"]),
        ({"nodes": (UNHEARD, SILENT)}, ["nodes 3, 2 on host-b do not answer: if this lasts, their rows are lost"]),
        (
            {"nodes": (UP, MIRRORED)},
            ["node 4 on host-b does not answer: if this lasts, its rows are read from mirrors"],
        ),
        (
            {"nodes": (MIRRORED, SILENT)},
            ["nodes 4 on host-b, 2 on host-b do not answer: if this lasts, their rows are lost"],
        ),
        ({"nodes": (UP, ENDED)}, []),
    ],
)
def test_a_server_is_unhealthy_for_these_reasons_only(changes: dict[str, object], beginnings: list[str]) -> None:
    health = health_of(replace(QUIET, **changes))  # type: ignore[arg-type]
    assert len(health.reasons) == len(beginnings)
    assert all(reason.startswith(begin) for reason, begin in zip(health.reasons, beginnings, strict=True))
    assert health.healthy == (not beginnings)
