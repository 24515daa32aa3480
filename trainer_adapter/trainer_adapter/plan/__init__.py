"""What a training step needs on each rank, from the job's configuration alone. `python -m trainer_adapter.plan`."""

from trainer_adapter.plan._divided import read_layout
from trainer_adapter.plan._law import HostMemory, StepMemory, host_memory, step_memory

__all__ = ["HostMemory", "StepMemory", "host_memory", "read_layout", "step_memory"]
