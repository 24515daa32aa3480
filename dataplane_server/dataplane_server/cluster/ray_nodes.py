"""Live Ray nodes, detected faster than Ray reports them.

Ray calls a node dead after some ten seconds without an answer. But if nothing listens at its raylet's address, the
raylet has ended, and with it the node: Ray never starts a raylet again under the same id.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_CONNECT_S = 1.0
_AT_ONCE = 256


class RayNodes:
    """Asks Ray. From one thread at a time."""

    def __init__(self) -> None:
        self._ended: set[str] = set()  # which Ray still calls alive

    def alive(self, silent: Collection[str]) -> list[str]:
        """The ids of those that live. silent: ids whose raylets are asked, too, at the same time, which blocks for a
        second if one does not answer.
        """
        import ray

        found = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
        self._ended &= found.keys()
        asked = found.keys() & silent
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            ended = threads.map(_has_ended, [found[one] for one in asked])
        self._ended |= {one for one, has_ended in zip(asked, ended, strict=True) if has_ended}
        return [one for one in found if one not in self._ended]


def _has_ended(node: dict[str, Any]) -> bool:
    """Whether nothing listens where the raylet of a node did."""
    with contextlib.suppress(OSError):
        try:
            socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _CONNECT_S).close()
        except ConnectionRefusedError:
            return True
    return False


def this_address() -> str:
    """The address of this machine, as other nodes reach it."""
    import ray

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def this_node() -> str:
    """The id of the node of Ray on which this process runs."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node
