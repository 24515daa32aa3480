"""Compare with AReaL's tensor store, which keeps tensors in the process that made them and serves them over HTTP.

Sends batch G (see `batches`) from one process to another. AReaL's side is re-created; see `peers.areal_store`. It
stores 64 trajectories of 8 rows each, every field cut to the longest row of its trajectory, and its reader ends with
these tensors. Ours cuts every row, and its reader ends with one padded batch of all rows, which is more work.
"""

from __future__ import annotations

from collections.abc import Mapping

from batches import G
from exchanges.between_two import OurProcesses
from exchanges.compare import GRPC, SAME_HOST, add_goal, report, total
from peers.environments import RE_CREATED, environment
from session import Session
from timing import alternate
from workers import Worker, worker

PEER = "AReaL's tensor store"
_ROUNDS = 15


def measure(session: Session, ours: OurProcesses) -> None:
    python, module = environment(RE_CREATED, session.torch), "peers.areal_store"
    with worker(python, module, session.logs, 0) as producer, worker(python, module, session.logs, 1) as reader:
        sizes, systems = ours.systems(G)
        systems[PEER] = _Rounds(producer, reader)
        measured = alternate(systems, session.rounds(_ROUNDS), 1)
    report(session, "tensor_store", f"batch G beside {PEER}: {sizes}", measured)
    for name in (SAME_HOST, GRPC):
        title = f"G, from process to process, {name}: at least as fast as {PEER}"
        add_goal(session, title, total(measured[name]), total(measured[PEER]))


class _Rounds:
    """AReaL's rounds. Made once everything came back unchanged."""

    def __init__(self, producer: Worker, reader: Worker) -> None:
        self._producer, self._reader = producer, reader
        self._address = str(producer.call("serve", spec=G.json())["address"])
        self()
        if producer.call("digest") != reader.call("digest"):
            raise RuntimeError(f"{PEER}: batch G came back changed")

    def __call__(self) -> Mapping[str, float]:
        stored = self._producer.call("store")
        shards = {"address": self._address, "shard_ids": stored.pop("shard_ids")}
        read = self._reader.call("fetch", **shards)
        self._reader.call("delete", **shards)
        return {**stored, **read}
