"""Checkpoints of sharded models: all ranks write one together, and any number of ranks can load it."""

from trainer_adapter.automodel.checkpoint._files import _infer_checkpoint_root, detect_checkpoint_format
from trainer_adapter.automodel.checkpoint._manager import CheckpointManager

__all__ = ["CheckpointManager", "_infer_checkpoint_root", "detect_checkpoint_format"]
