"""What the server has said of partitions, kept for later writes to them."""

from __future__ import annotations

from typing import NamedTuple

from rl_dataplane.v1 import data_plane_pb2 as pb

_MOST = 1024


class Known(NamedTuple):
    """What is known of one partition. per_token: the names of such fields. digests: values have some."""

    per_token: frozenset[str] = frozenset()
    digests: bool = False


_NOTHING = Known()


class KnownPartitions:
    """Of at most 1,024 partitions that the server has described. Safe for threads."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def of(self, partition_id: str) -> Known:
        return self._known.get(partition_id, _NOTHING)

    def learn(self, partition: pb.Partition) -> None:
        """Keep what a description says."""
        per_token = frozenset(field.name for field in partition.fields if field.per_token)
        self._keep(partition.partition_id, Known(per_token, partition.digests))

    def learn_digests(self, partition_id: str) -> None:
        """The server has refused values without digests."""
        self._keep(partition_id, self.of(partition_id)._replace(digests=True))

    def forget(self, partition_id: str) -> None:
        """Another partition has the name by now."""
        self._known.pop(partition_id, None)

    def _keep(self, partition_id: str, known: Known) -> None:
        self._known[partition_id] = known
        if len(self._known) > _MOST:
            self.forget(next(iter(tuple(self._known)), ""))  # a copy: other threads may learn meanwhile
