"""The streaming datasets, where TransferQueue has them."""

from dataplane_transfer_queue import StreamingDataLoader, StreamingDataset

__all__ = ["StreamingDataLoader", "StreamingDataset"]
