"""Whether the clock of this host is kept in step with others'.

Nothing in the data plane depends on it: graces, waits and ages are measured by the server alone, on a clock that nobody
sets, and it tells no time of day with which ours could be compared. But logs and traces of several hosts are read side
by side.
"""

from __future__ import annotations

import ctypes

from dataplane_client.cli.doctor._check import Check

_TIMEX_BYTES = 512  # struct timex has 208; all zero, it asks and sets nothing
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def clock_check() -> Check:
    state = _kernel_state()
    if state is None:
        return Check("clock", "ok", "not known: the kernel does not tell whether it is synchronised")
    if state != _UNSYNCHRONISED:
        return Check("clock", "ok", "synchronised")
    found = "not synchronised; ages and heartbeats do not depend on it, times in logs and traces do"
    return Check("clock", "warning", found, "run chrony or systemd-timesyncd on the host")


def _kernel_state() -> int | None:
    """What adjtimex(2) says; None where it may not be asked, as in some sandboxes."""
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None
