"""Peers of Unix sockets, as the kernel tells who they are, and the rule who of them may connect."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from dataplane_server.access.peers import OWN_USER, AllowedPeers, Peer, peer_of

OWN = os.geteuid()
FULL = AllowedPeers(frozenset({2000}), frozenset({77}))
USERS = AllowedPeers(users=frozenset({2000}))
GROUPS = AllowedPeers(groups=frozenset({77}))
ANY = AllowedPeers()

# Drops its rights if it can, connects to NAME, and waits until the connection ends.
VISITOR = """
import os, socket
if os.geteuid() == 0:
    os.setgroups([7, 77])
    os.setresgid(2001, 2001, 2001)
    os.setresuid(2000, 2000, 2000)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(NAME)
    connection.recv(1)
"""


@pytest.mark.parametrize(
    ("allowed", "peer", "expected"),
    [
        (OWN_USER, Peer(1, OWN, 5), True),
        (OWN_USER, Peer(1, 0, 5), True),
        (OWN_USER, Peer(1, 2000, os.getegid()), False),
        (ANY, Peer(1, 2000, 2000), True),
        (USERS, Peer(1, OWN, 5), True),
        (USERS, Peer(1, 2000, 2000), True),
        (USERS, Peer(1, 2001, 2000, frozenset({2000})), False),
        (GROUPS, Peer(1, 0, 0), True),
        (GROUPS, Peer(1, 2000, 77), True),
        (GROUPS, Peer(1, 2000, 2000, frozenset({1, 77})), True),
        (GROUPS, Peer(1, 77, 2000), False),
        (FULL, Peer(1, 2000, 2000), True),
        (FULL, Peer(1, 3000, 3000, frozenset({77})), True),
        (FULL, Peer(1, 3000, 3000), False),
    ],
)
def test_a_peer_is_allowed_by_its_user_or_by_one_of_its_groups(
    allowed: AllowedPeers, peer: Peer, expected: bool
) -> None:
    assert allowed.allows(peer) is expected


def test_the_kernel_tells_who_connected() -> None:
    as_this = (OWN, os.getegid(), frozenset(os.getgroups()))
    expected = (2000, 2001, frozenset({7, 77})) if OWN == 0 else as_this
    name = f"\0peers-{os.getpid()}"  # the test's folder is closed to others
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        visitor = subprocess.Popen([sys.executable, "-c", VISITOR.replace("NAME", repr(name))])
        connection, _ = listener.accept()
        with connection:
            assert peer_of(connection) == Peer(visitor.pid, *expected)
    assert visitor.wait(200) == 0


def test_a_peer_over_tcp_is_not_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        assert not FULL.allows(peer_of(peer))
