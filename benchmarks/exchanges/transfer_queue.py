"""Compare with TransferQueue, in one process each: whole batches, and the put of one row."""

from __future__ import annotations

import sys
from pathlib import Path

from exchanges import performance_test, single_row
from peers.environments import TRANSFER_QUEUE, environment
from servers import ServerProcess
from session import Session
from workers import worker

PEER = "TransferQueue"


def measure(session: Session, server: ServerProcess) -> None:
    python, ours = environment(TRANSFER_QUEUE, session.torch), "exchanges.our_store"
    with (
        worker(Path(sys.executable), ours, session.logs, 0) as near,
        worker(Path(sys.executable), ours, session.logs, 1) as remote,
        worker(python, "peers.transfer_queue_store", session.logs) as queue,
    ):
        near.call("connect", address=server.unix, transport="auto")
        remote.call("connect", address=server.unix, transport="grpc")
        single_row.measure(session, near, remote, queue)
        performance_test.measure(session, near, queue)
