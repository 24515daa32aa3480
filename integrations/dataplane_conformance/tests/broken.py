"""Data planes that break promises, each in one way: ours, spoiled in the client."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from dataplane_conformance.drivers.rl_dataplane import RLDataPlane
from dataplane_conformance.system import Claimed, Client, RefusedError, Row, Space, Value


class _Client:
    """A client that does what another one does."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.client, verb)


class _Broken(RLDataPlane):
    """Ours, through clients of its class."""

    Client: type[_Client]

    @classmethod
    def connect(cls, address: str, space: Space) -> Any:  # type: ignore[override]
        return cls.Client(RLDataPlane.connect(address, space))


class DropsTenth(_Broken):
    class Client(_Client):
        put_rows = 0

        def put(self, rows: Sequence[Row]) -> None:
            kept = [row for number, row in enumerate(rows, self.put_rows) if number % 10 != 9]
            self.put_rows += len(rows)
            self.client.put(kept)


class HandsOutTwice(_Broken):
    """The first claim of each client is given back at once, and its rows are kept all the same."""

    class Client(_Client):
        abandoned = 0

        def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
            claimed = self.client.claim(task, n, wait_s, least)
            if claimed is not None and self.abandoned < 1:
                self.abandoned += 1
                self.client.abandon(claimed.name)
            return claimed


class AcceptsLateCommits(_Broken):
    class Client(_Client):
        def commit(self, claim: str) -> None:
            with contextlib.suppress(RefusedError):
                self.client.commit(claim)


class ChangesABit(_Broken):
    class Client(_Client):
        def read(self, claim: str) -> dict[str, dict[str, Value]]:
            rows = self.client.read(claim)
            for values in rows.values():
                for field, (dtype, data) in values.items():
                    if data and dtype == "bfloat16":
                        values[field] = Value(dtype, bytes([data[0] ^ 1]) + data[1:])
            return rows


class PutsOneByOne(_Broken):
    class Client(_Client):
        def put(self, rows: Sequence[Row]) -> None:
            for row in rows:
                self.client.put([row])


class ForgetsTheBound(_Broken):
    """Rows name no version that is older than the bound."""

    class Client(_Client):
        def put(self, rows: Sequence[Row]) -> None:
            self.client.put([row._replace(version=None if row.version is None else 6) for row in rows])


class RefusesWhatItCommits(_Broken):
    """The first commit of each client is refused, and its rows are consumed all the same."""

    class Client(_Client):
        refused = 0

        def commit(self, claim: str) -> None:
            self.client.commit(claim)
            if self.refused < 1:
                self.refused += 1
                raise RefusedError("the first commit")
