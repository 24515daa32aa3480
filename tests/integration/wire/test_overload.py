"""More requests at once than a server can take, on connections of the local socket and of the direct port.

The requests leave, and the responses are read, between passes of the server's own event loop. So what is served in a
pass does not depend on time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from tests.integration.wire.local_peer import HEAD, Host, Peer
from tests.integration.wire.test_direct_frames import Direct

from dataplane_server.service.turns import A_PASS, LEAST_WAITING, TARGET_S
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

STATUS, COMMIT = pb.LOCAL_METHOD_GET_SERVER_STATUS, pb.LOCAL_METHOD_COMMIT
PEERS = 100
OTHER_WORK_S = 0.05
"""In each pass of the event loop, on a machine that has too much to do."""
URGENT: dict[str, tuple[int, Message]] = {
    "commit": (COMMIT, pb.LocalCommitRequest(header=plane_pb.CommitClaimHeader(claim_id="c"), values=b"")),
    "release": (pb.LOCAL_METHOD_RELEASE_CLAIM, plane_pb.ReleaseClaimRequest(claim_id="c")),
    "end of a group": (pb.LOCAL_METHOD_ABORT_GROUP, plane_pb.AbortGroupRequest(reservation_id="r")),
    "finished write": (pb.LOCAL_METHOD_FINISH_WRITE, pb.FinishWriteRequest(handle=77)),
}
Answer = tuple[int, bytes]


@pytest.fixture(params=["local", "direct"])
def peers(host: Host, request: pytest.FixtureRequest) -> Iterator[list[Peer]]:
    """Connections that may call."""
    if request.param == "local":
        yield [host.join() for _ in range(PEERS)]
        return
    direct = Direct(host)
    yield [direct.begin() for _ in range(PEERS)]
    direct.close()


def on_loop_of(host: Host, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, host.server._loop).result(60)


async def passes(peers: Sequence[Peer], n: int, other_work_s: float = 0.0) -> list[dict[Peer, Answer]]:
    """The responses that arrive in each pass of the event loop."""
    found = []
    for _ in range(n):
        await asyncio.sleep(0)
        time.sleep(other_work_s)  # noqa: ASYNC251  # this is what keeps the event loop
        found.append({peer: peer.receive() for peer in peers if has_answer(peer)})
    return found


def has_answer(peer: Peer) -> bool:
    peer.socket.setblocking(False)
    try:
        return len(peer.socket.recv(HEAD.size, 2)) == HEAD.size  # MSG_PEEK
    except BlockingIOError:
        return False
    finally:
        peer.socket.settimeout(20.0)


def test_a_pass_of_the_event_loop_serves_few_of_the_requests_that_have_come_and_the_next_ones_the_others(
    host: Host, peers: list[Peer]
) -> None:
    async def burst() -> list[dict[Peer, Answer]]:
        for peer in peers:
            peer.send(STATUS)
        return await passes(peers, 2 * PEERS)

    answers = on_loop_of(host, burst())
    assert max(map(len, answers)) <= A_PASS, "so whatever else the event loop has to do, it does in between"
    assert sum(map(len, answers)) == PEERS
    assert {outcome for answered in answers for outcome, _ in answered.values()} == {pb.LOCAL_OUTCOME_UNSPECIFIED}


async def overload(peers: Sequence[Peer]) -> tuple[list[Peer], list[Peer]]:
    """Have more requests wait than are served soon. Returns who has been served, and who still waits."""
    for peer in peers:
        peer.send(STATUS)
    served: dict[Peer, Answer] = {}
    while len(peers) - len(served) > LEAST_WAITING + 6 * A_PASS:
        for answers in await passes(peers, 1, OTHER_WORK_S):
            served |= answers
    return list(served), [peer for peer in peers if peer not in served]


async def answer_of(peer: Peer) -> Answer:
    while not has_answer(peer):  # noqa: ASYNC110  # it polls a socket between passes
        await asyncio.sleep(0)
    return peer.receive()


def details(answer: Answer) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo]:
    outcome, body = answer
    assert outcome == pb.LOCAL_OUTCOME_ERROR
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(body).details:
        assert detail.Unpack(info) or detail.Unpack(retry)
    return info, retry


@pytest.mark.parametrize("values", [b"", b"\xff" * 4096], ids=["a request", "no message at all"])
def test_a_request_that_would_wait_for_too_long_is_refused_unread_and_told_when_to_come_again(
    host: Host, peers: list[Peer], values: bytes
) -> None:
    async def too_many() -> tuple[Answer, Answer, list[Answer]]:
        served, waiting = await overload(peers)
        served[0].send(pb.LOCAL_METHOD_PUT, values)
        first = await answer_of(served[0])
        assert not all(map(has_answer, waiting)), "it was not its turn"
        others = [await answer_of(peer) for peer in waiting]
        served[0].send(STATUS)
        return first, await answer_of(served[0]), others

    refused, again, others = on_loop_of(host, too_many())
    info, retry = details(refused)
    assert info.reason == "OVERLOADED"
    assert retry.retry_delay.ToNanoseconds() == TARGET_S * 1e9
    assert {outcome for outcome, _ in [again, *others]} == {pb.LOCAL_OUTCOME_UNSPECIFIED}, "later it is served"


@pytest.mark.parametrize("what", URGENT)
def test_never_refused_for_overload_is_a(host: Host, peers: list[Peer], what: str) -> None:
    async def too_many() -> tuple[Answer, Answer]:
        served, _ = await overload(peers)
        served[0].send(*URGENT[what])
        served[1].send(STATUS)
        return await answer_of(served[0]), await answer_of(served[1])

    urgent, other = on_loop_of(host, too_many())
    assert details(urgent)[0].reason not in ("", "OVERLOADED"), "it was looked at"
    assert details(other)[0].reason == "OVERLOADED", "or else this proves nothing"
