"""Calls to a server: deadlines, retries, and the choice of how values travel. Carries messages, not tensors.

Every call has a deadline. While the server cannot be reached (UNAVAILABLE), or has too many calls, a call is repeated
with growing pauses until its deadline, always with the same request_id, so that the server applies it once. Observers
see one call, whatever its attempts. Fewer calls begin while the server has too many (`_connect.pacing`).

Values go through memory that the server shares if the client can prove that it is on the server's host: it attaches to
the server's local socket, and gets the memory that the server named over gRPC. Otherwise values go to the server's
direct port, if it has one, else over gRPC. When the better way breaks, as when the server is restarted, the next
attempt looks for one again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import grpc

from dataplane_client._connect.connection_errors import MAY_DIFFER_IN_TLS
from dataplane_client._connect.deadline import ANSWER_MARGIN_S, Deadline, backoff_pauses, checked_timeout, unanswered
from dataplane_client._connect.error_table import translated
from dataplane_client._connect.locator import NotSharedError, RefusedError, locator_of
from dataplane_client._connect.log import log_event
from dataplane_client._connect.options import ClientOptions, TransportChoice, TransportName
from dataplane_client._connect.pacing import Pacing, Turn
from dataplane_client._connect.tls_probe import PROBE_S, SERVER_SPEAKS_TLS, speaks_tls
from dataplane_client._memory.direct_port import DirectAddress
from dataplane_client._memory.placement import Destination, PlacedColumn
from dataplane_client._memory.shared_arena import attach
from dataplane_client._requests.known_partitions import KnownPartitions
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._verbs._sync.carriers import ArenaCarrier, LineCarrier
from dataplane_client._verbs._sync.frame_calls import FrameCalls
from dataplane_client._verbs._sync.grpc_calls import GrpcCalls
from dataplane_client._verbs._sync.runtime import CALL_ENDED, NoThreadError, result_of, run_in_thread, sleep
from dataplane_client.errors import ClosedError, DeadlineError, OutOfSpaceError, PreconditionError, UnavailableError
from dataplane_client.observe._call import Call
from rl_dataplane.v1 import data_plane_pb2 as pb

_ATTACH_TRIES = 10
_REFUSALS = 3
_CONNECT_S = 2.0
_BROKEN = {grpc.StatusCode.UNKNOWN: "Stream removed", grpc.StatusCode.INTERNAL: "Internal error from Core"}
"""gRPC's texts for a stream that ended while it was read or written, in place of the status with which it ended."""
Response = TypeVar("Response")


Calls = GrpcCalls | FrameCalls
"""One way in which calls and their values travel. A call ends within timeout_s; errors that `_repeat` retries mean that
the server has not answered. traceparent: sent with the call, "" for none.
"""
Attempt = Callable[[Calls, float], Response]


