"""Who calls over loopback, as the gate decides it for gRPC."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from dataplane_server.access.gate import Credentials, Gate
from dataplane_server.access.peers import AllowedPeers
from dataplane_server.access.roles import EVERYTHING
from dataplane_server.core.calls.refusal import Refusal

Line = tuple[socket.socket, socket.socket]


@pytest.fixture
def gate() -> Gate:
    users = AllowedPeers(frozenset(), frozenset())
    return Gate(None, lambda held_id: None, lambda session_id: None, lambda request: False, users=users)


@contextlib.contextmanager
def line(host: str = "127.0.0.1") -> Iterator[Line]:
    """Both ends of a connection: the caller's, then the server's."""
    with (
        socket.create_server((host, 0)) as listener,
        socket.create_connection(listener.getsockname()) as caller,
        listener.accept()[0] as accepted,
    ):
        yield caller, accepted


def call_over(line: Line) -> Credentials:
    return Credentials("ipv4:{}:{}".format(*line[0].getsockname()))


def assert_nobody(gate: Gate, call: Credentials) -> None:
    with pytest.raises(Refusal, match="own user"):
        gate.at_port(call)


def test_a_caller_on_another_host_is_nobody(gate: Gate) -> None:
    gate.grpc_listens("127.0.0.1", 1)
    assert_nobody(gate, Credentials("ipv4:192.0.2.1:4000"))


def test_a_caller_that_has_closed_is_nobody_before_and_after_the_server_has_seen_it(gate: Gate) -> None:
    with line() as ends:
        gate.grpc_listens(*ends[1].getsockname())
        call = call_over(ends)
        assert gate.at_port(call) is EVERYTHING
        for end in ends:
            end.close()
            assert_nobody(gate, call)


def test_a_call_that_can_have_come_in_by_two_addresses_is_nobodys(gate: Gate) -> None:
    with line("127.0.0.1") as first, line("127.0.0.2") as second:
        gate.grpc_listens(*first[1].getsockname())
        assert gate.at_port(call_over(first)) is EVERYTHING
        gate.grpc_listens(*second[1].getsockname())
        for ends in (first, second):
            assert_nobody(gate, call_over(ends))
