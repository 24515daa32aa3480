"""Whether this host has the memory of a budget. The kernel ends a process that uses more, and the rows are lost."""

from __future__ import annotations

import os

from rl_dataplane.group_memory import GroupMemory, read_group_memory

_WARNED_SHARE = 0.9


def check_memory(budget_bytes: int, machine_bytes: int | None = None, group: GroupMemory | None = None) -> str | None:
    """A warning if little would be left beside the budget, or None. machine_bytes, group: None for those of this
    process. Raises ValueError if the budget is more than there is.
    """
    machine_bytes = _machine_bytes() if machine_bytes is None else machine_bytes
    group = read_group_memory() if group is None else group
    found, whose = machine_bytes, "of this machine"
    if group.limit_bytes is not None and group.limit_bytes < machine_bytes:
        found, whose = group.limit_bytes, "that this container (its control group) may use"
    if budget_bytes > found:
        raise ValueError(
            f"--memory: {_text(budget_bytes)} is more than the {_text(found)} {whose}; choose at most "
            f"{_text(_WARNED_SHARE * found)}, so that the server itself has room"
        )
    if budget_bytes < _WARNED_SHARE * found:
        return None
    return (
        f"--memory: {_text(budget_bytes)} is {budget_bytes / found:.0%} of the {_text(found)} {whose}; the server and "
        "other processes need memory, too"
    )


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _text(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.1f} MiB"
