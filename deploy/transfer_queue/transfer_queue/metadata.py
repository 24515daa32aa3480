"""The metas, where TransferQueue has them."""

from dataplane_transfer_queue import BatchMeta, KVBatchMeta

__all__ = ["BatchMeta", "KVBatchMeta"]
