"""What partitions and tasks have counted in the last minute: a server notes their figures every 5 s, and descriptions
tell the difference.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.stats.figures import PARTITION_FIGURES, TASK_FIGURES, partition_columns, task_columns
from dataplane_server.core.tasks.task_states import TASK_STATES
from rl_dataplane.v1 import data_plane_pb2 as pb

_EVERY_S = 5.0
_KEPT = 12
_MOST_NOTED = 1024
"""Partitions and tasks, those that were registered first. Each takes about 7 kB."""


class _Noted(NamedTuple):
    at: float
    partition: Sequence[float | None]
    tasks: dict[str, Sequence[float | None]]


class Recent:
    """Figures of the last minute. now: the time of calls."""

    def __init__(self, plane: DataPlane, now: Callable[[], float]) -> None:
        self._plane = plane
        self._now = now
        self._rings: WeakKeyDictionary[Partition, deque[_Noted]] = WeakKeyDictionary()
        self._left = _MOST_NOTED

    async def keep(self) -> None:
        """Note the figures of all partitions again and again."""
        while True:
            await self.note_all()
            await asyncio.sleep(_EVERY_S)

    async def note_all(self) -> None:
        """Note the figures of all partitions. Calls are served between two of them."""
        self._left = _MOST_NOTED
        for name in list(self._plane.partitions):
            if (partition := self._plane.partitions.get(name)) is not None:
                self._note(partition)
                await asyncio.sleep(0)

    def begin(self, partition_id: str) -> None:
        """Note the figures of a partition that was registered, unless it was there before. A registration that is
        repeated may be of one that has gone.
        """
        partition = self._plane.partitions.get(partition_id)
        if partition is not None and partition not in self._rings:
            self._note(partition)

    def _note(self, partition: Partition) -> None:
        self._left -= 1 + len(partition.tasks)
        if self._left >= 0:
            self._rings.setdefault(partition, deque(maxlen=_KEPT)).append(_noted(partition, self._now()))
        else:
            self._rings.pop(partition, None)

    def tell(self, messages: Iterable[pb.Partition]) -> None:
        """Complete descriptions that were made just now."""
        now = self._now()
        for message in messages:
            partition = self._plane.partitions[message.partition_id]
            ring = self._rings.get(partition, ())
            then = next((noted for noted in ring if now - noted.at <= _EVERY_S * _KEPT), None)
            if then is not None:
                _tell(message, then, _noted(partition, now))


def _noted(partition: Partition, now: float) -> _Noted:
    (figures,) = zip(*partition_columns([partition], now).values(), strict=True)
    tasks = zip(*task_columns([partition], now).values(), strict=True)
    return _Noted(now, figures, dict(zip(partition.tasks, tasks, strict=True)))


def _tell(message: pb.Partition, then: _Noted, now: _Noted) -> None:
    flow, recent = _counted(PARTITION_FIGURES, then.partition, now.partition), message.recent
    recent.period.FromNanoseconds(int((now.at - then.at) * 1e9))
    recent.rows_put, recent.read_rows, recent.read_bytes = flow["rows_put"], flow["read_rows"], flow["read_bytes"]
    recent.written_bytes = flow["put_bytes"]
    recent.removed_rows.update(_named(flow, "removed_"))
    for status in message.tasks:
        after = now.tasks[status.task]
        task = _counted(TASK_FIGURES, then.tasks.get(status.task, (0,) * len(after)), after)
        recent.written_bytes += task["commit_bytes"]
        recent_task = pb.RecentTask(
            claims=task["claims"], delivered_rows=task["deliveries"], consumed_rows=task["rows_consumed"]
        )
        recent_task.period.CopyFrom(recent.period)
        recent_task.ended_deliveries.update(_named(task, "ended_"))
        recent_task.state_seconds.update({state: task[f"{state}_s"] for state in TASK_STATES})
        status.recent.CopyFrom(recent_task)


def _counted(names: Sequence[str], then: Sequence[float | None], now: Sequence[float | None]) -> dict[str, Any]:
    """The differences by name. A figure that has gone back began again, as the rows consumed of a task that was reset:
    it counts from 0.
    """
    pairs = ((before or 0, after or 0) for before, after in zip(then, now, strict=True))
    return dict(zip(names, [after - before if after >= before else after for before, after in pairs], strict=True))


def _named(figures: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Those with the prefix that are not zero, by the rest of their names."""
    return {name[len(prefix) :]: count for name, count in figures.items() if name.startswith(prefix) and count}
