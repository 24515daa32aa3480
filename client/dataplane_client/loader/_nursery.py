"""Where worker processes come from: one process that has imported everything and forks them.

Importing torch and the client takes seconds of a CPU in every process; a fork takes milliseconds, also for the worker
that replaces one that was killed. The trainer itself is never forked (its threads, its gRPC channels and its CUDA
context do not survive that), and its main module is not run again, as it would be by multiprocessing. The nursery has
one thread and no connection but the one to its owner, with whom it ends. One that died is begun anew when it is needed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.spawn import get_executable
from typing import NoReturn

from dataplane_client.loader import _wire
from dataplane_client.loader._giving_back import CLOSING_S

_CODE = "import sys; from dataplane_client.loader._nursery import serve; serve(int(sys.argv[1]))"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Nursery:
    """The process, as its owner sees it. It ends when closed, when nobody refers to it any more, and with its owner."""

    def __init__(self) -> None:
        self._begin()

    @property
    def process_id(self) -> int:
        """Of the process that is there now."""
        return self._process_id

    def fork(self) -> socket.socket:
        """A new worker: the loader's end of its socket. Does not wait until it is there."""
        ours, theirs = _wire.socket_pair()
        with theirs:
            try:
                _wire.send(self._peer, _wire.HELLO, fd=theirs.fileno())
            except OSError:  # it has died
                self.close()
                self._begin()
                _wire.send(self._peer, _wire.HELLO, fd=theirs.fileno())
        return ours

    def close(self) -> None:
        """End it; its workers end with their own loaders. Closing twice is fine."""
        self._finalizer()

    def _begin(self) -> None:
        self._peer, theirs = _wire.socket_pair()
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)}
        with theirs:
            process = subprocess.Popen(  # noqa: S603  # our own interpreter with our own code
                [os.fsdecode(get_executable()), "-c", _CODE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._process_id = process.pid
        self._finalizer = weakref.finalize(self, _end, self._peer, process)


_of_process: weakref.WeakValueDictionary[int, Nursery] = weakref.WeakValueDictionary()
_beginning = threading.Lock()


def nursery() -> Nursery:
    """The nursery of this process, which all its loaders share as long as one of them has it."""
    with _beginning:
        shared = _of_process.get(os.getpid())
        if shared is None:
            shared = _of_process[os.getpid()] = Nursery()
        return shared


def _end(peer: socket.socket, process: subprocess.Popen[bytes]) -> None:
    peer.close()
    try:
        process.wait(CLOSING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(fd: int) -> None:
    """The life of the nursery."""
    from dataplane_client.loader import _worker  # heavy; the owner does not need it

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets workers that have ended
    with socket.socket(fileno=fd) as owner:
        while (message := _wire.receive(owner)) is not None:
            worker = message[2]
            if worker is None:
                continue
            if not os.fork():
                _live(owner, worker, _worker.run)
            os.close(worker)
    os._exit(0)  # there is nothing to finalize, and with torch loaded that would take long


def _live(owner: socket.socket, fd: int, life: Callable[[int], None]) -> NoReturn:
    """The rest of a forked process."""
    status = 1
    try:
        owner.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        life(fd)
        status = 0
    except BaseException:  # noqa: BLE001  # nothing of the nursery's may run
        traceback.print_exc()
    finally:
        os._exit(status)
