"""Sessions: a client that lives keeps what it was handed; of one that is gone, others get it, and it learns of that."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest
import torch
from tests.forked import forking
from tests.integration.conftest import ANY_PORT, Eventually

from dataplane_client import aio
from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import ClaimFencedError, ClaimNotFoundError, ClosedError, DataPlaneError
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread

GRACE_S = 0.3

BOTH_TRANSPORTS = pytest.mark.parametrize("way", ["unix", "shm"], indirect=True)
"""The socket makes no difference to a process of its own."""


def consume(pipe: Connection, address: str, transport: TransportChoice) -> None:
    """Claim two rows, then evaluate what comes."""
    client = connect(address, transport=transport, session_grace_s=GRACE_S)
    claim = client.claim("p", "train", ["a"], 2)
    pipe.send(claim.claim_id)
    with contextlib.suppress(EOFError):
        while True:
            expression = pipe.recv()
            pipe.send(_outcome(lambda: eval(expression, {"client": client, "claim": claim, "torch": torch})))  # noqa: B023, S307


def _outcome(step: Callable[[], object]) -> str:
    try:
        return str(step())
    except DataPlaneError as error:
        return type(error).__name__


class Consumer:
    """A process that has claimed two rows, and evaluates what it is told."""

    def __init__(self, address: str, transport: TransportChoice) -> None:
        context = forking()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=consume, args=(theirs, address, transport))
        self._process.start()
        theirs.close()
        self.claim_id = str(self._pipe.recv())

    def does(self, expression: str) -> str:
        self._pipe.send(expression)
        return str(self._pipe.recv())

    def gets(self, signal_number: int) -> None:
        os.kill(self._process.pid or 0, signal_number)

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join(60)


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows x and y."""
    client.register_partition("p", ["a", "b"], 2, ["train"])
    client.put_samples(["x", "y"], "p", {"a": torch.zeros(2)})
    return client


@pytest.fixture
def consumer(flow: DataPlaneClient, address: str, transport: TransportChoice) -> Iterator[Consumer]:
    """A process that has claimed x and y."""
    consumer = Consumer(address, transport)
    yield consumer
    consumer.close()


def states(client: DataPlaneClient) -> tuple[int, int, int]:
    """Untaken, claimed and consumed rows."""
    status = client.partition("p").task("train")
    return status.untaken_rows, status.claimed_rows, status.consumed_rows


def test_a_client_has_a_session_from_its_first_claim_on(flow: DataPlaneClient) -> None:
    flow.get_samples(["x"], "p", ["a"])
    assert flow.server_status().sessions == 0
    claims = [flow.claim("p", "train", ["a"], 1) for _ in range(2)]
    assert flow.server_status().sessions == 1
    assert claims[0].fence < claims[1].fence


