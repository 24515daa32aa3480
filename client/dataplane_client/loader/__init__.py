"""Rows of a task as batches for a training loop: claimed ahead, materialized, moved, and committed or given back.

    with ClaimLoader("unix:///run/dataplane.sock", "step-7", "train", ["tokens", "logprobs"], batch_size=32) as loader:
        for batch in loader:
            loss(batch.data).backward()

Each row is delivered once, however many workers there are. A batch is committed when the next one is asked for, and
given back when the loop ends in an error.
"""

from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._iterator import ClaimIterator
from dataplane_client.loader._loader import ClaimLoader

__all__ = ["ClaimIterator", "ClaimLoader", "LoadedBatch"]
