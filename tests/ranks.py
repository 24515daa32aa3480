"""Ranks as processes of their own, for tests that end them or whose ranks are like no others; else see rank_pool.py."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeAlias

import torch

from tests.forked import forking

WarningAction: TypeAlias = Literal["error", "default"]

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    """For a meeting somewhat later, so not one of those that outgoing connections get."""
    for port in random.SystemRandom().sample(range(12_000, 30_000), 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there is no free port")


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """Of 127.0.0.1. Bound, so that nobody else gets it, and never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """By which a rank finds the others."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def be_the_only_rank(monkeypatch: Any) -> None:
    """Of a group that this process makes. What set-up changes is undone: torch wraps the hook that prints exceptions,
    and validation sets a variable of NCCL's.
    """
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "1")
    for name, value in environment(0, 1, free_port()).items():
        monkeypatch.setenv(name, value)


def run_ranks(
    play: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    *,
    exit_codes: Sequence[int] | None = None,
    warning: WarningAction = "error",
    gpus: bool = False,
    timeout_s: float = 110.0,
) -> None:
    """One process for each tuple of arguments of `play`, a function that can be imported; back when all have ended.

    exit_codes: what each must end with; None: 0. The first that ends otherwise ends the others, which may be waiting
    for it. warning: what is made of warnings. gpus: whether the ranks may use them.
    """
    context = forking()
    processes: list[BaseProcess] = [context.Process(target=_rank, args=(play, own, warning, gpus)) for own in arguments]
    try:
        for process in processes:
            process.start()
        _await(processes, exit_codes or [0] * len(processes), time.monotonic() + timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join()


def become_a_rank(gpus: bool) -> None:
    """What a process does first."""
    os.environ.update(_ENVIRONMENT)
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)


def _rank(play: Callable[..., None], arguments: tuple[Any, ...], warning: WarningAction, gpus: bool) -> None:
    become_a_rank(gpus)
    warnings.simplefilter(warning)
    play(*arguments)


def _await(processes: list[BaseProcess], exit_codes: Sequence[int], deadline: float) -> None:
    while True:
        ended = [process.exitcode for process in processes]
        if ended == list(exit_codes):
            return
        assert all(code in (None, wanted) for code, wanted in zip(ended, exit_codes, strict=True)), ended
        assert time.monotonic() < deadline, f"the ranks take too long; so far {ended}"
        time.sleep(0.02)
