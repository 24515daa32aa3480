"""Budgets beside the memory that there is; the limits are given, as of machines and containers of any size."""

from __future__ import annotations

import pytest

from dataplane_server.host_memory import check_memory
from rl_dataplane.group_memory import GroupMemory

GIB = 1 << 30
NO_LIMIT = GroupMemory(None, None)


@pytest.mark.parametrize(
    ("budget", "machine", "group", "message"),
    [
        (900 * GIB, 24 * GIB, NO_LIMIT, "--memory: 900.0 GiB .* 24.0 GiB .*machine"),
        (24 * GIB + 1, 24 * GIB, NO_LIMIT, "24.0 GiB .*machine"),
        (4 * GIB, 24 * GIB, GroupMemory(2 * GIB, None), "4.0 GiB .* 2.0 GiB .*container"),
        (900 * GIB, 24 * GIB, GroupMemory(64 * GIB, None), "900.0 GiB .* 24.0 GiB .*machine"),
        (GIB, 24 * GIB, GroupMemory(512 << 20, None), "1.0 GiB .* 512.0 MiB .*container"),
    ],
)
def test_a_budget_beyond_the_memory_is_refused_with_both_figures(
    budget: int, machine: int, group: GroupMemory, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_memory(budget, machine, group)


@pytest.mark.parametrize(("machine", "group"), [(100 * GIB, NO_LIMIT), (999 * GIB, GroupMemory(100 * GIB, 0))])
def test_from_nine_tenths_of_the_memory_on_there_is_a_warning(machine: int, group: GroupMemory) -> None:
    assert check_memory(89 * GIB, machine, group) is None
    warning = check_memory(90 * GIB, machine, group)
    assert warning is not None
    assert warning.startswith("--memory: 90.0 GiB is 90% of the 100.0 GiB")
    assert check_memory(100 * GIB, machine, group) is not None
