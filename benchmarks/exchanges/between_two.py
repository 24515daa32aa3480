"""Rounds of a padded batch from one process of ours to another."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from batches import Spec
from dataplane_client._values.columns_layout import Layout
from dataplane_client.options import TransportChoice
from exchanges.compare import GRPC, SAME_HOST
from servers import ServerProcess
from session import Session
from timing import Round
from workers import Worker, worker

_TRANSPORTS: dict[str, TransportChoice] = {SAME_HOST: "auto", GRPC: "grpc"}


class OurProcesses:
    """A process that puts and one that reads."""

    def __init__(self, putter: Worker, reader: Worker, address: str) -> None:
        self._putter, self._reader = putter, reader
        self._numbers = itertools.count()
        for each in (putter, reader):
            for transport in _TRANSPORTS.values():
                each.call("connect", address=address, transport=transport)

    def systems(self, spec: Spec, layout: Layout = "padded") -> tuple[str, dict[str, Round]]:
        """The sizes of a batch, in words, and our rounds of it, by name. Checks that each gives it back unchanged."""
        made = self._putter.call("build", spec=spec.json())
        self._reader.call("expect", fields=made["fields"], layout=layout)
        rounds: dict[str, Round] = {}
        for name, transport in _TRANSPORTS.items():
            rounds[name] = partial(self._round, spec, transport)
            rounds[name]()
            if self._reader.call("digest")["digest"] != made["digest"]:
                raise RuntimeError(f"{name}: batch {spec.name} came back changed")
        return str(made["sizes"]), rounds

    def _round(self, spec: Spec, transport: TransportChoice) -> Mapping[str, float]:
        number = next(self._numbers)
        put = self._putter.call("put", number=number, transport=transport)
        read = self._reader.call("read", name=spec.name, number=number, rows=spec.rows, transport=transport)
        self._putter.call("clear")
        return {**put, **read}


@contextmanager
def our_processes(session: Session, server: ServerProcess) -> Iterator[OurProcesses]:
    python, module = Path(sys.executable), "exchanges.our_batches"
    with worker(python, module, session.logs, 0) as putter, worker(python, module, session.logs, 1) as reader:
        yield OurProcesses(putter, reader, server.unix)
