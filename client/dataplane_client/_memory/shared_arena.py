"""The server's arena, mapped into a client on the server's host, and the handles on its bytes.

An attachment begins with a connection to the server's local socket, which delivers the arena's descriptors. It ends
when that connection closes: with the process, or when the last reference to the attachment is gone. Until then the
server keeps every lease and reservation that has not been released. So code that uses the memory must keep a reference
to the SharedArena; views that users get do.

Before memory is mapped, the kernel has told who listens at the socket and which memory came over it. It must be the
memory that the server named over gRPC, of a user that this process trusts, and it must not be able to shrink: the next
access beyond its end would end this process by SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from dataplane_client._common.arrays import ByteArray
from dataplane_client._connect.deadline import Deadline
from dataplane_client._connect.locator import NodePlace, NotSharedError, Place, RefusedError
from dataplane_client._memory.local_protocol import CROWDED, INLINE_BYTES, request_frame
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX, HEAD, memory_nonce, response_head

ATTACH_TIMEOUT_S = 2.0
_HANDLES_PER_FRAME = 1024
NO_SOCKET = "the server shares its memory only beside its Unix socket; connect to that"
_CREDENTIALS = struct.Struct("=3I")  # process, user, group
_OTHERS_WRITE = 0o022
_NOBODY = (ConnectionRefusedError, FileNotFoundError)
"""Errors of a socket at which nothing listens."""
_MOST_VIEWS = 512
"""Private views that live at a time: each has a descriptor, and many systems allow a process 1,024."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python does not name: have pages as if they had been written to."""


class _View(mmap.mmap):
    """The private mapping of a read. unkept: where its values are in it, until a fork has copied them."""

    unkept: Sequence[tuple[int, int]] = ()


