"""The driver's policy: what algorithms call, over a group of workers."""

from trainer_adapter.policy._policy import DataPlanePolicy

__all__ = ["DataPlanePolicy"]
