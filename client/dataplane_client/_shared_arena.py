"""The server's arena, mapped into a client on the server's host, and the handles on its bytes.

An attachment begins with a connection to the server's local socket, which delivers the arena's descriptors. It ends
when that connection closes: with the process, or when the last reference to the attachment is gone. Until then the
server keeps every lease and reservation that has not been released. So code that uses the memory must keep a reference
to the SharedArena; views that users get do.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from dataplane_client._arrays import ByteArray
from dataplane_client._local_protocol import request_frame, response_head
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX, HEAD

ATTACH_TIMEOUT_S = 2.0
_HANDLES_PER_FRAME = 1024


class SharedArena:
    """An attachment. Raises OSError when there is no such socket, or it belongs to another server than the nonce."""

    def __init__(self, address: str, nonce: bytes) -> None:
        self.address = address
        self._pid = os.getpid()
        self._handles = itertools.count(1)
        self._released: deque[int] = deque()
        self._unsent = bytearray()  # frames not fully sent yet; protected by _sending
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._lifeline, self._descriptors)
        self._lifeline.settimeout(ATTACH_TIMEOUT_S)
        self._lifeline.connect(address)
        response = self._attach()
        self._lifeline.setblocking(False)
        self.token = response.session
        self.traces = response.traces  # whether requests may carry a trace context
        self._size = response.arena_bytes
        self.readable: ByteArray = np.frombuffer(self._map(self._descriptors[0], mmap.PROT_READ), np.uint8)
        found = self.readable[response.nonce_offset : response.nonce_offset + len(nonce)].tobytes()
        if found != nonce or not nonce:
            raise ConnectionError("the socket's memory is not that of the server: its nonce differs")
        self._writable: ByteArray | None = None

    def _attach(self) -> pb.AttachResponse:
        self._lifeline.sendall(request_frame(pb.LOCAL_METHOD_ATTACH, pb.AttachRequest()))
        data, descriptors, _, _ = socket.recv_fds(self._lifeline, 4096, 2)
        self._descriptors.extend(descriptors)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
        if not data and self.address[0] != "\0":  # there a server closes the connection of another user's process
            raise ConnectionResetError("the server ended before it answered")
        if len(descriptors) != 2 or len(data) < HEAD.size:
            raise ConnectionError("the socket's server shares no memory")
        size, outcome = response_head(data[: HEAD.size])
        if outcome != pb.LOCAL_OUTCOME_UNSPECIFIED or len(data) != HEAD.size + size:
            raise ConnectionError("the socket's server shares no memory")
        return pb.AttachResponse.FromString(data[HEAD.size :])

    @property
    def writable(self) -> ByteArray:
        """The whole arena, writable. Write only to bytes that the server has reserved for this client."""
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

    def private_view(self, start: int, end: int) -> ByteArray:
        """Bytes start to end of the arena in a mapping of their own. Writing to them changes this view only.

        Raises ValueError for bytes outside the arena.
        """
        if not 0 <= start <= end <= self._size:
            raise ValueError(f"bytes {start} to {end} are outside the arena of {self._size} bytes")
        first = start - start % mmap.ALLOCATIONGRANULARITY
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE
        mapping = mmap.mmap(self._descriptors[0], end - first, flags=flags, prot=rights, offset=first)
        return np.frombuffer(mapping, np.uint8, end - start, start - first)

    # -- handles -------------------------------------------------------------------------------------------------------

    def next_handle(self) -> int:
        """A new handle, for a lease or a reservation."""
        return next(self._handles)

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

    def _flush(self) -> bool:
        """Send the next frame of released handles. Returns False if the socket is full."""
        handles = [self._released.popleft() for _ in range(min(len(self._released), _HANDLES_PER_FRAME))]
        if handles:
            self._unsent += request_frame(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=handles))
        try:
            sent = self._lifeline.send(self._unsent)
        except BlockingIOError:
            return False
        except OSError:  # the server is gone, and with it all handles
            self._unsent.clear()
            return True
        del self._unsent[:sent]
        return not self._unsent


def local_addresses(target: str, shared: plane_pb.SharedMemory) -> list[str]:
    """The addresses at which a server's local socket may be, the likeliest first: beside the socket file that the
    client connects to (the server may know it by another path), and the abstract socket.
    """
    beside = [target.removeprefix("unix://") + FILE_SUFFIX] if target.startswith("unix:") else []
    return [*beside, f"\0{shared.abstract_socket}"]


def attach(target: str, shared: plane_pb.SharedMemory) -> SharedArena:
    """Attach to the memory of the server at target. Raises OSError, which says what failed at each address;
    ConnectionResetError if the server ended meanwhile.
    """
    failures, kind = [], OSError
    for address in local_addresses(target, shared):
        try:
            return SharedArena(address, shared.nonce)
        except OSError as error:  # noqa: PERF203  # there are two
            failures.append(f"{address.replace(chr(0), '@')}: {error}")
            kind = ConnectionResetError if isinstance(error, ConnectionResetError) else kind
    raise kind("; ".join(failures))


def _close(lifeline: socket.socket, descriptors: Sequence[int]) -> None:
    lifeline.close()
    for descriptor in descriptors:
        os.close(descriptor)
