"""What a data plane for rollouts can do: the verbs that promises use and drivers translate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

Lack = Literal[
    "abandon",  # give claimed rows back before their lease is over
    "budget",  # a bound on what the system holds
    "counts",  # how many rows are ready, claimed and consumed
    "disk",  # rows outlive the server's process
    "groups",  # rows that are claimed together or not at all
    "ids",  # a row that is put again under its id is the same row
    "lease",  # rows that were delivered and not committed come back
    "least",  # a claim may ask for n rows or none
    "remove",  # rows go when their caller says so
    "staleness",  # a bound on how old the weights of a delivered row may be
    "tasks",  # several tasks get every row, each once
    "waits",  # a claim waits for rows
    "whole puts",  # the rows of one put appear together or not at all
]
"""What a system may not have; the promises that need it are then not offered."""


class RefusedError(Exception):
    """The system refused the call, and nothing changed."""


@contextlib.contextmanager
def refused_by(*errors: type[Exception]) -> Iterator[None]:
    """Make these errors of a system's client a RefusedError."""
    try:
        yield
    except errors as error:
        raise RefusedError(str(error) or type(error).__name__) from error


class Value(NamedTuple):
    """One value of a row: the name of its element type in torch, and its elements in little-endian bytes. It has one
    dimension.
    """

    dtype: str
    data: bytes


class Row(NamedTuple):
    """version: of the weights that generated it; None if it names none."""

    id: str
    values: Mapping[str, Value]
    version: int | None = None


@dataclass(frozen=True)
class Space:
    """Where the rows of one promise are: a partition, a stream, a queue.

    lease_s: after how many seconds the rows of a silent holder go to others. max_staleness: how many versions a row may
    be behind when it is delivered. max_bytes: how much the values may take. call_s: the deadline of calls of its
    clients, except claims, which name theirs.
    """

    name: str
    fields: tuple[str, ...] = ("tokens",)
    tasks: tuple[str, ...] = ("train",)
    lease_s: float = 2.0
    max_staleness: int | None = None
    max_bytes: int | None = None
    call_s: float = 20.0


class Claimed(NamedTuple):
    """Rows that a client holds, under a name that it chose."""

    name: str
    ids: list[str]


class Counts(NamedTuple):
    """Of one task: rows that it may get, that it holds and that it committed."""

    ready: int
    claimed: int
    committed: int


class Client(Protocol):
    """One user of the system, in a process of its own. Calls raise RefusedError for what the system refuses; every
    other exception means that nobody knows what happened. A driver leaves out the verbs that its system lacks.
    """

    def put(self, rows: Sequence[Row]) -> None:
        """Put rows in one call. Returns when they are acknowledged."""

    def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
        """Claim up to n rows. None if fewer than `least` are there within wait_s seconds."""

    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        """The values of claimed rows, by id and field."""

    def commit(self, claim: str) -> None: ...
    def abandon(self, claim: str) -> None: ...
    def renew(self, claim: str) -> None:
        """Keep the claim for another lease; nothing where the client does so by itself."""

    def put_group(self, group: str, rows: Sequence[Row], *, finish: bool) -> None:
        """Put rows of a group, and show them if it is finished."""

    def claim_groups(self, task: str, n: int, wait_s: float) -> Claimed | None: ...
    def set_version(self, version: int) -> None: ...
    def remove(self, ids: Sequence[str]) -> None: ...
    def counts(self, task: str) -> Counts: ...


class Driver(Protocol):
    """A system under test. lacks: what it does not offer. address: for `connect`, once it is started. owns_server: the
    driver started it, so promises may kill it. folder: where it keeps its files, or None.
    """

    lacks: frozenset[Lack]
    address: str
    owns_server: bool
    folder: Path | None

    def versions(self) -> str: ...
    def start(self) -> None:
        """Start the server, again over the files of the last one if that was killed. Returns when it serves; raises
        RefusedError with its words if it ends instead.
        """

    def kill(self) -> None:
        """SIGKILL to the server."""

    def pause(self, stopped: bool, /) -> None:
        """SIGSTOP to the server, or SIGCONT."""

    def tear(self) -> None:
        """Leave the first half of a record at the end of the killed server's log."""

    def forget(self, spaces: Sequence[Space]) -> None:
        """Remove spaces from a server that the driver does not own, so that a run leaves nothing there."""

    def stop(self) -> None:
        """End the server and remove its files."""

    @staticmethod
    def connect(address: str, space: Space) -> object:
        """A client, with the verbs of `Client` that the system has, in the process that calls. The first one creates
        the space.
        """
