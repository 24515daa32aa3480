"""Where the processes of a Ray job find the server: an actor with a name keeps what the first of them wrote.

Ray is used where the process has it already, and never imported here. The actor ends with the process that made it.
Ray's waits are not ended by signals, so each has a deadline.
"""

from __future__ import annotations

import sys
from typing import Any

_NAME = "rl-dataplane-address"
_ANSWER_S = 60.0  # a worker process of Ray starts within seconds, on a busy node within tens of them


def ray_of_process() -> Any:
    """The module ray, if this process is connected to a cluster; else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


class _Keeper:
    def __init__(self, server: dict[str, Any]) -> None:
        self._server = server

    def server(self) -> dict[str, Any]:
        return self._server


def find() -> dict[str, Any] | None:
    """What the job's first process published; None outside of jobs and before."""
    ray = ray_of_process()
    if ray is None:
        return None
    try:
        return _ask(ray, ray.get_actor(_NAME))
    except (ValueError, ray.exceptions.RayActorError):  # there is none, or it ended as it was asked
        return None


def publish(server: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Publish a server unless another process has published one. Returns what the job has now, and the actor that keeps
    it, or None where there is none.
    """
    ray = ray_of_process()
    if ray is None:
        return server, None
    keeper = ray.remote(_Keeper).options(name=_NAME, get_if_exists=True, num_cpus=0).remote(server)
    return _ask(ray, keeper), keeper


def withdraw(keeper: Any) -> None:
    """End the actor that `publish` returned."""
    ray = ray_of_process()
    if ray is not None and keeper is not None:
        ray.kill(keeper)


def _ask(ray: Any, keeper: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = ray.get(keeper.server.remote(), timeout=_ANSWER_S)
    except ray.exceptions.GetTimeoutError:
        raise RuntimeError(
            f"the actor {_NAME}, which tells this Ray job where the server is, did not answer in {_ANSWER_S:g} s; "
            "name the server by DATAPLANE_SERVER or backend.RLDataPlane.address"
        ) from None
    return found
