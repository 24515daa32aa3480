"""DataPlanePolicy, the driver of a group of workers, which algorithms call."""

from trainer_adapter.policy._policy import DataPlanePolicy

__all__ = ["DataPlanePolicy"]
