"""Whether the calls of a data directory give the states again that its checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dataplane_server.replaying.past import Covered, Past


class Compared(NamedTuple):
    """Digests of the state before a record: as the calls give it, and as its checkpoint has it."""

    record: int
    replayed: str
    checkpoint: str


def compare(covered: Covered) -> Iterator[Compared]:
    """Replay from the oldest state to the end of the log, and compare each checkpoint. Errors as Past."""
    past = Past(covered, covered.starts[0])
    for record in covered.starts[1:]:
        past.run(record)
        yield Compared(record, past.plane.digest(), Past(covered, record).plane.digest())
    past.run(covered.end)
