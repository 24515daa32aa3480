"""Redis streams with consumer groups (`pip install redis`, and redis-server on the path).

The settings are the strongest that the documentation names: `appendonly yes`, `appendfsync always`, `maxmemory` with
`noeviction`, every put a MULTI/EXEC, XAUTOCLAIM with the lease as min-idle-time, XCLAIM JUSTID of the own entries as a
renewal, XCLAIM IDLE as giving back. Entries are named by the server: an id given by a producer must be greater than all
before, so it cannot name a row. A claim gets what is there, up to n. Commits are XACK.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dataplane_conformance.drivers.bytes_of_rows import packed, unpacked
from dataplane_conformance.drivers.owned_server import OwnedServer
from dataplane_conformance.system import Claimed, Counts, Driver, Lack, RefusedError, Row, Space, Value, refused_by

_SERVER = shutil.which("redis-server") or "redis-server"
_AGAIN: Any = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
"""A call over a connection that has ended is made over a new one; one that timed out is not repeated."""
_REFUSALS = (redis.OutOfMemoryError, redis.exceptions.ExecAbortError)
_LONG_AGO_MS = 10**9
_LOOK_MS = 200
"""How long a claim waits for new entries before it looks for those of dead consumers again."""


class RedisStreams(OwnedServer, Driver):
    """A redis-server of its own."""

    lacks: frozenset[Lack] = frozenset({"groups", "ids", "least", "staleness"})

    def versions(self) -> str:
        said = subprocess.run([_SERVER, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
        return f"{' '.join(said.split()[:3])}, redis-py {redis.__version__}, appendfsync always"

    def command(self, folder: Path) -> list[str]:
        self.address = str(self.port)
        keep = "--appendonly yes --appendfsync always --maxmemory-policy noeviction"
        return [_SERVER, "--port", self.address, "--bind", "127.0.0.1", "--dir", str(folder), *keep.split()]

    def start(self) -> None:
        super().start()
        with redis.Redis(port=self.port) as client:
            while client.info("persistence")["loading"]:
                time.sleep(0.02)

    def tear(self) -> None:
        log = next(iter(sorted((self.folder or Path()).rglob("*.incr.aof"))))
        with log.open("ab") as file:
            file.write(b"*5\r\n$4\r\nXADD\r\n$13\r\nconform")

    @staticmethod
    def connect(address: str, space: Space) -> _Client:
        return _Client(int(address), space)


class _Client:
    def __init__(self, port: int, space: Space) -> None:
        self._redis: Any = redis.Redis(port=port, socket_timeout=space.call_s, retry=_AGAIN)
        self._space, self._me, self._claims = space, uuid.uuid4().hex, {}  # type: ignore[var-annotated]
        self._lease_ms = int(space.lease_s * 1000)
        self._entries: dict[str, bytes] = {}
        for task in space.tasks:
            with contextlib.suppress(redis.ResponseError):  # BUSYGROUP: another client has created it
                self._redis.xgroup_create(space.name, task, id="0", mkstream=True)
        if space.max_bytes is not None:
            room = self._redis.info("memory")["used_memory"] + space.max_bytes
            if self._redis.set(f"{space.name}-budget", 1, nx=True):
                self._redis.config_set("maxmemory", room)
        else:
            self._redis.config_set("maxmemory", 0)

    def put(self, rows: Sequence[Row]) -> None:
        with refused_by(*_REFUSALS), self._redis.pipeline(transaction=True) as together:
            for row in rows:
                together.xadd(self._space.name, {"id": row.id, "values": packed(row)})
            together.execute()

    def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
        until = time.monotonic() + wait_s
        while True:
            lost = self._redis.xautoclaim(self._space.name, task, self._me, self._lease_ms, count=n)[1]
            if entries := [entry for entry in lost if entry[1]]:
                return self._claimed(task, entries)
            block = max(1, min(_LOOK_MS, int((until - time.monotonic()) * 1000)))
            if new := self._redis.xreadgroup(task, self._me, {self._space.name: ">"}, count=n, block=block):
                return self._claimed(task, new[0][1])
            if time.monotonic() >= until:
                return None

    def _claimed(self, task: str, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> Claimed:
        name = uuid.uuid4().hex
        self._claims[name] = (task, entries)
        ids = [fields[b"id"].decode() for _, fields in entries]
        self._entries.update(zip(ids, (entry for entry, _ in entries), strict=True))
        return Claimed(name, ids)

    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        """The entries travelled with the claim."""
        return {fields[b"id"].decode(): unpacked(fields[b"values"]) for _, fields in self._claims[claim][1]}

    def commit(self, claim: str) -> None:
        task, entries = self._claims[claim]
        if self._redis.xack(self._space.name, task, *(entry for entry, _ in entries)) < len(entries):
            raise RefusedError("XACK: not all of these entries are pending")

    def abandon(self, claim: str) -> None:
        task, entries = self._claims[claim]
        self._redis.xclaim(self._space.name, task, self._me, 0, [entry for entry, _ in entries], idle=_LONG_AGO_MS)

    def renew(self, claim: str) -> None:
        task, entries = self._claims[claim]
        self._redis.xclaim(self._space.name, task, self._me, 0, [entry for entry, _ in entries], justid=True)

    def remove(self, ids: Sequence[str]) -> None:
        self._redis.xdel(self._space.name, *(self._entries[row] for row in ids))

    def counts(self, task: str) -> Counts:
        group = next(one for one in self._redis.xinfo_groups(self._space.name) if one["name"].decode() == task)
        overdue = self._redis.xpending_range(self._space.name, task, "-", "+", 1000, idle=self._lease_ms)
        held, late = group["pending"], len(overdue)
        return Counts(group["lag"] + late, held - late, group["entries-read"] - held)
