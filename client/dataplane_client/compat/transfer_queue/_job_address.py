"""Where the processes of a Ray job find the server: an actor with a name keeps what the first of them wrote.

Ray is used where the process has it already, and never imported here. The actor ends with the process that made it.
"""

from __future__ import annotations

import sys
from typing import Any

_NAME = "rl-dataplane-address"


class _Keeper:
    def __init__(self, server: dict[str, Any]) -> None:
        self._server = server

    def server(self) -> dict[str, Any]:
        return self._server


def _ray() -> Any:
    """Ray, if this process is part of a job; else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def find() -> dict[str, Any] | None:
    """What the job's first process published; None outside of jobs and before."""
    ray = _ray()
    if ray is None:
        return None
    try:
        keeper = ray.get_actor(_NAME)
    except ValueError:
        return None
    found: dict[str, Any] = ray.get(keeper.server.remote())
    return found


def publish(server: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Publish a server unless another process has published one. Returns what the job has now, and the actor that keeps
    it, or None where there is none.
    """
    ray = _ray()
    if ray is None:
        return server, None
    keeper = ray.remote(_Keeper).options(name=_NAME, get_if_exists=True, num_cpus=0).remote(server)
    return ray.get(keeper.server.remote()), keeper


def withdraw(keeper: Any) -> None:
    """End the actor that `publish` returned."""
    ray = _ray()
    if ray is not None and keeper is not None:
        ray.kill(keeper)