class SharedArena:
    """An attachment. Raises OSError when there is no such socket, it belongs to another server than the nonce, or the
    memory behind it is not to be trusted.

    inline_bytes: values of up to this many bytes travel in messages; none do in a cluster. calls_at: host and port
    where the session is joined for calls; None for the address. token: that calls over gRPC are sent with, or empty.
    timeout_s: how long the server may take to answer.
    """

    def __init__(self, address: str, nonce: bytes, token: str = "", timeout_s: float = ATTACH_TIMEOUT_S) -> None:
        self.address = address
        self._pid = os.getpid()
        self._released: deque[int] = deque()
        self._unsent = bytearray()  # frames not fully sent yet; protected by _sending
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._lifeline: list[int] = []  # a descriptor: a socket would warn at the interpreter's exit that it is open
        weakref.finalize(self, _close, self._descriptors, self._lifeline).atexit = False  # daemon threads may use it
        _arenas[id(self)] = self
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lifeline:
            lifeline.settimeout(max(timeout_s, 1e-3))
            server_user = _connect(lifeline, address)
            response = self._attach(lifeline, token)
            lifeline.setblocking(False)
            self.token = response.session
            self.traces = response.traces  # whether requests may carry a trace context
            self._size = response.arena_bytes
            self.calls_at = (response.calls_host, response.calls_port) if response.calls_port else None
            self.inline_bytes = 0 if response.bare_messages else INLINE_BYTES
            for descriptor in self._descriptors:
                if memory_nonce(response.proof, descriptor) != nonce:
                    raise RefusedError("the socket's memory is not that of the server")
            _check_size(self._descriptors[0], self._size, server_user)
            self.readable: ByteArray = np.frombuffer(self._map(self._descriptors[0], mmap.PROT_READ), np.uint8)
            self._lifeline.append(lifeline.detach())
        self._writable: ByteArray | None = None

    def _attach(self, lifeline: socket.socket, token: str) -> pb.AttachResponse:
        with contextlib.suppress(BrokenPipeError):  # the server has refused this process, and says so
            lifeline.sendall(request_frame(pb.LOCAL_METHOD_ATTACH, pb.AttachRequest(token=token)))
        data, descriptors, flags, _ = socket.recv_fds(lifeline, 4096, 2)
        self._descriptors.extend(descriptors)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not data:
            raise ConnectionResetError("the server ended before it answered")
        size, outcome = response_head(data[: HEAD.size].ljust(HEAD.size, b"\0"))
        body = data[HEAD.size :]
        with contextlib.suppress(DecodeError):
            if outcome == pb.LOCAL_OUTCOME_ERROR and len(body) == size:
                raise ConnectionError(status_pb2.Status.FromString(body).message)
            if outcome == pb.LOCAL_OUTCOME_UNSPECIFIED and len(body) == size and descriptors:
                return pb.AttachResponse.FromString(body)
        raise ConnectionError("the socket's server shares no memory")

    @property
    def can_write(self) -> bool:
        """Whether the server gave the right to write, and the memory can be mapped for that. It cannot be if its volume
        has failed, or beyond a limit of this process.
        """
        with contextlib.suppress(OSError):
            return len(self._descriptors) > 1 and len(self.writable) > 0
        return False

    @property
    def writable(self) -> ByteArray:
        """The whole arena, if `can_write`. Write only to bytes that the server has reserved for this client."""
        with self._lock:
            if self._writable is None:
                mapping = self._map(self._descriptors[1], mmap.PROT_READ | mmap.PROT_WRITE)
                self._writable = np.frombuffer(mapping, np.uint8)
            return self._writable

    def _map(self, descriptor: int, rights: int) -> mmap.mmap:
        mapping = mmap.mmap(descriptor, self._size, flags=mmap.MAP_SHARED, prot=rights)
        with contextlib.suppress(OSError):  # huge pages save faults where the system allows them
            mapping.madvise(mmap.MADV_HUGEPAGE)
        return mapping

    def private_view(self, start: int, end: int, spans: Sequence[tuple[int, int]]) -> ByteArray:
        """Bytes start to end of the arena in a mapping of their own. Writing to them changes this view only. spans:
        those of them that are read, which a fork copies.

        Raises ValueError for bytes outside the arena, and OSError if this process cannot have another mapping.
        """
        if not 0 <= start <= end <= self._size:
            raise ValueError(f"bytes {start} to {end} are outside the arena of {self._size} bytes")
        if len(_views) >= _MOST_VIEWS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        first = start - start % mmap.ALLOCATIONGRANULARITY
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE
        mapping = _View(self._descriptors[0], end - first, flags=flags, prot=rights, offset=first)
        mapping.unkept = [(at - first, after - first) for at, after in spans if at < after]
        _views[id(mapping)] = mapping
        return np.frombuffer(mapping, np.uint8, end - start, start - first)

    # -- handles -------------------------------------------------------------------------------------------------------

    def release(self, *handles: int) -> None:
        """Tell the server that leases or reservations are no longer used.

        Safe in finalizers: never blocks, and takes no lock that its own thread may hold. If the socket is full, the
        handles are queued and sent by the next call, which may itself release none. Does nothing in a forked child,
        because the handles are its parent's.
        """
        if os.getpid() != self._pid:
            return
        self._released.extend(handles)
        flushed = True
        while flushed and (self._released or self._unsent) and self._sending.acquire(blocking=False):
            try:
                flushed = self._flush()
            finally:
                self._sending.release()

    def leave(self) -> None:
        """Close this process's end of the session's line; the session ends with the last one of them."""
        _close(self._lifeline)

    def _flush(self) -> bool:
        """Send the next frame of released handles. Returns False if the socket is full."""
        handles = [self._released.popleft() for _ in range(min(len(self._released), _HANDLES_PER_FRAME))]
        if handles:
            self._unsent += request_frame(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=handles))
        try:
            sent = os.write(self._lifeline[0], self._unsent)
        except BlockingIOError:
            return False
        except (OSError, IndexError):  # the server is gone, or the session was left, and with it all handles
            self._unsent.clear()
            return True
        del self._unsent[:sent]
        return not self._unsent


def local_addresses(target: str, shared: plane_pb.SharedMemory) -> list[str]:
    """The addresses at which a server's local socket may be, the likeliest first: beside the socket file that the
    client connects to, beside the file that this is a link to, and the abstract socket, if the server has one.
    """
    path = target.removeprefix("unix://") if target.startswith("unix:") else ""
    beside = [file + FILE_SUFFIX for file in dict.fromkeys([path, os.path.realpath(path)])] if path else []
    return [*beside, f"\0{shared.abstract_socket}"] if shared.abstract_socket else beside


