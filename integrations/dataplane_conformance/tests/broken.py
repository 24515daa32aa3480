"""Data planes that break promises, each in one way: ours, spoiled in the client."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from dataplane_conformance.drivers.rl_dataplane import RLDataPlane
from dataplane_conformance.system import Claimed, Client, RefusedError, Row, Space, Value


class _Spoiled:
    """A client that does what another one does."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.client, verb)


class _DropsTenth(_Spoiled):
    put_rows = 0

    def put(self, rows: Sequence[Row]) -> None:
        kept = [row for number, row in enumerate(rows, self.put_rows) if number % 10 != 9]
        self.put_rows += len(rows)
        self.client.put(kept)


class _HandsOutTwice(_Spoiled):
    """The first claim of each client is given back at once, and its rows are kept all the same."""

    abandoned = 0

    def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
        claimed = self.client.claim(task, n, wait_s, least)
        if claimed is not None and self.abandoned < 1:
            self.abandoned += 1
            self.client.abandon(claimed.name)
        return claimed


class _AcceptsLateCommits(_Spoiled):
    def commit(self, claim: str) -> None:
        with contextlib.suppress(RefusedError):
            self.client.commit(claim)


class _ChangesABit(_Spoiled):
    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        rows = self.client.read(claim)
        for values in rows.values():
            for field, (dtype, data) in values.items():
                if data and dtype == "bfloat16":
                    values[field] = Value(dtype, bytes([data[0] ^ 1]) + data[1:])
        return rows


class _PutsOneByOne(_Spoiled):
    def put(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.client.put([row])


class _ForgetsTheBound(_Spoiled):
    """Rows name no version that is older than the bound."""

    def put(self, rows: Sequence[Row]) -> None:
        self.client.put([row._replace(version=None if row.version is None else 6) for row in rows])


class DropsTenth(RLDataPlane):
    @staticmethod
    def connect(address: str, space: Space) -> Any:
        return _DropsTenth(RLDataPlane.connect(address, space))


class HandsOutTwice(RLDataPlane):
    @staticmethod
    def connect(address: str, space: Space) -> Any:
        return _HandsOutTwice(RLDataPlane.connect(address, space))


class AcceptsLateCommits(RLDataPlane):
    @staticmethod
    def connect(address: str, space: Space) -> Any:
        return _AcceptsLateCommits(RLDataPlane.connect(address, space))


class ChangesABit(RLDataPlane):
    @staticmethod
    def connect(address: str, space: Space) -> Any:
        return _ChangesABit(RLDataPlane.connect(address, space))


class PutsOneByOne(RLDataPlane):
    @staticmethod
    def connect(address: str, space: Space) -> Any:
        return _PutsOneByOne(RLDataPlane.connect(address, space))


class ForgetsTheBound(RLDataPlane):
    @staticmethod
    def connect(address: str, space: Space) -> Any:
        return _ForgetsTheBound(RLDataPlane.connect(address, space))
