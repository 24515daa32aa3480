"""What a driver sees of its workers.

A worker is any object with methods whose arguments are given by keyword, and with `layout()`, which tells its place in
the grid of ranks (see Replicas). All ranks run a method at once, since the methods of a worker are collective among
them. A shard belongs to a data-parallel rank, and so to all tensor- and context-parallel ranks of it; of these the
leader's result counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dataplane_client.meta import KVBatchMeta

AgreedT = TypeVar("AgreedT", bound="Mapping[str, Any] | KVBatchMeta | None")


class WorkerGroup(Protocol):
    """Workers of one job.

    Methods block until every rank is done. They raise a worker's own exception when every rank has failed, which is
    what wrong arguments and rows that cannot be read come to; the group is usable afterwards. When only some have, they
    raise WorkerFailed, which names the first of them, and the group is broken: every later call raises RuntimeError,
    and only `shutdown` is left.
    """

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks, and so of shards."""
        ...

    @property
    def is_driver(self) -> bool:
        """Whether this process is the one that claims rows and reports; exactly one of a job is."""
        ...

    def from_driver(self, value: AgreedT) -> AgreedT:
        """What the driver gave, in every process that runs the script; the value of others is not looked at."""
        ...

    def run_everywhere(self, method: str, **arguments: Any) -> Any:
        """Every rank with the same arguments; one rank's result, for methods that return the same on all."""
        ...

    def run_on_shards(self, method: str, shards: Mapping[str, Sequence[Any]], **common: Any) -> list[Any]:
        """Every rank, with the `dp_rank`-th value of each of `shards` and the same `common` arguments; the leaders'
        results, by data-parallel rank. In results, tensors deeper than in a mapping's values are Python numbers.
        """
        ...

    def start(self, method: str, **arguments: Any) -> list[Any]:
        """Every rank with the same arguments, to be waited for by the caller: one future a rank, whose kind is the
        group's own.
        """
        ...

    def shutdown(self) -> bool:
        """End the workers and free what the group holds; whether that went well. A second call does nothing."""
        ...
