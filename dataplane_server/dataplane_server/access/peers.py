"""Who is at the other end of a Unix socket: the kernel noted it when that process connected, and no peer can change it.

Users and groups are numbers of this process's user namespace. All that it does not know have the number 65534
(/proc/sys/kernel/overflowuid), so neither run a server as that user nor allow it.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("=3I")  # process, user, group
_GROUP = struct.Struct("=I")
_SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)  # Linux 4.13; the module has no name for it
_MOST_GROUPS = 256  # of one answer: what getsockopt takes in Python


@dataclass(frozen=True, slots=True)
class Peer:
    """A process as it was when it connected. pid: 0 if it is of another PID namespace. groups: supplementary ones;
    empty if the kernel does not tell them, or if there are more than 256.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected to a Unix socket, or that listens there. A socket of another family has no peer that
    is allowed.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(packed)
    return Peer(pid, uid, gid, _groups_of(connection))


def _groups_of(connection: socket.socket) -> frozenset[int]:
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * _GROUP.size)
    except OSError:
        return frozenset()
    return frozenset(group for (group,) in _GROUP.iter_unpack(packed))


@dataclass(frozen=True, slots=True)
class AllowedPeers:
    """Users and groups that may connect, beside this process's own user and root. Both None: the rights of the socket
    file have decided.
    """

    users: frozenset[int] | None = None
    groups: frozenset[int] | None = None

    def allows(self, peer: Peer) -> bool:
        """Whether this peer may connect: by its user, or by one of its groups."""
        if peer.uid in (os.geteuid(), 0) or (self.users is None and self.groups is None):
            return True
        return peer.uid in (self.users or ()) or not (self.groups or frozenset()).isdisjoint({peer.gid, *peer.groups})


OWN_USER = AllowedPeers(frozenset(), frozenset())
"""This process's own user and root."""
