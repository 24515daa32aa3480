"""Calls to a server: deadlines, retries, and the choice of how values travel. Messages go in and come out; no tensors.

Every call has a deadline. While the server cannot be reached (UNAVAILABLE) a call is repeated with growing pauses until
its deadline, always with the same request_id, so that the server applies it once. Whoever observes calls hears of
each here, as one call whatever its attempts.

Values go through memory that the server shares wherever the client can prove that it is there: it attaches to the
server's local socket and finds the server's nonce in the memory. Else they go over gRPC, which is always there. A
session that breaks, as when the server is started anew, is opened anew with the next attempt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import grpc

from dataplane_client._deadline import ANSWER_MARGIN_S, Deadline, backoff_pauses
from dataplane_client._error_table import translated
from dataplane_client._log import log_event
from dataplane_client._placement import Destination, PlacedColumn
from dataplane_client._shared_arena import attach
from dataplane_client._sync.grpc_calls import GrpcCalls
from dataplane_client._sync.local_calls import LocalCalls
from dataplane_client._sync.runtime import CALL_ENDED, apart, sleep
from dataplane_client.columns_layout import WireColumn
from dataplane_client.errors import ClosedError, DeadlineError, OutOfSpaceError, PreconditionError, UnavailableError
from dataplane_client.observe._call import UnobservedCall, begun
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb

_TRIES = 10
Response = TypeVar("Response")
Calls = GrpcCalls | LocalCalls


class Transport:
    """The ways to one server."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self.target = target
        self.options = options
        self.closed = False
        self._grpc = GrpcCalls(target, options.chunk_bytes)
        self._local: LocalCalls | None = None
        self._settled = options.transport == "grpc"
        self._tries_left = 0  # to find again the memory of a server that had shared it
        self._reached = True  # as far as the log has told
        self._changing = threading.Lock()  # never held across a call

    @property
    def name(self) -> Literal["shm", "grpc"]:
        """How values travel now."""
        return "grpc" if self._local is None else "shm"

    def close(self) -> None:
        """Close every way; calls under way end with an error. Closing twice is fine."""
        with self._changing:
            was_closed, self.closed, local, self._local = self.closed, True, self._local, None
        if local is not None:
            local.close()
        if not was_closed:
            self._grpc.close()

    def unary(self, verb: str, request: Any, timeout_s: float | None, *, waits: bool = False) -> Any:
        """Call a method with one request. waits: the request has a wait_timeout, which is set from the deadline."""

        def attempt(calls: Calls, left_s: float) -> Any:
            if waits:
                request.wait_timeout.FromNanoseconds(int(left_s * 1e9))
            return calls.unary(verb, request, left_s + (ANSWER_MARGIN_S if waits else 0.0), call.traceparent)

        with begun(verb, self.target, request) as call:
            return call.answered(self._attempts(call, verb, attempt, timeout_s))

    def write(self, verb: str, header: Any, columns: Sequence[WireColumn], timeout_s: float | None) -> Any:
        """Put or commit columns."""

        def attempt(calls: Calls, left_s: float) -> Any:
            header.wait_timeout.FromNanoseconds(int(left_s * 1e9))
            return calls.write(verb, header, columns, left_s + ANSWER_MARGIN_S, call.traceparent)

        with begun(verb, self.target, header) as call:
            call.writes(columns)
            return call.answered(self._attempts(call, verb, attempt, timeout_s))

    def read(
        self, request: pb.ReadColumnsRequest, destination: Destination, timeout_s: float | None
    ) -> list[PlacedColumn]:
        """Read columns."""

        def attempt(calls: Calls, left_s: float) -> list[PlacedColumn]:
            try:
                return calls.read(request, destination, left_s, call.traceparent)
            except OutOfSpaceError as refusal:
                if calls is self._grpc or refusal.reason != "LIMIT_REACHED":
                    raise
            call.attempted("grpc")  # more runs than one message can name
            return self._grpc.read(request, destination, left_s, call.traceparent)

        with begun("ReadColumns", self.target, request) as call:
            columns = self._attempts(call, "ReadColumns", attempt, timeout_s)
            call.reads(columns, len(request.sample_ids))
            return columns

    def _attempts(
        self,
        call: UnobservedCall,
        verb: str,
        attempt: Callable[[Calls, float], Response],
        timeout_s: float | None,
    ) -> Response:
        deadline = Deadline(self.options.timeout_s if timeout_s is None else timeout_s)
        pauses = backoff_pauses(self.options)
        error: UnavailableError | None = None
        while True:
            self._check_open(verb)
            calls: Calls | None = None
            try:
                calls = self._calls(deadline)
                self._check_open(verb)
                call.attempted("grpc" if calls is self._grpc else "shm")
                response = attempt(calls, deadline.left_s)
            except (UnavailableError, *CALL_ENDED) as ended:
                self._check_open(verb)
                error = self._judged(ended, verb, error)
                self._leave(calls)
                pause_s = next(pauses)
                if deadline.left_s <= pause_s:
                    raise error from None
                self._tell_unreached(verb, error)
                call.retried(error)
            else:
                self._tell_reached()
                return response
            sleep(pause_s)

    def _tell_unreached(self, verb: str, error: UnavailableError) -> None:
        log_event(logging.DEBUG, "call_repeated", server=self.target, verb=verb, error=error)
        if self._reached:
            self._reached = False
            log_event(logging.INFO, "server_unreachable", server=self.target, error=error)

    def _tell_reached(self) -> None:
        if not self._reached:
            self._reached = True
            log_event(logging.INFO, "server_reached", server=self.target)

    def _judged(self, ended: BaseException, verb: str, before: UnavailableError | None) -> UnavailableError:
        """Why the call may be repeated; raises when it may not. before: what the attempt before this one met; it says
        more than that the little time that was left did not do either.
        """
        if isinstance(ended, UnavailableError):
            return ended
        if not isinstance(ended, grpc.RpcError):
            raise ended
        error = translated(ended, verb, self.target)
        if not isinstance(error, UnavailableError):
            raise (before if before is not None and type(error) is DeadlineError else error) from None
        return error

    def _check_open(self, verb: str) -> None:
        if self.closed:
            raise ClosedError(f"{verb} at {self.target}: the client was closed") from None

    # -- the way of values ---------------------------------------------------------------------------------------------

    def _calls(self, deadline: Deadline) -> Calls:
        if not self._settled:
            self._attach(deadline)
        return self._grpc if self._local is None else self._local

    def _attach(self, deadline: Deadline) -> None:
        status = self._grpc.unary("GetServerStatus", pb.GetServerStatusRequest(), deadline.left_s)
        try:
            if not status.HasField("shared_memory"):
                raise OSError("the server shares no memory")
            arena = apart(partial(attach, self.target, status.shared_memory))
        except OSError as error:
            message = f"{self.target}: its memory cannot be shared: {error}"
            if self._tries_left and status.HasField("shared_memory"):
                self._tries_left -= 1
                raise UnavailableError(message) from None  # this server is about to end, and the next one to begin
            if self.options.transport == "shm":
                raise PreconditionError(message) from None
            log_event(logging.INFO, "memory_not_shared", server=self.target, why=error)
            self._settled = True
        else:
            self._keep(LocalCalls(self.target, arena))

    def _keep(self, local: LocalCalls) -> None:
        """Use a session from now on, unless another call has opened one meanwhile, or the client was closed."""
        with self._changing:
            wanted = self._local is None and not self.closed
            if wanted:
                self._local, self._settled, self._tries_left = local, True, _TRIES
        if not wanted:
            local.close()

    def _leave(self, broken: Calls | None) -> None:
        """Use a session no more if it is the one that broke; the next call opens another. It is not closed: the server
        may be draining, and other calls that it has accepted are about to be answered. With the last of them it goes.
        """
        with self._changing:
            if self._local is not None and self._local is broken:
                self._local, self._settled = None, False
