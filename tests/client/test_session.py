"""The session of a client: when it is opened, what keeps it, what ends it, and what it takes back.

White-box: the server's part is played, for a server of ours does not break streams at chosen moments.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from tests import commands
from tests.ranks import free_port
from tests.waiting import eventually

from dataplane_client._connect.deadline import Deadline
from dataplane_client._connect.session import LivenessSession
from dataplane_client.errors import ClosedError, DataPlaneError, OutOfSpaceError
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb

GRACE_S = 0.2


@dataclass
class Sessions:
    """The server's part: it notes what it is told, and says what the test wants it to say."""

    opened: list[pb.OpenSession] = field(default_factory=list)
    living: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    refusal: tuple[grpc.StatusCode, str] | None = None
    released: list[pb.ReleaseClaimRequest] = field(default_factory=list)
    release_refusals: int = 0
    silent: threading.Event | None = None
    beats: int = 0
    _streams: list[grpc.ServicerContext] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1000)))

    def session(
        self, requests: Iterator[pb.SessionRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.SessionResponse]:
        opening = next(requests).open
        self.opened.append(opening)
        if self.silent is not None:
            self.silent.wait(200)
        if self.refusal is not None:
            abort(context, *self.refusal)
        session_id = opening.session_id or f"s{next(self._numbers)}"
        if opening.session_id and session_id not in self.living:
            abort(context, grpc.StatusCode.ABORTED, "SESSION_EXPIRED")
        self.living.add(session_id)
        self._streams.append(context)
        yield pb.SessionResponse(session_id=session_id, grace=opening.grace)
        for request in requests:
            assert not request.HasField("open")
            if request.close:
                self.closed.append(session_id)
                return
            assert request.ByteSize() == 0
            self.beats += 1
            if session_id not in self.living:
                abort(context, grpc.StatusCode.ABORTED, "SESSION_EXPIRED")

    def release_claim(self, request: pb.ReleaseClaimRequest, context: grpc.ServicerContext) -> pb.ReleaseClaimResponse:
        self.released.append(request)
        if self.release_refusals:
            self.release_refusals -= 1
            abort(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")
        return pb.ReleaseClaimResponse(released_rows=1)

    def break_streams(self) -> None:
        """As a connection that is cut."""
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.cancel()


def handlers(sessions: Sessions) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "rl_dataplane.v1.DataPlaneService",
        {
            "Session": grpc.stream_stream_rpc_method_handler(
                sessions.session, pb.SessionRequest.FromString, pb.SessionResponse.SerializeToString
            ),
            "ReleaseClaim": grpc.unary_unary_rpc_method_handler(
                sessions.release_claim, pb.ReleaseClaimRequest.FromString, pb.ReleaseClaimResponse.SerializeToString
            ),
        },
    )


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str) -> None:
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="rl_dataplane"))
    status = status_pb2.Status(code=code.value[0], message="why it is so", details=[info])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, "why it is so")


Start = Callable[..., str]
Open = Callable[[str], LivenessSession]


@pytest.fixture
def start() -> Iterator[Start]:
    """Serve sessions; the address."""
    servers = []

    def serve(sessions: Sessions, address: str = "127.0.0.1:0") -> str:
        server = grpc.server(ThreadPoolExecutor(max_workers=16))
        server.add_generic_rpc_handlers((handlers(sessions),))
        port = server.add_insecure_port(address)
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(0).wait()


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def address(start: Start, sessions: Sessions) -> str:
    return start(sessions)


@pytest.fixture
def liveness() -> Iterator[Open]:
    """A client's session with a server; closed at the end."""
    opened: list[LivenessSession] = []

    def new(address: str) -> LivenessSession:
        opened.append(LivenessSession(address, ClientOptions(session_grace_s=GRACE_S, client_name="trainer-0")))
        return opened[-1]

    yield new
    for session in opened:
        session.close().result(200)
    assert [thread.name for thread in threading.enumerate() if thread.name == "dataplane-session"] == []


