"""Processes of a data-parallel job, one a rank, and rounds in which all of them receive what one process sends.

They are forked from a process that has imported torch. Every wait has a deadline.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from exchanges.micro_batches import RANKS, Grid, tensors, together
from timing import undisturbed
from workload import digest, touch

WAIT_S = 60.0


class Sender(Protocol):
    """The side that sends a grid, step by step."""

    def send(self, grid: Any, step: int) -> None: ...
    def clear(self, step: int) -> None: ...


class Receiver(Protocol):
    """The side of one rank."""

    def receive(self, step: int) -> Sequence[Mapping[str, Any]]: ...
    def release(self) -> None: ...


class RankProcesses:
    """One process a rank. preloaded: modules that they find imported. make: called with the rank and the arguments in
    each process.
    """

    def __init__(self, preloaded: Sequence[str], make: Callable[..., Receiver], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *preloaded])
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_answer, args=(theirs, make, rank, arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def begin(self, name: str, *arguments: Any) -> None:
        """Begin a call in every rank. Returns when all are in it."""
        for pipe in self._pipes:
            pipe.send((name, arguments))
        self.finish()

    def finish(self) -> list[Any]:
        """The answers to the begun call, by rank."""
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(WAIT_S):
                raise TimeoutError(f"rank {rank} did not answer within {WAIT_S:.0f} s")
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def call(self, name: str) -> list[Any]:
        self.begin(name)
        return self.finish()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # a rank ends when its pipe does
        for process in self._processes:
            process.join(10)
            process.kill()


class GridRounds:
    """One round: the ranks wait, the grid is sent, every rank has its tensors and has read a number of each page.

    grid: as the sender takes it.
    """

    def __init__(self, grid: Any, sender: Sender, ranks: RankProcesses) -> None:
        self._grid, self._sender, self._ranks = grid, sender, ranks
        self._step = 0

    def __call__(self) -> Mapping[str, float]:
        self._ranks.begin("receive", self._step)
        with undisturbed():
            began = time.perf_counter()
            self._sender.send(self._grid, self._step)
            sent = time.perf_counter()
        received = max(self._ranks.finish())
        self._ranks.call("release")
        self._sender.clear(self._step)
        self._step += 1
        return {"send": sent - began, "until all ranks have it": received - sent}

    def check(self, sent: Grid) -> None:
        """Run a round. Raises RuntimeError if a rank has other micro-batches than those of `sent`."""
        self()
        for rank, (found, batches) in enumerate(zip(self._ranks.call("digest"), sent, strict=True)):
            if found != digest(together([tensors(batch) for batch in batches])):
                raise RuntimeError(f"the micro-batches of rank {rank} came back changed")


class _Rank:
    """The calls in the process of a rank."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._digest: str | None = None
        self._last: dict[str, Any] = {}

    def receive(self, step: int) -> float:
        """When the tensors were there, by the clock that all processes share."""
        with undisturbed():
            self._last = together(self._receiver.receive(step))
            touch(self._last)
            received = time.perf_counter()
        if self._digest is None:
            self._digest = digest(self._last)
        return received

    def digest(self) -> str | None:
        """Of the first step."""
        return self._digest

    def release(self) -> None:
        self._last = {}
        self._receiver.release()


def _answer(pipe: Connection, make: Callable[..., Receiver], rank: int, arguments: Sequence[Any]) -> None:
    """Answer each call twice: when it begins, and with its result."""
    calls = _Rank(make(rank, *arguments))
    while True:
        try:
            name, given = pipe.recv()
        except EOFError:
            return
        pipe.send(None)
        try:
            pipe.send(getattr(calls, name)(*given))
        except Exception as error:  # noqa: BLE001  # the caller receives every failure
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
