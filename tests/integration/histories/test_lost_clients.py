"""What a client holds goes to others when it is gone for its grace, soon, and never while it is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from tests import commands

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice

PROMISED_S = 0.1
"""How much later than its grace the rows of a client that is gone are with others, at most."""

Hold = Callable[[float], "Holder"]


class Holder:
    """A client in a process of its own, which holds a row."""

    def __init__(self, process: commands.Forked, **arguments: float | str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._said = process.stdout
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        self._pid = int(self._said.readline())
        self._lives = True

    def commit(self) -> str:
        """Have it commit its claim, and end; how that went."""
        os.kill(self._pid, signal.SIGUSR1)
        os.kill(self._pid, signal.SIGCONT)
        self._lives = False
        return str(self._said.readline()).strip()

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        if self._lives:
            os.kill(self._pid, signal.SIGKILL)
        self._lives = False


@pytest.fixture(params=["shm", pytest.param("grpc", marks=pytest.mark.long)])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def flow(address: str) -> Iterator[DataPlaneClient]:
    """A client of a server whose partition p has a row."""
    with connect(address, transport="grpc") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["row"], "p", {"x": torch.zeros(1)})
        yield client


@pytest.fixture(scope="module")
def zygote() -> Iterator[commands.Forked]:
    """The process that forks holders."""
    command = [sys.executable, "-m", "tests.integration.histories.holders"]
    pipe = subprocess.PIPE
    with commands.begin(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def hold(flow: DataPlaneClient, address: str, transport: TransportChoice, zygote: commands.Forked) -> Iterator[Hold]:
    """Have a client with such a grace claim the row."""
    holders: list[Holder] = []

    def start(grace_s: float) -> Holder:
        holders.append(Holder(zygote, target=address, transport=transport, session_grace_s=grace_s))
        return holders[-1]

    yield start
    for holder in holders:
        holder.kill()


def test_the_commit_of_a_client_that_was_stopped_beyond_its_grace_is_refused(flow: DataPlaneClient, hold: Hold) -> None:
    holder = hold(0.3)
    holder.stop()
    claim = flow.claim("p", "train", ["x"], 1, timeout_s=120.0)
    assert holder.commit() == "ClaimFencedError"
    assert claim.commit() == 1


def test_a_client_that_does_nothing_for_longer_than_its_grace_keeps_its_row(flow: DataPlaneClient, hold: Hold) -> None:
    holder = hold(4.0)
    heard = [0.0]
    while len(heard) <= 5:  # heartbeats, of which four come within a grace
        (silent_s,) = (session.silent_s for session in flow.sessions() if session.rows)
        heard += [silent_s] if silent_s < heard[-1] else []
        heard[-1] = silent_s
        time.sleep(0.05)
    status = flow.partition("p").task("train")
    assert (status.claimed_rows, status.untaken_rows) == (1, 0)
    assert holder.commit() == "committed"


@pytest.mark.soak
@pytest.mark.parametrize("grace_s", [1.0])
def test_rows_of_a_killed_client_are_claimed_again_within_its_grace_and_a_tenth_of_a_second(
    flow: DataPlaneClient, hold: Hold, grace_s: float
) -> None:
    """On a quiet machine."""
    took = []
    for _ in range(10):
        holder = hold(grace_s)
        time.sleep(0.3)
        holder.kill()
        killed = time.monotonic()
        claim = flow.claim("p", "train", ["x"], 1, timeout_s=120.0)
        took.append(time.monotonic() - killed)
        claim.release()
    sys.stdout.write(f"claimed again after {', '.join(f'{seconds:.3f}' for seconds in took)} s\n")
    assert max(took) <= grace_s + PROMISED_S
