"""The mutable state that the parts of the core share. Only `plane` and the parts it is made of may touch it."""

from __future__ import annotations

from dataplane_server.core.answers import Answers
from dataplane_server.core.births import Births
from dataplane_server.core.calls import Effect, Failed
from dataplane_server.core.delays import Delays
from dataplane_server.core.journal import Journal
from dataplane_server.core.limits import Limits
from dataplane_server.core.partition import Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.sessions import Sessions
from dataplane_server.core.space import Space


class State:
    """Partitions, the space their bytes take, answers given, and effects that the shell has yet to carry out."""

    def __init__(self, limits: Limits, incarnation: str = "c", first_generation: int = 1) -> None:
        limits.validate()
        self.limits = limits
        self.incarnation = incarnation
        self.sessions = Sessions(limits, incarnation)
        self.delays = Delays()
        self.journal = Journal(limits.remembered_events)
        self.births = Births(first_generation)
        self.space = Space(limits.memory_bytes)
        self.partitions: dict[str, Partition] = {}
        self.answers = Answers(limits)
        self.effects: list[Effect] = []
        self.draining = False
        self._tickets = 0

    def ticket(self) -> int:
        """A number never handed out before; tickets tell the order of arrival."""
        self._tickets += 1
        return self._tickets

    def partition(self, partition_id: str) -> Partition:
        try:
            return self.partitions[partition_id]
        except KeyError:
            message = f"there is no partition {partition_id[:256]!r}; register it first"
            raise Refusal(Reason.PARTITION_NOT_FOUND, message, partition_id=partition_id) from None

    def fail(self, ticket: int, refusal: Refusal) -> None:
        self.effects.append(Failed(ticket, refusal))

    @property
    def total_rows(self) -> int:
        return sum(len(partition.rows) for partition in self.partitions.values())


def draining() -> Refusal:
    return Refusal(Reason.DRAINING, "the server is shutting down")


def superseded() -> Refusal:
    return Refusal(Reason.SUPERSEDED, "a later call with the same request_id took this one's place")
