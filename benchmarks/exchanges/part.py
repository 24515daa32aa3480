"""All comparisons, one after the other. One whose peer is missing or fails says so; the others go on."""

from __future__ import annotations

from collections.abc import Callable

from exchanges import data_proto, grids, tensor_store, transfer_queue
from exchanges.between_two import our_processes
from peers.environments import NotInstalledError
from servers import server_process
from session import Goal, Session
from workers import WorkerError


def measure(session: Session) -> None:
    """Measure the goals beside other frameworks."""
    with server_process() as server:
        with our_processes(session, server) as ours:
            _beside(session, data_proto.PEER, lambda: data_proto.measure(session, ours))
            _beside(session, tensor_store.PEER, lambda: tensor_store.measure(session, ours))
        _beside(session, grids.PEER, lambda: grids.measure(session, server))
        _beside(session, transfer_queue.PEER, lambda: transfer_queue.measure(session, server))


def _beside(session: Session, peer: str, compare: Callable[[], None]) -> None:
    with session.phase(f"exchanges beside {peer}"):
        try:
            compare()
        except (NotInstalledError, WorkerError) as error:
            session.console.print(f"{peer} is left out: {error}")
            session.goals.append(Goal(f"exchanges beside {peer}: at least as fast", str(error), None))