def attach(place: Place, status: plane_pb.GetServerStatusResponse, token: str, timeout_s: float) -> SharedArena:
    """Attach to the memory of the server with this status; in a cluster, to that of the node of this process. token:
    that calls over gRPC are sent with, or empty. Blocks for timeout_s seconds at most. Raises NotSharedError, or
    another OSError, which says what failed at each address: ConnectionResetError if the server ended meanwhile, the
    failure passes (CROWDED), or the time is over; ConnectionRefusedError if it may have ended, because nothing listens
    beside its socket file; TimeoutError if it may be stalled; RefusedError if another run of it, or another server, has
    the socket.
    """
    if isinstance(place, NodePlace):
        if not place.socket:
            raise OSError("there is none on this node of the Ray cluster")
        addresses, nonce, token = [place.socket], place.nonce, ""
    elif not status.HasField("shared_memory"):
        raise NotSharedError("the server shares no memory")
    else:
        addresses, nonce = local_addresses(place.grpc_target, status.shared_memory), status.shared_memory.nonce
    deadline, failures, kind = Deadline(timeout_s), [], OSError
    for address in addresses:
        try:
            return SharedArena(address, nonce, token, min(deadline.left_s, ATTACH_TIMEOUT_S))
        except OSError as error:  # noqa: PERF203  # there are at most three
            failures.append(f"{address.replace(chr(0), '@')}: {error}")
            if isinstance(error, ConnectionResetError) or error.errno in CROWDED or not deadline.left_s:
                kind = ConnectionResetError
            elif isinstance(error, (RefusedError, TimeoutError)) and kind is OSError:
                kind = type(error)
            elif isinstance(error, _NOBODY) and address[0] != "\0" and kind is OSError:
                kind = ConnectionRefusedError
    raise kind("; ".join(failures) or NO_SOCKET)


def _connect(lifeline: socket.socket, address: str) -> int:
    """Connect to a server's socket; the user that listens there. ConnectionError if this process does not trust it."""
    owner = None if address[0] == "\0" else Path(address).stat().st_uid
    lifeline.connect(address)
    packed = lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(packed)[1]
    if user not in (0, os.geteuid(), owner):
        others = f"its user ({os.geteuid()})" + ("" if owner is None else f" and the file's owner ({owner})")
        raise ConnectionError(f"user {user} listens there; this process trusts only root, {others}")
    return user


def _check_size(descriptor: int, size_bytes: int, user: int) -> None:
    """ConnectionError if memory of a server of this user is too short, or another user could shorten it."""
    found = os.fstat(descriptor)
    if found.st_size < size_bytes:
        raise ConnectionError(f"the memory has {found.st_size} bytes, less than the {size_bytes} that the server names")
    if _seals(descriptor) & fcntl.F_SEAL_SHRINK:
        return
    if not found.st_nlink:
        raise ConnectionError("the size of the server's memory is not sealed, so it could shrink under this process")
    if found.st_uid not in (0, user) or found.st_mode & _OTHERS_WRITE:
        rights = f"owner {found.st_uid}, mode {found.st_mode & 0o777:04o}"
        raise ConnectionError(f"other users than the server's ({user}) may cut its memory's file short: {rights}")


def _seals(descriptor: int) -> int:
    """Of a memory file; 0 for a file on a file system that knows no seals."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return 0


def _close(*descriptors: list[int]) -> None:
    for each in descriptors:
        while each:
            os.close(each.pop())


# -- forks -------------------------------------------------------------------------------------------------------------

_arenas: weakref.WeakValueDictionary[int, SharedArena] = weakref.WeakValueDictionary()
_views: weakref.WeakValueDictionary[int, _View] = weakref.WeakValueDictionary()
"""By their ids: all that live, to be found at a fork without a lock, which another thread might have then."""


def _keep_views() -> None:
    """Before a fork, copy the pages of viewed values, unless an earlier one has; all processes share the copies.
    Otherwise the child's views would change once the parent has dropped its own: the leases end then, and the server
    reuses the bytes. Linux before 5.14 cannot do this.
    """
    for view in _views.valuerefs():
        if (mapping := view()) is not None:
            with contextlib.suppress(OSError):
                for start, end in mapping.unkept:
                    begins = start - start % mmap.PAGESIZE
                    mapping.madvise(_POPULATE_WRITE, begins, end - begins)
                mapping.unkept = ()


def _leave_sessions() -> None:
    """In a forked child: the parent's sessions end with the parent, even if the child lives on."""
    for arena in _arenas.valuerefs():
        if (attached := arena()) is not None:
            attached.leave()


os.register_at_fork(before=_keep_views, after_in_child=_leave_sessions)
