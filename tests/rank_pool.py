"""Ranks that many tests share: processes that play one function after the other, each in a process group of its own.

What a process imports and what torch prepares at its first step is paid for once, not by each test. A play begins with
the same seed and environment whatever was played before, and ends without a group. A rank that raises, dies or is late
is named with its stack or its exit code. After a play that failed, or was interrupted by a timeout, all processes are
new: none of them has anything left to do or to say. They end with the process that has the pool, however it ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed

from tests.forked import forking
from tests.ranks import WarningAction, become_a_rank, environment, free_port

T = TypeVar("T")


class RankFailedError(Exception):
    """What each rank that failed has to say, the first one first."""


class RankPool:
    """gpus: whether the ranks may use them. rest_s: how long the others may take to say what they know after one has
    failed.
    """

    def __init__(self, *, gpus: bool = False, rest_s: float = 10.0) -> None:
        self._gpus, self._rest_s = gpus, rest_s
        self._members: list[_Member] = []

    def play(
        self,
        function: Callable[..., T],
        *arguments: Any,
        ranks: int = 2,
        warning: WarningAction = "error",
        timeout_s: float = 500.0,
    ) -> list[T]:
        """What `function(rank, *arguments)` returns on each rank; its module can be imported.

        The environment leads to a group of so many ranks, which the function makes if it wants one. Raises
        RankFailedError. warning: what is made of warnings.
        """
        try:
            while len(self._members) < ranks:
                self._members.append(_Member(len(self._members), self._gpus))
            port = free_port()
            for rank, member in enumerate(self._members[:ranks]):
                work = (function, (rank, *arguments), environment(rank, ranks, port), warning)
                member.connection.send_bytes(pickle.dumps(work))
            results, failures = self._outcomes(ranks, time.monotonic() + timeout_s)
            if failures:
                name = f"{function.__module__}.{function.__qualname__}"
                raise RankFailedError("\n\n".join([f"{name}{arguments}", *failures]))
            return [results[rank] for rank in range(ranks)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._members:
            self._members.pop().end()

    def _outcomes(self, ranks: int, deadline: float) -> tuple[dict[int, Any], list[str]]:
        """Results by rank, and what failed ones say."""
        waiting = {member.connection: rank for rank, member in enumerate(self._members[:ranks])}
        results: dict[int, Any] = {}
        failures: list[str] = []
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                failure = self._members[rank].receive(rank, results)
                if failure is not None:
                    failures.append(failure)
                    deadline = min(deadline, time.monotonic() + self._rest_s)
        failures += [f"rank {rank} has not ended:\n{self._members[rank].stacks()}" for rank in waiting.values()]
        return results, failures


class _Member:
    """One process."""

    def __init__(self, number: int, gpus: bool) -> None:
        self._stacks = Path(tempfile.mkstemp(prefix=f"rank{number}-")[1])
        self.connection, theirs = forking().Pipe()
        self._process = forking().Process(target=_serve, args=(theirs, self._stacks, gpus), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self, rank: int, results: dict[int, Any]) -> str | None:
        """Note the result. Returns what went wrong, if anything did."""
        try:
            error, result = pickle.loads(self.connection.recv_bytes())  # noqa: S301  # of a process of ours
        except (EOFError, ConnectionResetError):
            self._process.join()
            return f"rank {rank} ended with {self._process.exitcode}"
        if error is not None:
            return f"rank {rank} raised:\n{error}"
        results[rank] = result
        return None

    def stacks(self) -> str:
        """Where all threads of a process that does not answer are."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGUSR1)
        written = ""
        for _ in range(200):
            written = self._stacks.read_text()
            if written.endswith((" in <module>\n", " ...\n")):  # the first of the main thread, which comes last
                break
            time.sleep(0.05)
        return written or "it does not even take a signal"

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._stacks.unlink()


def _serve(connection: Connection, stacks: Path, gpus: bool) -> None:
    """The life of a member, until the test session ends or ends it."""
    threading.Thread(target=_end_with_the_session, daemon=True).start()
    become_a_rank(gpus)
    gc.freeze()  # what was imported: else each collection looks at all of it
    own = dict(os.environ)
    with stacks.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                connection.send_bytes(_outcome(*pickle.loads(connection.recv_bytes())))  # noqa: S301  # of the session
                os.environ.clear()
                os.environ.update(own)


def _end_with_the_session() -> None:
    """Also in the midst of a play, when the session was killed."""
    session = multiprocessing.parent_process()
    assert session is not None
    wait([session.sentinel])
    os._exit(1)


def _outcome(
    function: Callable[..., Any], arguments: tuple[Any, ...], variables: dict[str, str], warning: WarningAction
) -> bytes:
    """A traceback or None, and the result; pickled."""
    os.environ.update(variables)
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(warning)
            return pickle.dumps((None, function(*arguments)))
    except BaseException:  # noqa: BLE001  # whatever it is, the test is told
        return pickle.dumps((traceback.format_exc(), None))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        gc.collect()
