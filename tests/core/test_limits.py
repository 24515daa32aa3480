"""Bounds that make no sense are refused when the server is configured, not when it serves."""

from __future__ import annotations

import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        pytest.param(Limits(memory_bytes=0), "memory_bytes", id="no memory"),
        pytest.param(Limits(memory_bytes=1 << 62), "memory_bytes", id="more memory than can be counted"),
        pytest.param(Limits(max_fields=0), "max_fields", id="no field"),
        pytest.param(Limits(max_fields=65), "max_fields", id="more fields than a word has bits"),
        pytest.param(Limits(max_rows=0), "max_rows", id="no row"),
        pytest.param(Limits(max_partitions=0), "max_partitions", id="no partition"),
        pytest.param(Limits(max_tasks=0), "max_tasks", id="no task"),
        pytest.param(Limits(max_rows_per_call=0), "max_rows_per_call", id="no row a call"),
        pytest.param(Limits(max_id_bytes=0), "max_id_bytes", id="no id"),
        pytest.param(Limits(bookkeeping_bytes=0), "bookkeeping_bytes", id="no bookkeeping"),
        pytest.param(Limits(max_claims=0), "max_claims", id="no claim"),
        pytest.param(Limits(remembered_requests=0), "remembered_requests", id="no memory of answers"),
    ],
)
def test_a_bound_out_of_range_is_refused_by_name(limits: Limits, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DataPlane(limits)


def test_the_smallest_server_is_fine() -> None:
    DataPlane(Limits(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0.0))
