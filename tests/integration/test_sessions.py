"""Sessions: a client that lives keeps what it was handed; of one that is gone, others get it, and it learns of that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.conftest import ANY_PORT
from tests.waiting import eventually

from dataplane_client import aio
from dataplane_client.client import Claim, DataPlaneClient, connect, connect_later
from dataplane_client.errors import (
    ClaimNotFoundError,
    ClosedError,
    DataPlaneError,
    DeadlineError,
    NotFoundError,
    UnavailableError,
)
from dataplane_client.options import ClientOptions, TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.testing import ServerThread

GRACE_S = 4.0
BEATS = 2


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows x and y."""
    client.register_partition("p", ["a", "b"], 2, ["train"])
    client.put_samples(["x", "y"], "p", {"a": torch.zeros(2)})
    return client


def states(client: DataPlaneClient) -> tuple[int, int, int]:
    """Untaken, claimed and consumed rows."""
    status = client.partition("p").task("train")
    return status.untaken_rows, status.claimed_rows, status.consumed_rows


def await_beats(client: DataPlaneClient) -> None:
    """Wait until the server has heard so many heartbeats of the client that holds rows."""
    heard, before_s = 0, 0.0
    while heard < BEATS:
        (silent_s,) = (session.silent_s for session in client.sessions() if session.rows)
        heard, before_s = heard + (silent_s < before_s), silent_s
        time.sleep(0.05)


async def test_a_claim_lives_while_the_event_loop_of_its_client_stands_still(
    flow: DataPlaneClient, address: str, transport: TransportChoice
) -> None:
    async with await aio.connect(address, transport=transport, session_grace_s=GRACE_S) as other:
        claim = await other.claim("p", "train", ["a"], 2)
        await_beats(flow)  # nothing else happens on this loop meanwhile
        assert states(flow) == (0, 2, 0)
        assert await claim.commit() == 2


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


def test_a_claim_keeps_the_client_that_made_it(flow: DataPlaneClient, address: str, transport: TransportChoice) -> None:
    claim = connect(address, transport=transport, session_grace_s=GRACE_S).claim("p", "train", ["a"], 2)
    await_beats(flow)
    assert claim.commit() == 2
    del claim
    eventually(lambda: flow.server_status().sessions == 0)


def test_a_client_claims_from_a_server_that_was_started_anew(
    start_server: Callable[..., ServerThread], listen: str, transport: TransportChoice
) -> None:
    first = ServerThread(ServerConfig(listen=(listen,), direct=ANY_PORT))
    with connect(first.addresses[0], timeout_s=200.0, transport=transport) as client:
        held = claimed_anew(client)
        first.stop(0.0)
        start_server(tuple(first.addresses))
        with pytest.raises(ClaimNotFoundError):
            held.commit()
        assert claimed_anew(client).commit() == 1


def test_a_client_whose_claims_do_not_wait_finds_a_server_again_that_is_slow_to_answer(
    start_server: Callable[..., ServerThread],
    listen: str,
    transport: TransportChoice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status_of = DataPlaneServicer.GetServerStatus

    async def slowly(servicer: DataPlaneServicer, *asked: Any) -> Any:
        await asyncio.sleep(0.2)
        return await status_of(servicer, *asked)

    first = ServerThread(ServerConfig(listen=(listen,), direct=ANY_PORT))
    with connect(first.addresses[0], timeout_s=200.0, transport=transport) as client:
        claimed_anew(client).commit()
        first.stop(0.0)
        monkeypatch.setattr(DataPlaneServicer, "GetServerStatus", slowly)
        start_server(tuple(first.addresses))

        def finds_the_new_one() -> bool:
            try:
                client.claim("p", "train", ["a"], 1, timeout_s=0.0)
            except NotFoundError:
                return True  # it has no partition yet
            except (UnavailableError, DeadlineError):
                return False
            return False

        eventually(finds_the_new_one)


def test_a_server_that_starts_anew_between_its_status_and_a_visit_at_its_socket_is_asked_again(
    start_server: Callable[..., ServerThread], listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status_of, asked = DataPlaneServicer.GetServerStatus, list[None]()

    async def of_the_former_first(servicer: DataPlaneServicer, *given: Any) -> Any:
        status = await status_of(servicer, *given)
        asked.append(None)
        if len(asked) <= 2:  # connect asks once, and the first attempt to attach
            status.shared_memory.nonce = bytes(len(status.shared_memory.nonce))
        return status

    monkeypatch.setattr(DataPlaneServicer, "GetServerStatus", of_the_former_first)
    server = start_server((listen,))
    with connect(server.addresses[0], timeout_s=200.0, transport="shm") as client:
        assert client.partitions() == []
        assert client.transport == "shm"


def test_nothing_is_taken_back_of_what_was_never_asked_for(
    start_server: Callable[..., ServerThread],
    listen: str,
    transport: TransportChoice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that finds no way to a server has not sent its claim."""
    status_of, release = DataPlaneServicer.GetServerStatus, DataPlaneServicer.ReleaseClaim
    answers = transport == "grpc"  # this way needs no status
    released: list[str] = []

    async def when_it_answers(servicer: DataPlaneServicer, *asked: Any) -> Any:
        while not answers:  # noqa: ASYNC110  # set by another thread
            await asyncio.sleep(0.01)
        return await status_of(servicer, *asked)

    async def noted(servicer: DataPlaneServicer, request: Any, *asked: Any) -> Any:
        released.append(request.claim_id)
        return await release(servicer, request, *asked)

    monkeypatch.setattr(DataPlaneServicer, "GetServerStatus", when_it_answers)
    monkeypatch.setattr(DataPlaneServicer, "ReleaseClaim", noted)
    address = start_server((listen,)).addresses[0]
    with connect_later(address, ClientOptions(transport=transport, timeout_s=200.0)) as client:
        with pytest.raises(DataPlaneError):
            client.claim("p", "train", ["a"], 1, timeout_s=0.0)
        answers = True
        claim = claimed_anew(client)
        held = claim.claim_id
        del claim  # it is given up behind what is to be taken back
        eventually(lambda: held in released)
    assert released == [held]


def claimed_anew(client: DataPlaneClient) -> Claim:
    client.register_partition("p", ["a"], 1, ["train"])
    client.put_samples(["x"], "p", {"a": torch.zeros(1)})
    return client.claim("p", "train", ["a"], 1)
