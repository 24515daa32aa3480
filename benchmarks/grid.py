"""A grid of packed micro-batches for the ranks of a data-parallel trainer, as prime-rl's orchestrator makes it.

Each micro-batch has 8,192 tokens of 4 sequences: Python lists with a value a token, and the lengths and environments of
the sequences. All sides start from these lists, and end with tensors in every rank; ranks wait for the grid.
prime-rl's ranks make tensors of the lists with torch; our sender makes arrays with NumPy, which takes a third of that
time. Our client takes the lists, too, but needs longer.

Needs neither our client nor a peer: `our_grid` and `peers.prime_rl` have the ways.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch

from timing import undisturbed
from workload import digest, touch

MicroBatch = Mapping[str, Any]
Grid = Sequence[Sequence[MicroBatch]]
"""The micro-batches of each rank."""

RANKS, BATCHES, TOKENS = 8, 4, 8192
WAIT_S = 60.0
_SEQUENCES = 4
PER_TOKEN = {
    "input_ids": torch.int64,
    "loss_mask": torch.bool,
    "advantages": torch.float32,
    "inference_logprobs": torch.float32,
    "position_ids": torch.int64,
    "temperatures": torch.float32,
}
_TENSORS = {**PER_TOKEN, "sequence_lengths": torch.int64, "seq_lens": torch.int64}
_ARRAYS = {torch.int64: np.int64, torch.float32: np.float32, torch.bool: np.bool_}
FIELDS = (*_TENSORS, "env_names")


def tensors(batch: MicroBatch) -> dict[str, Any]:
    """The lists of numbers as tensors."""
    made: dict[str, Any] = {name: torch.tensor(batch[name], dtype=dtype) for name, dtype in _TENSORS.items()}
    return {**made, "env_names": batch["env_names"]}


def arrays(batch: MicroBatch) -> dict[str, Any]:
    """The lists of numbers as arrays of the same types."""
    made: dict[str, Any] = {name: np.array(batch[name], _ARRAYS[dtype]) for name, dtype in _TENSORS.items()}
    return {**made, "env_names": batch["env_names"]}


def _micro_batch(random: np.random.Generator) -> MicroBatch:
    lengths = random.multinomial(TOKENS, np.full(_SEQUENCES, 1 / _SEQUENCES)).tolist()
    return {
        "input_ids": random.integers(1, 32_000, TOKENS).tolist(),
        "loss_mask": (random.random(TOKENS) < 0.7).tolist(),
        "advantages": random.standard_normal(TOKENS, np.float32).tolist(),
        "inference_logprobs": (-random.random(TOKENS, np.float32)).tolist(),
        "position_ids": [position for length in lengths for position in range(length)],
        "temperatures": [1.0] * TOKENS,
        "sequence_lengths": lengths,
        "seq_lens": lengths,
        "env_names": [f"environment {number}" for number in range(_SEQUENCES)],
    }


# -- ranks -------------------------------------------------------------------------------------------------------------


class Sender(Protocol):
    """The side that sends a grid, step by step."""

    def send(self, grid: Any, step: int) -> None: ...
    def clear(self, step: int) -> None: ...


class Receiver(Protocol):
    """The side of one rank."""

    def receive(self, step: int) -> Sequence[MicroBatch]: ...
    def release(self) -> None: ...


class GridCalls:
    """The calls of the driver, for ways to send a grid. receivers: makes a rank's side of each way, with the rank and
    the arguments of `open_way`. Ranks are processes, forked before anything is opened; each wait has a deadline.
    """

    def __init__(self, receivers: Mapping[str, Callable[..., Receiver]]) -> None:
        context = multiprocessing.get_context("fork")
        self._ranks: list[Connection] = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, rank, receivers), daemon=True).start()
            self._ranks.append(ours)
        random = np.random.default_rng(0)
        self.grid: Grid = [[_micro_batch(random) for _ in range(BATCHES)] for _ in range(RANKS)]
        self._ways: dict[str, tuple[Sender, Any, Iterator[int]]] = {}

    def open_way(self, way: str, sender: Sender, grid: Any, *arguments: Any) -> None:
        """Have the ranks make their sides. grid: ours, as the sender takes it."""
        self._ways[way] = sender, grid, count()
        self._call("open", way, *arguments)

    def check(self, way: str) -> None:
        """Send once, untimed. Raises RuntimeError if a rank got other micro-batches than those of the grid."""
        self.round(way)
        for rank, (found, batches) in enumerate(zip(self._call("digest"), self.grid, strict=True)):
            if found != digest(_together([tensors(batch) for batch in batches])):
                raise RuntimeError(f"the micro-batches of rank {rank} came back changed")

    def round(self, way: str) -> Mapping[str, float]:
        """The ranks wait, the grid is sent, every rank has its tensors and has read a number of each page."""
        sender, grid, steps = self._ways[way]
        step = next(steps)
        self._begin("receive", way, step)
        with undisturbed():
            began = time.perf_counter()
            sender.send(grid, step)
            sent = time.perf_counter()
        received = max(self._finish())  # all processes share this clock
        self._call("release", way)
        sender.clear(step)
        return {"send": sent - began, "until all ranks have it": received - sent}

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        self._begin(name, *arguments)
        return self._finish()

    def _begin(self, name: str, *arguments: Any) -> None:
        """Begin a call in every rank. Returns when all are in it."""
        for pipe in self._ranks:
            pipe.send((name, arguments))
        self._finish()

    def _finish(self) -> list[Any]:
        """The answers to the begun call, by rank."""
        if late := [rank for rank, pipe in enumerate(self._ranks) if not pipe.poll(WAIT_S)]:
            raise TimeoutError(f"ranks {late} did not answer within {WAIT_S:.0f} s")
        answers = [pipe.recv() for pipe in self._ranks]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def _serve(pipe: Connection, rank: int, receivers: Mapping[str, Callable[..., Receiver]]) -> None:
    """Answer each call twice: when it begins, and with its result."""
    calls = _Rank(rank, receivers)
    while True:
        name, arguments = pipe.recv()
        pipe.send(None)
        try:
            pipe.send(getattr(calls, name)(*arguments))
        except Exception as error:  # noqa: BLE001  # the caller receives every failure
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


class _Rank:
    """The calls in the process of a rank."""

    def __init__(self, rank: int, receivers: Mapping[str, Callable[..., Receiver]]) -> None:
        self._rank, self._receivers = rank, receivers
        self._open: dict[str, Receiver] = {}
        self._digest: str | None = None

    def open(self, way: str, *arguments: Any) -> None:
        self._open[way] = self._receivers[way](self._rank, *arguments)
        self._digest = None

    def receive(self, way: str, step: int) -> float:
        """When the tensors were there."""
        with undisturbed():
            self._last = _together(self._open[way].receive(step))
            touch(self._last)
            received = time.perf_counter()
        self._digest = self._digest or digest(self._last)
        return received

    def digest(self) -> str | None:
        """Of the first step of the last way that was opened."""
        return self._digest

    def release(self, way: str) -> None:
        self._last = {}
        self._open[way].release()


def _together(batches: Sequence[MicroBatch]) -> dict[str, Any]:
    """The fields of a rank's micro-batches under one name each."""
    return {f"{number}.{name}": value for number, batch in enumerate(batches) for name, value in batch.items()}