@pytest.fixture
def session(liveness: Open, address: str) -> LivenessSession:
    """That of a client with the server."""
    return liveness(address)


def opened(session: LivenessSession, stale: str = "", timeout_s: float = 20.0) -> str:
    return session.open_session(stale, Deadline(timeout_s)).result(200)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_no_session_is_opened_until_one_is_wanted_and_then_it_beats(
    session: LivenessSession, sessions: Sessions
) -> None:
    assert session.session_id == ""
    wanted = [session.open_session("", Deadline(20.0)) for _ in range(20)]
    assert {future.result(200) for future in wanted} == {session.session_id} == {"s1"}
    eventually(lambda: sessions.beats >= 8)
    assert [(opening.session_id, opening.client_name) for opening in sessions.opened] == [("", "trainer-0")]
    assert sessions.opened[0].grace.ToNanoseconds() == GRACE_S * 1e9


def test_a_server_that_comes_up_later_is_waited_for(start: Start, liveness: Open) -> None:
    target = f"127.0.0.1:{free_port()}"
    session = liveness(target)
    wanted = [session.open_session("", Deadline(20.0)) for _ in range(3)]
    start(Sessions(), target)
    assert [future.result(200) for future in wanted] == ["s1"] * 3


def test_all_who_wait_while_a_server_drains_get_the_session_of_the_next(
    session: LivenessSession, sessions: Sessions
) -> None:
    sessions.refusal = (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    wanted = [session.open_session("", Deadline(60.0)) for _ in range(3)]
    tries = len(sessions.opened)
    eventually(lambda: len(sessions.opened) >= tries + 5)  # by then all three wait for the same attempt
    sessions.refusal = None
    assert [future.result(60) for future in wanted] == ["s1"] * 3


def test_a_session_that_the_server_refuses_is_refused_at_once(session: LivenessSession, sessions: Sessions) -> None:
    sessions.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    with pytest.raises(OutOfSpaceError, match="why it is so"):
        opened(session)
    assert len(sessions.opened) == 1
    sessions.refusal = None
    assert opened(session) == "s1"


def test_a_session_can_be_opened_once_a_thread_can_be_started(
    session: LivenessSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            session.open_session("", Deadline(20.0))
    assert opened(session) == "s1"


def no_thread(_: threading.Thread) -> None:
    """As Python's, where the system has no thread left."""
    raise RuntimeError("can't start new thread")


# -- staying alive -----------------------------------------------------------------------------------------------------


def test_a_stream_that_breaks_is_opened_anew_for_the_same_session(session: LivenessSession, sessions: Sessions) -> None:
    opened(session)
    sessions.break_streams()
    eventually(lambda: len(sessions.opened) == 2)
    assert sessions.opened[1].session_id == "s1"
    before = sessions.beats
    eventually(lambda: sessions.beats > before)
    assert opened(session) == "s1"


@pytest.mark.parametrize("breaks", [False, True], ids=["expired", "on a server that was started anew"])
def test_a_session_that_has_died_is_gone_and_none_is_opened_until_one_is_wanted(
    session: LivenessSession, sessions: Sessions, breaks: bool
) -> None:
    opened(session)
    sessions.living.clear()
    if breaks:
        sessions.break_streams()
    eventually(lambda: session.session_id == "")
    assert [opening.session_id for opening in sessions.opened] == ["", "s1"][: 1 + breaks]
    assert opened(session) == "s2"


def test_a_session_that_a_call_found_dead_is_replaced(session: LivenessSession) -> None:
    assert [opened(session, stale) for stale in ("", "s1", "s1")] == ["s1", "s2", "s2"]


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "never wanted"])
def test_closing_tells_the_server_of_a_session_and_ends_the_thread(
    session: LivenessSession, sessions: Sessions, wanted: bool
) -> None:
    if wanted:
        opened(session)
    session.close().result(200)
    assert (len(sessions.opened), sessions.closed) == ((1, ["s1"]) if wanted else (0, []))
    with pytest.raises(ClosedError):
        opened(session)
    session.close().result(200)


