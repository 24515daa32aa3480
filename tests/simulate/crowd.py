"""The clients of the core's machine, before a server that dies: what they know of it can be kept, and gone back to.

Their values are in the arena's file. A value of a row is there, byte for byte, after each event and each recovery, and
so is what a read must find.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from tests.core.machine.arena import Arena
from tests.core.machine.checked_plane import CheckedPlane
from tests.core.machine.clients import Clients
from tests.core.machine.things import Row, Value, Write

from dataplane_server.core.calls.answers import PartitionInfo, Registered
from dataplane_server.core.calls.life_calls import Settle
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import BeginRead, Call, EndRead
from dataplane_server.core.calls.values import Run
from dataplane_server.durability.life import Life

_RECONNECT_S = 2.0


class PatientArena(Arena):
    """What is freed stays in use until `settle`, while `waits`. releases: those of the core so far."""

    def __init__(self, capacity: int, releases: Callable[[], int]) -> None:
        super().__init__(capacity)
        self.waits = False
        self._releases = releases
        self._freed: deque[tuple[int, list[Run]]] = deque()

    def free(self, runs: Iterable[Run]) -> None:
        if self.waits:
            self._freed.append((self._releases(), list(runs)))
        else:
            super().free(runs)

    def settle(self, releases: int) -> None:
        while self._freed and self._freed[0][0] <= releases:
            super().free(self._freed.popleft()[1])


class World(CheckedPlane):
    """before: called before each call. after: called with the time, the call, and its outcome."""

    life: Life
    logged_s = 0.0
    """When the last call came that is in the log."""

    def __init__(self, limits: Limits, before: Callable[[], object], after: Callable[..., object]) -> None:
        super().__init__(limits)
        self.before, self.after = before, after
        self.settled: Callable[[], object] = int  # called before each check
        self.arena = self.model.arena = PatientArena(limits.memory_bytes, self._releases)

    def _releases(self) -> int:
        return self.plane.releases

    def _real(self, call: Call[object], at: float | None = None) -> object:
        self.before()
        outcome = super()._real(call, at)
        when = self.now if at is None else at
        if not isinstance(call, (BeginRead, EndRead)):
            self.logged_s = when
        self.after(when, call, outcome)
        return without_reads(outcome)

    def begin(self, life: Life) -> None:
        """The server begins, or begins again."""
        self.life, self.plane = life, life.plane  # type: ignore[assignment]  # its replay is checked by another one
        self.now = self.model.now = life.now()
        self.arena.waits = life.commits is not None
        caused: list[Any] = []
        take = life.plane.take_effects
        life.plane.take_effects = lambda: [caused.extend(take()), caused][1]  # type: ignore[method-assign,func-returns-value,return-value,assignment]
        life.resume()
        self.model.recover(life.held)
        for session in self.model.sessions:
            session.deadline = max(session.deadline, self.now + _RECONNECT_S + session.grace_s)
        self._check_effects()
        del life.plane.take_effects

    def settle(self, call: Settle) -> None:
        self._real(call)
        self.arena.settle(call.releases)
        self._check_effects()

    def finish(self, write: Write) -> None:
        if self.plane.holds_reservation(write.ticket):
            self.before()  # a process that died while it logged its last call writes no values
            self.life.arena.copy(write.copies)
            for value in [value for column in write.values.values() for value in column]:
                for offset, size in value.pieces:
                    self.life.arena.memory[offset + value.kept : offset + size] = value.data[value.kept :]
        super().finish(write)

    def check(self) -> None:
        self.settled()
        super().check()
        memory = self.life.arena.memory
        rows = [row for partition in self.model.partitions.values() for row in partition.rows]
        for value in values_of([*rows, *(row for read in self.model.former for row in read.rows)]):
            for offset, size in value.pieces:
                assert memory[offset : offset + size] == value.data, "a value of a row is not what was put"
        for read in self.model.reads.values():
            assert b"".join(memory[offset : offset + size] for offset, size in read.runs) == read.data


class Crowd(Clients):
    """crash: lets the server die soon."""

    world: World

    def __init__(self, dice: Random, world: Callable[[Limits], World], crash: Callable[[], object]) -> None:
        super().__init__(dice)
        self.world = world(self.world.model.limits)
        self._crash = crash
        self._shared: list[object] = [dice, crash, self.world.before, self.world.after, self.world.model._random]

    def recover(self) -> None:
        if self.chance(2):
            self._crash()

    def copied(self) -> Crowd:
        """What they know now."""
        world, model = self.world, self.world.model
        since = world.logged_s - model.limits.remember_s
        model.answers = {name: answer for name, answer in model.answers.items() if answer.at >= since}
        del world.sent[:-50], self.seen[:-50]
        copied: Crowd = Copies(self._shared).of(self)
        return copied

    def forgets(self, present: Crowd) -> None:
        """The present goes back to this copy. Its requests are sent again, late or never."""
        known = set(map(id, self.world.sent))
        self.later += [call for call in present.world.sent if id(call) not in known]
        self._drawn = present._drawn


class Copies:
    """Copies clients and model, several times as fast as `deepcopy`: values of the server are not changed by any."""

    def __init__(self, shared: Iterable[object]) -> None:
        self._of = {id(thing): thing for thing in shared}

    def of(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in _PLAIN or kind.__module__.startswith("dataplane_server"):
            return thing
        copied = self._of.get(id(thing))
        if copied is None:
            if kind in _EMPTY:
                copied = self._of[id(thing)] = kind()
                _EMPTY[kind](copied, thing, self.of)
            elif isinstance(thing, tuple):
                copied = tuple.__new__(kind, map(self.of, thing))
            elif kind is MethodType:
                copied = MethodType(thing.__func__, self.of(thing.__self__))
            else:
                copied = self._of[id(thing)] = object.__new__(kind)
                vars(copied).update({name: self.of(value) for name, value in vars(thing).items()})
        return copied


_PLAIN = {*map(type, (None, True, 0, 0.0, "", b"", int, int.__add__, len)), FunctionType, frozenset, np.ndarray}
_EMPTY: dict[type, Callable[[Any, Any, Callable[[Any], Any]], object]] = {
    list: lambda copied, thing, of: copied.extend(map(of, thing)),
    deque: lambda copied, thing, of: copied.extend(map(of, thing)),
    bytearray: lambda copied, thing, of: copied.extend(thing),
    set: lambda copied, thing, of: copied.update(map(of, thing)),
    dict: lambda copied, thing, of: copied.update((of(name), of(value)) for name, value in thing.items()),
    Counter: lambda copied, thing, of: copied.update({of(name): value for name, value in thing.items()}),
}


def values_of(rows: Iterable[Row]) -> Iterable[Value]:
    for row in rows:
        yield from row.values.values()
        yield from (owed.value for owed in row.owed)


def without_reads(outcome: object) -> object:
    """Reads that are not in the log are not counted by the next server."""
    if isinstance(outcome, Registered):
        return replace(outcome, partition=without_reads(outcome.partition))  # type: ignore[arg-type]
    if isinstance(outcome, PartitionInfo):
        return replace(outcome, read_bytes_total=0, read_rows_total=0)
    return outcome


def applied(plane: Any, call: Call[Any], now: float) -> None:
    with suppress(Refusal):
        plane.apply(call, now)
    plane.take_effects()
