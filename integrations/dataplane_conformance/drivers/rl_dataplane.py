"""RL Data Plane, with `--durability disk` and the session of each client as its lease."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from dataplane_client import FlowPolicy, TaskPolicy, connect
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import (
    ClaimNotFoundError,
    ClaimTimeoutError,
    NotFoundError,
    OutOfSpaceError,
    PreconditionError,
)
from dataplane_conformance.drivers.owned_server import OwnedServer
from dataplane_conformance.drivers.tensors import tensor_of, values_of
from dataplane_conformance.system import Claimed, Counts, Driver, Lack, Row, Space, Value, refused_by

_REFUSALS = (PreconditionError, NotFoundError, OutOfSpaceError, ClaimNotFoundError)
_FLAGS = ("--memory=256MiB", "--max-rows=100000", "--bookkeeping=64MiB", "--http=", "--log-level=error")


class _Client:
    def __init__(self, address: str, space: Space) -> None:
        self._client: DataPlaneClient = connect(address, timeout_s=space.call_s, session_grace_s=space.lease_s)
        self._space, self._claims, self._groups = space, {}, {}  # type: ignore[var-annotated]
        self._client.register_partition(space.name, space.fields, 0, space.tasks)
        bound = TaskPolicy(max_staleness=space.max_staleness)
        self._client.set_policies(
            space.name, dict.fromkeys(space.tasks, bound), flow=FlowPolicy(max_bytes=space.max_bytes)
        )

    def put(self, rows: Sequence[Row]) -> None:
        with refused_by(*_REFUSALS):
            self._client.put_samples([row.id for row in rows], self._space.name, *self._columns(rows))

    def claim_groups(self, task: str, n: int, wait_s: float) -> Claimed | None:
        return self.claim(task, n, wait_s, 1, whole_groups=True)

    def claim(self, task: str, n: int, wait_s: float, least: int, *, whole_groups: bool = False) -> Claimed | None:
        place = (self._space.name, task, self._space.fields, n)
        try:
            claim = self._client.claim(*place, min_size=least, whole_groups=whole_groups, timeout_s=wait_s)
        except ClaimTimeoutError:
            return None
        self._claims[claim.claim_id] = claim
        return Claimed(claim.claim_id, list(claim.meta.sample_ids))

    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        meta = self._claims[claim].meta
        with refused_by(*_REFUSALS):
            return values_of(self._client.get_data(meta, self._space.fields), self._space.fields, meta.sample_ids)

    def commit(self, claim: str) -> None:
        """The request id is of the claim, so a repetition is one; a second `Claim` makes it, as after a restart."""
        with refused_by(*_REFUSALS):
            held = self._claims[claim]
            if held.state == "committed":
                held = self._client.adopt_claim(claim, held.meta)
            held.commit(request_id=f"commit {claim}")

    def abandon(self, claim: str) -> None:
        with refused_by(*_REFUSALS):
            self._claims.pop(claim).release()

    def renew(self, claim: str) -> None:
        """The client's heartbeats do it."""

    def put_group(self, group: str, rows: Sequence[Row], *, finish: bool) -> None:
        with refused_by(*_REFUSALS):
            held = self._groups.get(group) or self._client.reserve_group(self._space.name, group)
            self._groups[group] = held
            held.add([row.id for row in rows])
            held.put([row.id for row in rows], *self._columns(rows))
            if finish:
                held.commit()

    def set_version(self, version: int) -> None:
        self._client.set_weight_version(self._space.name, version)

    def remove(self, ids: Sequence[str]) -> None:
        self._client.clear_samples(ids, self._space.name)

    def counts(self, task: str) -> Counts:
        status = next(one for one in self._client.partition(self._space.name).tasks if one.task == task)
        return Counts(status.untaken_rows, status.claimed_rows, status.consumed_rows)

    def _columns(self, rows: Sequence[Row]) -> tuple[dict[str, list[torch.Tensor]], list[dict[str, int]]]:
        columns = {field: [tensor_of(row.values[field]) for row in rows] for field in self._space.fields}
        return columns, [{} if row.version is None else {"weight_version": row.version} for row in rows]


class RLDataPlane(OwnedServer, Driver):
    """A server of its own, or the one at the address."""

    lacks: frozenset[Lack] = frozenset()
    connect = _Client

    def __init__(self, address: str | None = None) -> None:
        self.owns_server = address is None
        self.address = address or ""

    def versions(self) -> str:
        return f"rl-dataplane {version('rl-dataplane')}, --durability disk"

    def command(self, folder: Path) -> list[str]:
        self.socket_path = folder / "socket"
        self.socket_path.unlink(missing_ok=True)
        self.address = f"unix://{self.socket_path}"
        run = (sys.executable, "-c", "from dataplane_server.cli import main; main()")
        return [*run, f"--listen={self.address}", "--durability=disk", f"--data-dir={folder / 'data'}", *_FLAGS]

    def start(self) -> None:
        if self.owns_server:
            super().start()
        else:
            connect(self.address).close()

    def forget(self, spaces: Sequence[Space]) -> None:
        with connect(self.address) as client:
            for space in spaces:
                client.drop_partition(space.name)

    def tear(self) -> None:
        """A head that promises 400 bytes, and 200 of them, in the space behind the last record (docs/format.md)."""
        log = sorted((self.folder or Path()).glob("data/log-*"))[-1]
        data, mark = log.read_bytes(), b"\xd1REC"
        last = data.rindex(mark)
        end = last + 12 + struct.unpack_from("<I", data, last + 4)[0]
        with log.open("r+b") as file:
            file.seek(end)
            file.write(struct.pack("<4sII", mark, 400, 1) + b"\1" * 200)
