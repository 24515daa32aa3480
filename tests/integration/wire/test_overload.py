"""More requests at once than a server can take, on connections of the local socket and of the direct port.

The requests leave, and the responses are read, between passes of the server's own event loop. So what is served in a
pass does not depend on time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from tests.integration.wire.local_peer import HEAD, Host, Peer

from dataplane_server.service.turns import A_PASS, SHORT_A_PASS, TARGET_S
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

STATUS, COMMIT = pb.LOCAL_METHOD_GET_SERVER_STATUS, pb.LOCAL_METHOD_COMMIT
PEERS, ASKING = 60, 10
OTHER_WORK_S = 0.01
"""In each pass of the event loop, on a machine that has too much to do."""
URGENT: dict[str, tuple[int, Message]] = {
    "commit": (COMMIT, pb.LocalCommitRequest(header=plane_pb.CommitClaimHeader(claim_id="c"), values=b"")),
    "release": (pb.LOCAL_METHOD_RELEASE_CLAIM, plane_pb.ReleaseClaimRequest(claim_id="c")),
    "end of a group": (pb.LOCAL_METHOD_ABORT_GROUP, plane_pb.AbortGroupRequest(reservation_id="r")),
    "finished write": (pb.LOCAL_METHOD_FINISH_WRITE, pb.FinishWriteRequest(handle=77)),
}
Answer = tuple[int, bytes]


@pytest.fixture(params=["local", "direct"])
def peers(host: Host, request: pytest.FixtureRequest) -> list[Peer]:
    """Connections that may call."""
    return [host.join() if request.param == "local" else host.join_directly() for _ in range(PEERS)]


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
        peer.socket.settimeout(120.0)


def test_a_pass_of_the_event_loop_serves_few_of_the_requests_that_have_come_and_the_next_ones_the_others(
    host: Host, peers: list[Peer]
) -> None:
    async def burst() -> list[dict[Peer, Answer]]:
        for peer in peers:
            peer.send(STATUS)
        return await passes(peers, 2 * PEERS)

    answers = on_loop_of(host, burst())
    served = [[outcome for outcome, _ in one.values()].count(pb.LOCAL_OUTCOME_UNSPECIFIED) for one in answers]
    assert max(served) <= A_PASS, "so whatever else the event loop has to do, it does in between"
    assert sum(map(len, answers)) == PEERS, "a machine that is busy may have some refused"


async def beside_others(peers: Sequence[Peer], asking: Sequence[Peer], *request: Any) -> list[Answer]:
    """The answers to a request of some peers, while the others repeat theirs: more than can be served."""
    others = set(peers) - set(asking)
    answers: list[Answer] = []
    waiting: set[Peer] = set()
    asked = False
    while len(answers) < len(asking) or waiting:
        for peer in others - waiting if len(answers) < len(asking) else ():
            peer.send(STATUS)
        if not asked and waiting and len(waiting) < len(others):  # others are being refused
            asked = True
            for peer in asking:
                peer.send(*request)
        [found] = await passes(peers, 1, OTHER_WORK_S)
        waiting = (others if len(answers) < len(asking) else waiting) - set(found)
        answers += [found[peer] for peer in asking if peer in found]
    return answers


def test_connections_are_greeted_a_few_in_a_pass_and_none_is_refused(host: Host) -> None:
    strangers = [host.connect() for _ in range(PEERS)]

    async def greetings() -> list[dict[Peer, Answer]]:
        await passes(strangers, PEERS)  # they are accepted
        for peer in strangers:
            peer.send(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=host.lifeline.attached.session))
        return await passes(strangers, PEERS)

    answers = on_loop_of(host, greetings())
    assert max(map(len, answers)) <= SHORT_A_PASS
    assert [outcome for answered in answers for outcome, _ in answered.values()] == PEERS * [
        pb.LOCAL_OUTCOME_UNSPECIFIED
    ]


def details(answer: Answer) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo]:
    outcome, body = answer
    assert outcome == pb.LOCAL_OUTCOME_ERROR
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(body).details:
        assert detail.Unpack(info) or detail.Unpack(retry)
    return info, retry


@pytest.mark.parametrize("values", [b"", b"\xff" * 4096], ids=["a request", "no message at all"])
def test_requests_that_would_wait_for_too_long_are_refused_unread_and_told_when_to_come_again(
    host: Host, peers: list[Peer], values: bytes
) -> None:
    answers = on_loop_of(host, beside_others(peers, peers[:ASKING], pb.LOCAL_METHOD_PUT, values))
    refusals = [details(answer) for answer in answers]
    retries = [retry for info, retry in refusals if info.reason == "OVERLOADED"]
    assert len(retries) > ASKING / 2, "few may come when fewer wait"
    assert {retry.retry_delay.ToNanoseconds() for retry in retries} == {TARGET_S * 1e9}
    assert peers[0].said(STATUS), "later it is served"


@pytest.mark.parametrize("what", URGENT)
def test_never_refused_for_overload_is_a(host: Host, peers: list[Peer], what: str) -> None:
    answers = on_loop_of(host, beside_others(peers, peers[:ASKING], *URGENT[what]))
    assert {details(answer)[0].reason for answer in answers}.isdisjoint(["", "OVERLOADED"]), "they were looked at"
