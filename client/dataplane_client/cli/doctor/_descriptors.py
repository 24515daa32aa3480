"""Whether this process may hold a file descriptor for each of the calls that wait at a time."""

from __future__ import annotations

import resource

from dataplane_client.cli.doctor._check import Check

_ENOUGH = 1024
"""What Linux gives a process unless told otherwise: for some nine hundred calls, beside what Python holds."""


def descriptor_check() -> Check:
    soft, hard = (_shown(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    found = f"at most {soft} (may be raised to {hard}); each call under way through shared memory takes one"
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _ENOUGH:
        return Check(
            "file descriptors", "warning", found, f"raise it with `ulimit -n {_ENOUGH}` before the client starts"
        )
    return Check("file descriptors", "ok", found)


def _shown(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"
