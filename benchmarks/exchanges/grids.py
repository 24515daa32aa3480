"""Compare with prime-rl's transports: a grid of micro-batches from one process to the 8 ranks of a trainer.

Both sides start from Python lists and end with tensors in 8 processes that wait before the grid is sent; see
`exchanges.micro_batches` and `peers.prime_rl`. We put the grid once, and each rank claims its shard of the step.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from dataplane_client.options import TransportChoice
from exchanges import micro_batches as grids
from exchanges.compare import GRPC, SAME_HOST, add_goal, report, total
from peers.environments import RE_CREATED, environment
from servers import ServerProcess
from session import Session
from timing import Round, alternate
from workers import worker

PEER = "prime-rl's transports"
_OURS: dict[str, TransportChoice] = {SAME_HOST: "auto", GRPC: "grpc"}
_THEIRS = {"prime-rl, files": "files", "prime-rl, ZMQ": "ZMQ"}
_ROUNDS = 21


def measure(session: Session, server: ServerProcess) -> None:
    python = environment(RE_CREATED, session.torch)
    with (
        worker(Path(sys.executable), "exchanges.our_ranks", session.logs) as ours,
        worker(python, "peers.prime_rl_ranks", session.logs) as theirs,
    ):
        theirs.call("prepare")
        systems: dict[str, Round] = {}
        for name, transport in _OURS.items():
            ours.call("prepare", address=server.unix, transport=transport)
            systems[name] = partial(ours.call, "round", transport=transport)
        for name, way in _THEIRS.items():
            systems[name] = partial(theirs.call, "round", transport=way)
        measured = alternate(systems, session.rounds(_ROUNDS), session.warmups)
    size = f"{grids.RANKS} ranks x {grids.BATCHES} micro-batches x {grids.TOKENS} tokens"
    report(session, "grid", size, measured)
    for name in _THEIRS:
        title = f"{size}, from lists to tensors: at least as fast as {name}"
        add_goal(session, title, total(measured[SAME_HOST]), total(measured[name]))