def test_whoever_waits_for_a_session_learns_that_it_was_closed(session: LivenessSession, sessions: Sessions) -> None:
    sessions.silent = threading.Event()
    wanted = session.open_session("", Deadline(20.0))
    eventually(lambda: sessions.opened)
    session.close().result(200)
    with pytest.raises(DataPlaneError):
        wanted.result(200)
    sessions.silent.set()


def test_a_session_that_nobody_holds_any_more_is_closed(address: str, sessions: Sessions) -> None:
    session = LivenessSession(address, ClientOptions())
    opened(session)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    eventually(lambda: sessions.closed == ["s1"])
    eventually(lambda: all(thread.name != "dataplane-session" for thread in threading.enumerate()))


OPENED = """
import os, sys
from dataplane_client._connect.session import LivenessSession
from dataplane_client._connect.deadline import Deadline
from dataplane_client.options import ClientOptions
session = LivenessSession(sys.argv[1], ClientOptions())
"""
ENDS_WITHOUT_CLOSING = (
    OPENED
    + """
assert session.open_session('', Deadline(20.0)).result(200) == "s1"
"""
)
# It starts none of gRPC's threads before it forks, so that the child can.
FORKS = (
    OPENED
    + """
session._thread().session_id = 'of the parent'
child = os.fork()
if child == 0:
    found = session.session_id, session.open_session('', Deadline(20.0)).result(200)
    session.close().result(200)
    os._exit(0 if found == ('', 's1') else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code or session.session_id != 'of the parent')
"""
)


@pytest.mark.parametrize("code", [ENDS_WITHOUT_CLOSING, FORKS], ids=["ends without closing", "forks"])
def test_each_process_has_a_session_and_gives_back_what_it_holds_when_it_ends(
    address: str, sessions: Sessions, code: str
) -> None:
    done = commands.run([sys.executable, "-c", code, address])
    assert (done.returncode, done.stderr) == (0, "")
    assert sessions.closed == ["s1"]


# -- taking back -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_taken_back_now_is_taken_back_later(session: LivenessSession, sessions: Sessions) -> None:
    opened(session)
    sessions.release_refusals = 3
    session.undo(release("first"))
    session.undo(release("second"))
    eventually(lambda: len(sessions.released) == 5)
    assert [request.claim_request_id for request in sessions.released] == ["first"] * 4 + ["second"]


def test_all_that_cannot_be_taken_back_now_is_taken_back_later_however_much_it_is(
    session: LivenessSession, sessions: Sessions
) -> None:
    opened(session)
    sessions.release_refusals, undone = 5, list[None]()
    session.undo(release("first"))
    for _ in range(1200):  # they come while the server refuses the first
        session.undo(lambda *_: undone.append(None))
    eventually(lambda: len(undone) == 1200)


def test_what_is_to_be_taken_back_waits_for_a_session_that_is_asked_for(
    session: LivenessSession, sessions: Sessions
) -> None:
    """As the claim of an adoption that is cancelled before the server opens the client's first session."""
    sessions.refusal = (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    wanted = session.open_session("", Deadline(200.0))
    session.undo(release("first"))
    eventually(lambda: len(sessions.opened) >= 3)
    sessions.refusal = None
    wanted.result(200)
    eventually(lambda: sessions.released)


def test_what_is_to_be_taken_back_ends_with_the_session(session: LivenessSession, sessions: Sessions) -> None:
    opened(session)
    sessions.release_refusals = 1_000_000
    session.undo(release("first"))
    eventually(lambda: sessions.released)
    sessions.living.clear()
    eventually(lambda: session.session_id == "")
    sessions.release_refusals = 0
    tries = len(sessions.released)
    opened(session)
    before = sessions.beats
    eventually(lambda: sessions.beats >= before + 3)
    assert len(sessions.released) == tries


def release(claim_request_id: str) -> Callable[[Any, float], object]:
    request = pb.ReleaseClaimRequest(request_id="r", claim_request_id=claim_request_id)
    return lambda stub, timeout_s: stub.ReleaseClaim(request, timeout=timeout_s)
