"""The error of rows that are gone, where TransferQueue has it. The server is the storage, so there is nothing else."""

from dataplane_transfer_queue import StorageKeyNotFoundError

__all__ = ["StorageKeyNotFoundError"]
