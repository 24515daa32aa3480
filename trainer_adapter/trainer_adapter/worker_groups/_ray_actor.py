"""The Ray actor of one rank: starts and calls its worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from trainer_adapter.worker_groups._array_batches import from_arrays, to_arrays
from trainer_adapter.worker_groups._portable import make_portable
from trainer_adapter.worker_groups._ray_placement import require_ray


class RankActor:
    """Holds the worker after `start`. Ray makes the actor before the ranks' rendezvous address is known."""

    def __init__(self) -> None:
        self._worker: Any = None

    def rendezvous_address(self) -> tuple[str, int]:
        """This node's address and a port that is free now.

        If another process takes the port before the ranks meet, they fail to start with an error that names it.
        """
        address: str = require_ray().util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
            listener.bind((address, 0))
            return address, int(listener.getsockname()[1])

    def start(self, environment: Mapping[str, str], worker: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Make the worker; a collective call of all ranks, which blocks until all have called."""
        os.environ.update(environment)
        gpus = require_ray().get_runtime_context().get_accelerator_ids().get("GPU")
        if gpus:
            os.environ["LOCAL_RANK"] = str(gpu_number(gpus[0], os.environ.get("CUDA_VISIBLE_DEVICES")))
        self._worker = worker(**arguments)

    def call(self, method: str, common: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """Call the method and return its result unchanged."""
        given = {name: from_arrays(value) for name, value in {**common, **own}.items()}
        return getattr(self._worker, method)(**given)

    def call_as_leader(self, method: str, common: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """Call the method and return its result, portable and as arrays."""
        return to_arrays(make_portable(self.call(method, common, own)))

    def call_as_replica(self, method: str, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Call the method and return nothing, because the leader returns the same result."""
        self.call(method, common, own)


def gpu_number(gpu: str, visible: str | None) -> int:
    """The number of the GPU that Ray has given to this process among those that the process sees.

    That is 0 unless Ray was told to leave CUDA_VISIBLE_DEVICES (`visible`) alone; None: the process sees all GPUs.
    """
    return int(gpu) if visible is None else visible.split(",").index(gpu)
