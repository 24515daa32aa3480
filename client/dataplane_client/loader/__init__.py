"""Rows of a task as batches for a training loop: claimed and read in the background, then committed or released.

    with ClaimLoader("unix:///run/dataplane.sock", "step-7", "train", ["tokens", "logprobs"], batch_size=32) as loader:
        for batch in loader:
            loss(batch.data).backward()

Each row is delivered to one loader of the task. A batch is committed when the loop asks for the next one, and released
when the loop ends with an error.
"""

from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._iterator import ClaimIterator
from dataplane_client.loader._loader import ClaimLoader

__all__ = ["ClaimIterator", "ClaimLoader", "LoadedBatch"]
