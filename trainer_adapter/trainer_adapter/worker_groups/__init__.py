"""All workers of a policy behind one interface: as Ray actors, or as the processes of torchrun."""

from trainer_adapter.worker_groups._failures import WorkerFailed
from trainer_adapter.worker_groups._interface import WorkerGroup
from trainer_adapter.worker_groups._ray_group import RayWorkerGroup
from trainer_adapter.worker_groups._ray_options import RayGroupOptions
from trainer_adapter.worker_groups._torchrun_group import TorchrunWorkerGroup

__all__ = ["RayGroupOptions", "RayWorkerGroup", "TorchrunWorkerGroup", "WorkerFailed", "WorkerGroup"]
