"""The driver's view of its workers.

A worker is any object with methods that take keyword arguments, and with `layout()`, which returns its place in the
grid of ranks (see Replicas). All ranks run a method at once, because the methods of a worker are collective. A shard
belongs to a data-parallel rank, and so to all tensor- and context-parallel ranks of it; the leader's result counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dataplane_client.records.meta import KVBatchMeta

AgreedT = TypeVar("AgreedT", bound="Mapping[str, Any] | KVBatchMeta | None")


class WorkerGroup(Protocol):
    """Workers of one job.

    Methods block until every rank is done. If every rank fails, as with wrong arguments or unreadable rows, they raise
    a worker's own exception, and the group stays usable. If only some ranks fail, they raise WorkerFailed naming the
    first of them, and the group is broken: every later call except `shutdown` raises RuntimeError.
    """

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks, and so of shards."""
        ...

    @property
    def is_driver(self) -> bool:
        """Whether this process claims rows and reports. Exactly one process of a job does."""
        ...

    def from_driver(self, value: AgreedT) -> AgreedT:
        """Return the driver's value in every process that runs the script; the values of other processes are
        ignored.
        """
        ...

    def run_everywhere(self, method: str, **arguments: Any) -> Any:
        """Call every rank with the same arguments. Returns one rank's result, for methods that return the same
        on all.
        """
        ...

    def run_on_shards(self, method: str, shards: Mapping[str, Sequence[Any]], **common: Any) -> list[Any]:
        """Call every rank with the `dp_rank`-th value of each of `shards` and the same `common` arguments.

        Returns the leaders' results by data-parallel rank. Tensors that are nested deeper than in a mapping's values
        become Python numbers.
        """
        ...

    def start(self, method: str, **arguments: Any) -> list[Any]:
        """Call every rank with the same arguments. Returns one future for each rank, of the group's own kind; the
        caller waits.
        """
        ...

    def shutdown(self) -> bool:
        """End the workers and free the group's resources; returns whether that succeeded. A second call does
        nothing.
        """
        ...
