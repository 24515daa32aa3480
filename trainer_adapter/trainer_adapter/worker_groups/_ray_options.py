"""The resources that a group of Ray actors requests, and its deadlines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@dataclass(frozen=True)
class RayGroupOptions:
    """Durations are in seconds.

    num_workers: ranks.
    gpus_per_worker: 1, or 0 for workers on the CPU.
    cpus_per_worker: CPUs reserved for each worker; without a GPU also its number of compute threads.
    strategy: how Ray spreads the workers over nodes.
    placement_timeout_s: until the cluster has room for all.
    start_timeout_s: until all workers are made and have loaded their models.
    call_timeout_s: until a method has finished on all ranks.
    failure_grace_s: after a rank has failed, how long to wait for the others, so that the first failure can be told
    from its consequences.
    shutdown_timeout_s: until workers have closed their resources, and written the checkpoint in flight; then they are
    killed.
    """

    num_workers: int
    gpus_per_worker: int = 1
    cpus_per_worker: int = 1
    strategy: Strategy = "PACK"
    placement_timeout_s: float = 120.0
    start_timeout_s: float = 1800.0
    call_timeout_s: float = 7200.0
    failure_grace_s: float = 10.0
    shutdown_timeout_s: float = 60.0

    def validate(self) -> None:
        """Raises ValueError naming the field and the rule."""
        for name, value in vars(self).items():
            if name not in ("gpus_per_worker", "strategy") and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.gpus_per_worker not in (0, 1):
            raise ValueError(f"gpus_per_worker must be 0 or 1, got {self.gpus_per_worker}")
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"strategy must be one of {', '.join(get_args(Strategy))}, got {self.strategy!r}")

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one worker."""
        cpus = {"CPU": float(self.cpus_per_worker)}
        return {"GPU": 1.0, **cpus} if self.gpus_per_worker else cpus
