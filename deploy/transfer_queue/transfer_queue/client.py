"""The client, where TransferQueue has it."""

from dataplane_transfer_queue import TransferQueueClient

__all__ = ["TransferQueueClient"]
