"""A worker's access to the data plane: reading its rows, writing its results, claiming and committing.

The tensor- and context-parallel ranks of one data-parallel rank work on the same rows. They are a replica. Only its
leader talks to the server; it sends the results to the others.
"""

from __future__ import annotations

from trainer_adapter.data_plane._claim import ReplicaClaim
from trainer_adapter.data_plane._fields import LOGPROB_FIELDS, TRAIN_FIELDS
from trainer_adapter.data_plane._replica import ReplicaGroup, replica_group
from trainer_adapter.data_plane._replica_data_plane import FetchPolicy, ReplicaDataPlane

__all__ = [
    "LOGPROB_FIELDS",
    "TRAIN_FIELDS",
    "FetchPolicy",
    "ReplicaClaim",
    "ReplicaDataPlane",
    "ReplicaGroup",
    "replica_group",
]