async def test_a_claim_lives_while_the_event_loop_of_its_client_stands_still(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    async with await aio.connect(address, transport=transport, session_grace_s=GRACE_S) as other:
        claim = await other.claim("p", "train", ["a"], 2)
        time.sleep(3 * GRACE_S)  # noqa: ASYNC251  # nothing else happens on this loop meanwhile
        assert states(flow) == (0, 2, 0)
        assert await claim.commit() == 2


async def test_a_session_that_is_opened_holds_up_no_event_loop(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    async with await aio.connect(address, transport=transport) as other:
        claims = await other.claim("p", "train", ["a"], 1), await other.claim("p", "train", ["a"], 1)
        assert [await claim.release() for claim in claims] == [1, 1]
    assert states(flow) == (2, 0, 0)


def test_a_client_that_is_closed_gives_back_what_it_holds_as_not_used(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    with connect(address, transport=transport) as other:
        held = other.claim("p", "train", ["a"], 2)
        assert states(flow) == (0, 2, 0)
    assert states(flow) == (2, 0, 0)
    again = flow.claim("p", "train", ["a"], 2, timeout_s=0)
    assert (again.meta.sample_ids, again.deliveries) == (["x", "y"], [1, 1])
    with pytest.raises(ClosedError):
        held.commit()


def test_a_claim_keeps_the_client_that_made_it(
    flow: DataPlaneClient, address: str, transport: TransportChoice, eventually: Eventually
) -> None:
    claim = connect(address, transport=transport, session_grace_s=GRACE_S).claim("p", "train", ["a"], 2)
    time.sleep(3 * GRACE_S)
    assert claim.commit() == 2
    del claim
    eventually(lambda: flow.server_status().sessions == 0)


@BOTH_TRANSPORTS
def test_rows_of_a_client_that_was_killed_are_delivered_again(flow: DataPlaneClient, consumer: Consumer) -> None:
    consumer.gets(signal.SIGKILL)
    claim = flow.claim("p", "train", ["a"], 2, timeout_s=20.0)
    assert (claim.meta.sample_ids, claim.deliveries) == (["x", "y"], [2, 2])
    assert flow.partition("p").task("train").ended_deliveries == {"expired": 2}
    assert claim.fence > int(consumer.claim_id.rpartition("-")[2])


@BOTH_TRANSPORTS
@pytest.mark.parametrize(
    "late",
    ["claim.commit()", "claim.commit({'b': [1.0, 1.0]})", "claim.release()", "claim.write({'b': [1.0, 1.0]})"],
    ids=["commit", "commit with columns", "release", "write"],
)
def test_what_a_client_does_late_with_rows_that_others_have_is_refused_and_changes_nothing(
    flow: DataPlaneClient, consumer: Consumer, late: str
) -> None:
    consumer.gets(signal.SIGSTOP)
    claim = flow.claim("p", "train", ["a"], 2, timeout_s=20.0)
    claim.write({"b": torch.tensor([7.0, 8.0])})
    consumer.gets(signal.SIGCONT)
    assert consumer.does(late.replace("[1.0, 1.0]", "torch.ones(2)")) == "ClaimFencedError"
    assert consumer.does("claim.state") == "fenced"
    assert flow.get_samples(["x", "y"], "p", ["b"])["b"].tolist() == [7.0, 8.0]
    assert claim.commit() == 2
    assert states(flow) == (0, 0, 2)


@BOTH_TRANSPORTS
def test_a_client_that_was_stopped_claims_again_as_if_nothing_had_been(
    flow: DataPlaneClient, consumer: Consumer
) -> None:
    consumer.gets(signal.SIGSTOP)
    claim = flow.claim("p", "train", ["a"], 2, timeout_s=20.0)
    claim.release()
    consumer.gets(signal.SIGCONT)
    assert consumer.does("client.claim('p', 'train', ['a'], 2).commit()") == "2"


def test_a_client_claims_from_a_server_that_was_started_anew(
    start_server: Callable[..., ServerThread], listen: str, transport: TransportChoice
) -> None:
    first = ServerThread(ServerConfig(listen=(listen,), direct=ANY_PORT))
    with connect(first.addresses[0], timeout_s=20.0, transport=transport) as client:
        held = claimed_anew(client)
        first.stop(0.0)
        start_server(tuple(first.addresses))
        with pytest.raises(ClaimNotFoundError):
            held.commit()
        assert claimed_anew(client).commit() == 1


def claimed_anew(client: DataPlaneClient) -> Claim:
    client.register_partition("p", ["a"], 1, ["train"])
    client.put_samples(["x"], "p", {"a": torch.zeros(1)})
    return client.claim("p", "train", ["a"], 1)


def test_a_claim_that_was_adopted_outlives_the_client_that_made_it(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    with connect(address, transport=transport) as other:
        made = other.claim("p", "train", ["a"], 2)
        adopted = flow.adopt_claim(made.claim_id, made.meta)
    assert (adopted.meta, adopted.fence, adopted.deliveries) == (made.meta, made.fence, [])
    assert adopted.commit() == 2
    assert states(flow) == (0, 0, 2)


def test_a_claim_that_has_ended_cannot_be_adopted(flow: DataPlaneClient) -> None:
    claim = flow.claim("p", "train", ["a"], 2)
    claim.release()
    with pytest.raises(ClaimNotFoundError):
        flow.adopt_claim(claim.claim_id, claim.meta)
    reset = flow.claim("p", "train", ["a"], 2)
    flow.reset("p", "train")
    with pytest.raises(ClaimFencedError):
        flow.adopt_claim(reset.claim_id, reset.meta)