class Transport:
    """The connections to one server."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self.target = target
        self.options = options
        self.closed = False
        self._locator = locator_of(target)
        self._locator.doubt()  # other clients may have found it long ago
        self._opened_grpc: GrpcCalls | None = None
        self._former_grpc = weakref.WeakSet[GrpcCalls]()  # each is closed when its last call ends
        self._local: FrameCalls | None = None
        self._is_chosen = options.transport == "grpc"
        self._pacing = Pacing()
        self.known = KnownPartitions()
        self._tries_left = 0  # to attach again to a server that has shared its memory before
        self._refused_by: bytes | None = None  # the run of the server to which it could not be attached
        self._refusals_left = _REFUSALS  # by servers at a socket or port that are not the one behind the gRPC address
        self._logged_reachable = True
        self._server_speaks_tls: bool | None = None  # not asked for yet
        self._pid = os.getpid()
        self._lock = threading.Lock()  # for changes of the attributes above; never held across a call

    @property
    def _grpc(self) -> GrpcCalls:
        """Opened by the first call: an asynchronous channel belongs to the event loop that opens it. Once certificates
        are replaced, or the server has another address, another one is opened, and the calls of the former go on.
        """
        opened, target = self._opened_grpc, self._locator.place.grpc_target
        if opened is None or opened.target != target or opened.secured.is_outdated():
            with self._lock:
                if self._opened_grpc is opened:
                    options = self.options
                    self._opened_grpc = GrpcCalls(target, options.chunk_bytes, options.credentials)
                    if opened is not None:
                        self._former_grpc.add(opened)
        assert self._opened_grpc is not None  # noqa: S101  # for the type checker
        return self._opened_grpc

    @property
    def name(self) -> TransportName:
        """How values travel now. Opens nothing."""
        local = self._local
        return "grpc" if local is None else local.transport

    def deadline(self, timeout_s: float | None) -> Deadline:
        """timeout_s: None for that of the client."""
        return Deadline(self.options.timeout_s if timeout_s is None else checked_timeout(timeout_s))

    def close(self) -> None:
        """Close all connections; calls under way end with an error. Does nothing if closed."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._lock:
            was_closed, self.closed, local, self._local = self.closed, True, self._local, None
        if local is not None:
            local.close()
        if self._opened_grpc is not None and not was_closed:
            for calls in (*self._former_grpc, self._opened_grpc):
                calls.close()

    def unary(self, verb: str, request: Any, timeout_s: float | None, *, waits: bool = False) -> Any:
        """Call a method with one request. waits: set the request's wait_timeout from the deadline, just before it is
        sent: without one, it never was.
        """
        margin_s = ANSWER_MARGIN_S if waits else 0.0

        def attempt(calls: Calls, left_s: float) -> Any:
            if waits:
                request.wait_timeout.FromNanoseconds(int(left_s * 1e9))
            return calls.unary(verb, request, left_s + margin_s, call.traceparent)

        call = Call(verb, self.target, request)
        return self._make(call, attempt, self.deadline(timeout_s), margin_s)

    def write(self, write: RowWrite, deadline: Deadline) -> Any:
        """Put or commit columns."""

        def attempt(calls: Calls, left_s: float) -> Any:
            write.header.wait_timeout.FromNanoseconds(int(left_s * 1e9))
            carrier = calls.carrier if isinstance(calls, FrameCalls) else None
            if carrier is not None and write.size_bytes > carrier.inline_bytes and not carrier.can_write:
                calls = self._grpc
                call.transport = calls.transport
            return calls.write(write, left_s + ANSWER_MARGIN_S, call.traceparent)

        call = Call(write.verb, self.target, write.header)
        call.sent_bytes = write.size_bytes
        return self._make(call, attempt, deadline, ANSWER_MARGIN_S)

    def read(
        self, request: pb.ReadColumnsRequest, destination: Destination, timeout_s: float | None
    ) -> list[PlacedColumn]:
        """Read columns."""
        request.caller = self.options.caller
        request.checks_digests = True

        def attempt(calls: Calls, left_s: float) -> list[PlacedColumn]:
            try:
                columns = calls.read(request, destination, left_s, call.traceparent)
            except OutOfSpaceError as refusal:
                if calls is self._grpc or refusal.reason != "LIMIT_REACHED":
                    raise
                call.transport = "grpc"  # there are more runs than one local message can name
                columns = self._grpc.read(request, destination, left_s, call.traceparent)
            if call.is_observed:
                call.received_bytes = sum(column.layout.size_of(len(request.sample_ids)) for column in columns)
            return columns

        call = Call("ReadColumns", self.target, request)
        return self._make(call, attempt, self.deadline(timeout_s))

    def _make(self, call: Call, attempt: Attempt[Response], deadline: Deadline, margin_s: float = 0.0) -> Response:
        """Make a call: in its turn, observed, repeated until its deadline. margin_s: how much later it may end."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with call:
            turn = self._pacing.enter(call.verb, deadline)
            if turn is not None:
                self._wait_for(turn, call.verb, deadline)
            began, seconds = time.monotonic(), None
            try:
                response = self._repeat(call, attempt, deadline, margin_s)
                seconds = time.monotonic() - began
            finally:
                self._pacing.leave(call.verb, seconds)
            call.response = response
            return response

    def _leave_to_parent(self) -> None:
        """In a forked child, begin anew: local connections, handles of their session, and calls under way are the
        parent's.
        """
        self._local, self._is_chosen = None, self.options.transport == "grpc"
        self._lock, self._pacing, self._pid = threading.Lock(), Pacing(), os.getpid()

    def _wait_for(self, turn: Turn, verb: str, deadline: Deadline) -> None:
        begins = False
        try:
            while not turn.done() and deadline.left_s:
                with contextlib.suppress(TimeoutError):
                    result_of(turn, min(deadline.left_s, turn.look_again_s))
                self._check_open(verb)
                self._pacing.look_again(verb)
            begins = turn.done() and turn.result()
        finally:
            if not begins:
                self._pacing.give_up(verb, turn)
        if not begins:
            raise UnavailableError(
                f"{verb} at {self.target}: the server has more calls than it can take, and this one waited behind "
                "others of this client until it was too late to begin"
            )

    def _repeat(self, call: Call, attempt: Attempt[Response], deadline: Deadline, margin_s: float) -> Response:
        verb = call.verb
        pauses: Iterator[float] | None = None
        error: UnavailableError | None = None
        while True:
            calls: Calls | None = None
            try:
                calls = self._choose_calls(verb, deadline, margin_s)
                call.transport = calls.transport
                response = attempt(calls, deadline.left_s)
            except DeadlineError as late:  # of a local call
                raise (unanswered(late, error) if type(late) is DeadlineError else late) from None
            except (UnavailableError, *CALL_ENDED) as ended:
                self._check_open(verb)
                error, pauses = self._retryable_error(ended, verb, error), pauses or backoff_pauses(self.options, verb)
                pause_s = next(pauses)
                if _is_refusal(ended):
                    self._pacing.refused(verb)
                    pause_s += error.retry_after_s or 0.0
                else:
                    self._forget_local(calls)
                    self._locator.doubt()
                    error = self._with_side_of_tls(verb, error, deadline.left_s)
                if deadline.left_s <= pause_s:
                    raise error from None
                self._log_unreachable(verb, error)
                call.retried(error)
            else:
                if not self._logged_reachable:
                    self._log_reachable()
                error = None  # it holds this frame, and so the memory of a server that is gone
                return response
            sleep(pause_s)

    def _with_side_of_tls(self, verb: str, error: UnavailableError, left_s: float) -> UnavailableError:
        """Says it if the server alone speaks TLS. A handshake finds that, the first time that a connection breaks."""
        if MAY_DIFFER_IN_TLS not in error.message or self._grpc.secured.encrypts:
            return error
        if self._server_speaks_tls is None:
            probe = partial(speaks_tls, self._grpc.target, max(0.001, min(left_s, PROBE_S)))
            with contextlib.suppress(NoThreadError):
                self._server_speaks_tls = run_in_thread(probe, timeout_s=left_s, to_its_end=False)
        if not self._server_speaks_tls:
            return error
        return UnavailableError(f"{verb} at {self.target}: {SERVER_SPEAKS_TLS}", details=error.details)

    def _log_unreachable(self, verb: str, error: UnavailableError) -> None:
        log_event(logging.DEBUG, "call_repeated", server=self.target, verb=verb, error=error)
        if self._logged_reachable:
            self._logged_reachable = False
            log_event(logging.INFO, "server_unreachable", server=self.target, error=error)

    def _log_reachable(self) -> None:
        self._logged_reachable = True
        log_event(logging.INFO, "server_reached", server=self.target)

    def _retryable_error(self, ended: BaseException, verb: str, previous: UnavailableError | None) -> UnavailableError:
        """The error to retry on; raises if the call must not be retried.

        previous: the error of the attempt before, which a DEADLINE_EXCEEDED that only reflects the time left must not
        hide.
        """
        if isinstance(ended, UnavailableError):
            return ended
        if not isinstance(ended, grpc.RpcError):
            raise ended
        error = translated(ended, verb, self.target)
        if ended.code() in _BROKEN and _BROKEN[ended.code()] in error.details.get("grpc", ""):
            return UnavailableError(error.message, details=error.details)
        if not isinstance(error, UnavailableError):
            raise (unanswered(error, previous) if type(error) is DeadlineError else error) from None
        return error

    def _check_open(self, verb: str) -> None:
        if self.closed:
            raise ClosedError(f"{verb} at {self.target}: the client was closed") from None

    # -- the choice of how values travel -------------------------------------------------------------------------------

    def _choose_calls(self, verb: str, deadline: Deadline, margin_s: float) -> Calls:
        if self.closed or not self._is_chosen or self._locator.is_doubted:
            self._check_open(verb)
            if self._locator.is_doubted:
                self._locate(deadline)
            if not self._is_chosen:
                self._attach(deadline.left_s + margin_s)
            self._check_open(verb)
        return self._local or self._grpc

    def _locate(self, deadline: Deadline) -> None:
        """Find where the server is now. There it may share memory that it did not share before."""
        try:
            result_of(self._locator.find(), deadline.left_s)
        except TimeoutError:
            raise UnavailableError(self._locator.no_answer) from None
        with self._lock:
            self._is_chosen = self._local is not None or self.options.transport == "grpc"

    def _attach(self, timeout_s: float) -> None:
        """Find a better way than gRPC, if there is one. Calls that may wait at the server have the margin of their
        answer for this as well; otherwise those with very short waits would never reach a restarted server that is slow
        to answer.
        """
        choice, deadline = self.options.transport, Deadline(timeout_s)
        status = self._grpc.unary("GetServerStatus", pb.GetServerStatusRequest(), deadline.left_s)
        found: FrameCalls | None = None
        if choice != "direct":
            found = self._attached(status, deadline)
        if found is None and choice != "shm":
            found = self._direct(status, deadline.left_s if choice == "direct" else min(deadline.left_s, _CONNECT_S))
        if found is None:
            self._is_chosen = True
        else:
            self._use_local(found)

    def _attached(self, status: pb.GetServerStatusResponse, deadline: Deadline) -> FrameCalls | None:
        """Calls through the server's memory; None if it cannot be shared, and need not be."""
        place, token = self._locator.place, self._grpc.secured.token
        try:
            arena = run_in_thread(
                lambda: attach(place, status, token, deadline.left_s), timeout_s=deadline.left_s, to_its_end=False
            )
            local = FrameCalls(self.target, ArenaCarrier(arena, status.caller_proof))
            if arena.calls_at is not None:
                local.reach(min(deadline.left_s, _CONNECT_S))
            return local
        except OSError as error:
            why, run = str(error) or "timed out", status.shared_memory.nonce  # asyncio's TimeoutError has no words
            message = f"{self.target}: its memory cannot be shared: {why}"
            silent = isinstance(error, (ConnectionRefusedError, TimeoutError)) and not isinstance(error, NoThreadError)
            if silent and run != self._refused_by:
                self._refused_by = run
                raise UnavailableError(message) from None  # it may have ended, or stalled, since it answered
            self._check_failed(message, error, "shm")
            log_event(logging.INFO, "memory_not_shared", server=self.target, why=why)
            return None

    def _direct(self, status: pb.GetServerStatusResponse, timeout_s: float) -> FrameCalls | None:
        """Calls to the server's direct port; None if it has none, or it cannot be used, and need not be."""
        try:
            address = DirectAddress.of(self._locator.place, status)
            if not self._grpc.secured.is_plain:
                raise NotSharedError("it takes no credentials, and this client has some")
            direct = FrameCalls(self.target, LineCarrier(address))
            direct.reach(timeout_s)
            return direct
        except OSError as error:
            why = str(error) or "timed out"  # asyncio's TimeoutError has no words
            self._check_failed(f"{self.target}: its direct port cannot be used: {why}", error, "direct")
            if status.HasField("direct_port"):
                log_event(logging.INFO, "direct_port_not_used", server=self.target, why=error)
            return None

    def _check_failed(self, message: str, error: OSError, way: TransportChoice) -> None:
        """Raises if another way has to be tried again, or was asked for."""
        ended = isinstance(error, NoThreadError) or (way == "shm" and isinstance(error, ConnectionResetError))
        if isinstance(error, RefusedError) and self._refusals_left:
            self._refusals_left -= 1
            ended = True
        if ended or (self._tries_left and not isinstance(error, NotSharedError)):
            self._tries_left -= not ended
            raise UnavailableError(message) from None  # the server is about to be replaced by the next one
        if self.options.transport == way:
            raise PreconditionError(message) from None

    def _use_local(self, local: FrameCalls) -> None:
        """Send calls this way from now on, unless another call has found one meanwhile, or the client was closed."""
        with self._lock:
            is_used = self._local is None and not self.closed
            if is_used:
                self._local, self._is_chosen = local, True
                self._tries_left, self._refusals_left = _ATTACH_TRIES, _REFUSALS
        if not is_used:
            local.close()

    def _forget_local(self, broken: Calls | None) -> None:
        """Stop using the local calls if they are what broke; the next call attaches again. They are not closed: a
        draining server still answers other calls that it has accepted. The last of these drops them.
        """
        with self._lock:
            if self._local is not None and self._local is broken:
                self._local, self._is_chosen = None, False


def _is_refusal(ended: BaseException) -> bool:
    """Whether the server ended a call because it has too many. gRPC does so before the server knows of the call."""
    if isinstance(ended, UnavailableError):
        return ended.reason == "OVERLOADED"
    return isinstance(ended, grpc.RpcError) and ended.code() is grpc.StatusCode.CANCELLED
