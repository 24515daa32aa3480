"""Bounds that make no sense are refused when the server is configured, not when it serves."""

from __future__ import annotations

import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane

POSITIVE = (
    *("memory_bytes", "bookkeeping_bytes", "max_fields", "max_rows", "max_partitions", "max_tasks"),
    *("max_rows_per_call", "max_id_bytes", "max_claims", "remembered_requests"),
)
UNCOUNTABLE = [("memory_bytes", 1 << 62), ("max_fields", 65)]


@pytest.mark.parametrize(("name", "bound"), [*((name, 0) for name in POSITIVE), *UNCOUNTABLE])
def test_a_bound_out_of_range_is_refused_by_name(name: str, bound: int) -> None:
    with pytest.raises(ValueError, match=name):
        DataPlane(Limits(**{name: bound}))  # type: ignore[arg-type]


def test_the_smallest_server_is_fine() -> None:
    DataPlane(Limits(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0.0))
