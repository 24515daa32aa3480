"""The data plane behind TransferQueue's module: `import dataplane_transfer_queue as tq`.

A distribution in `deploy/transfer_queue` gives it the name `transfer_queue`, for frameworks that import that. What
they rely on, and how it is kept:

- They register nothing. The first put makes a partition, open to any field.
- They call `init()` in every process, with a configuration in one of them. `_connection` says where the address comes
  from. Any configuration of TransferQueue is taken; its storage is not used.
- They use the module from event loops of their own, and from threads. The `async_` twins run the blocking verbs in
  threads, so nothing is bound to a loop.
- They name rows by key, or by number, which is never given to a second row.
- What cannot be kept is refused: samplers other than the sequential one and streaming datasets (`_not_served`), tags
  that are lists or mappings, another element type than a field has, and keys or fields that do not exist, where
  TransferQueue returns fewer rows or none.
"""

from dataplane_client.errors import NotFoundError as StorageKeyNotFoundError
from dataplane_transfer_queue._client import TransferQueueClient, get_client
from dataplane_transfer_queue._connection import close, get_metrics_endpoint, init
from dataplane_transfer_queue._kv import (
    async_kv_batch_get,
    async_kv_batch_get_by_meta,
    async_kv_batch_put,
    async_kv_clear,
    async_kv_list,
    async_kv_put,
    kv_batch_get,
    kv_batch_get_by_meta,
    kv_batch_put,
    kv_clear,
    kv_list,
    kv_put,
    load_checkpoint,
    save_checkpoint,
)
from dataplane_transfer_queue._metas import BatchMeta, KVBatchMeta
from dataplane_transfer_queue._not_served import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
    StreamingDataLoader,
    StreamingDataset,
)

__version__ = "0.1.11"
"""The version of TransferQueue whose interface this is."""

__all__ = [
    "BaseSampler",
    "BatchMeta",
    "GRPOGroupNSampler",
    "KVBatchMeta",
    "RankAwareSampler",
    "SeqlenBalancedSampler",
    "SequentialSampler",
    "StorageKeyNotFoundError",
    "StreamingDataLoader",
    "StreamingDataset",
    "TransferQueueClient",
    "__version__",
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "close",
    "get_client",
    "get_metrics_endpoint",
    "init",
    "kv_batch_get",
    "kv_batch_get_by_meta",
    "kv_batch_put",
    "kv_clear",
    "kv_list",
    "kv_put",
    "load_checkpoint",
    "save_checkpoint",
]
