"""NATS JetStream (`pip install nats-py`, and nats-server on the path).

File storage, a durable pull consumer for each task with explicit acks and the lease as `ack_wait`, `Nats-Msg-Id` for
puts that are repeated, `discard: new` with `max_bytes`, double acks (`ack_sync`), `nak` as giving back and
`in_progress` as renewal. Every row is a message: before 2.12 the server has no batch that is published whole. A claim
gets what is there, up to n.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, StorageType, StreamConfig

from dataplane_conformance.drivers.bytes_of_rows import packed, unpacked
from dataplane_conformance.drivers.owned_server import OwnedServer
from dataplane_conformance.system import Claimed, Counts, Driver, Lack, RefusedError, Row, Space, Value, refused_by

_SERVER = shutil.which("nats-server") or "nats-server"
_REPEATED_S = 120.0
_NO_LIMIT = -1
_ALIVE_S = 1.0
_LEAST_S = 0.05
_LOOK_S = 0.3
"""A fetch that got some of its rows waits for the others until its timeout, while their lease runs."""


class _Client:
    def __init__(self, address: str, space: Space) -> None:
        self._loop, self._space = asyncio.new_event_loop(), space
        threading.Thread(target=self._loop.run_forever, daemon=True).start()  # it reconnects between calls, too
        self._claims: dict[str, list[Any]] = {}
        self._tasks: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}
        self._run(self._open(address))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, address: str) -> None:
        space = self._space
        self._nats = await nats.connect(
            address, error_cb=_said_by_the_call, max_reconnect_attempts=-1, reconnect_time_wait=0.2
        )
        self._stream = self._nats.jetstream(timeout=space.call_s)
        await self._stream.add_stream(
            StreamConfig(
                name=space.name,
                subjects=[f"{space.name}.rows"],
                storage=StorageType.FILE,
                discard=DiscardPolicy.NEW,
                max_bytes=space.max_bytes or _NO_LIMIT,
                duplicate_window=_REPEATED_S,
            )
        )
        for task in space.tasks:
            consumer = ConsumerConfig(
                durable_name=task, ack_policy=AckPolicy.EXPLICIT, ack_wait=space.lease_s, max_deliver=_NO_LIMIT
            )
            await self._stream.add_consumer(space.name, consumer)
            self._tasks[task] = await self._stream.pull_subscribe_bind(task, space.name)

    def put(self, rows: Sequence[Row]) -> None:
        self._run(self._put(rows))

    async def _put(self, rows: Sequence[Row]) -> None:
        sent = [
            self._stream.publish(
                f"{self._space.name}.rows", packed(row), headers={"Nats-Msg-Id": row.id, "Row": row.id}
            )
            for row in rows
        ]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        for answer in failed:
            raise RefusedError(str(answer)) if isinstance(answer, nats.js.errors.APIError) else answer

    def claim(self, task: str, n: int, wait_s: float, least: int) -> Claimed | None:
        until = time.monotonic() + wait_s
        while not (messages := self._fetched(task, n, min(_LOOK_S, until - time.monotonic()))):
            if time.monotonic() > until - _LEAST_S:  # is there no row, or no server?
                self._run(asyncio.wait_for(self._stream.consumer_info(self._space.name, task), _ALIVE_S))
                return None
        name = uuid.uuid4().hex
        self._claims[name] = messages
        ids = [message.headers["Row"] for message in messages]
        self._numbers.update(
            (row, message.metadata.sequence.stream) for row, message in zip(ids, messages, strict=True)
        )
        return Claimed(name, ids)

    def _fetched(self, task: str, n: int, wait_s: float) -> list[Any]:
        try:
            return list(self._run(self._tasks[task].fetch(n, timeout=max(_LEAST_S, wait_s))))
        except asyncio.TimeoutError:  # that of nats among them
            return []

    def read(self, claim: str) -> dict[str, dict[str, Value]]:
        """The messages travelled with the claim."""
        return {message.headers["Row"]: unpacked(message.data) for message in self._claims[claim]}

    def commit(self, claim: str) -> None:
        async def commit() -> None:
            for message in self._claims[claim]:
                await message.ack_sync(timeout=self._space.call_s)

        with refused_by(nats.errors.MsgAlreadyAckdError):
            self._run(commit())

    def abandon(self, claim: str) -> None:
        self._run(self._say("nak", claim))

    def renew(self, claim: str) -> None:
        self._run(self._say("in_progress", claim))

    async def _say(self, verb: str, claim: str) -> None:
        for message in self._claims[claim]:
            await getattr(message, verb)()
        await self._nats.flush(timeout=self._space.call_s)

    def remove(self, ids: Sequence[str]) -> None:
        async def remove() -> None:
            for row in ids:
                await self._stream.delete_msg(self._space.name, self._numbers[row])

        self._run(remove())

    def counts(self, task: str) -> Counts:
        """A message that was given back counts as held: it is pending until its ack."""
        seen = self._run(self._stream.consumer_info(self._space.name, task))
        return Counts(seen.num_pending, seen.num_ack_pending, seen.delivered.stream_seq - seen.num_ack_pending)


class NatsJetStream(OwnedServer, Driver):
    """A nats-server of its own."""

    lacks: frozenset[Lack] = frozenset({"groups", "least", "staleness", "whole puts"})
    connect = _Client

    def versions(self) -> str:
        said = subprocess.run([_SERVER, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
        return f"{said.strip()}, nats-py {version('nats-py')}, file storage"

    def command(self, folder: Path) -> list[str]:
        self.address = f"nats://127.0.0.1:{self.port}"
        where = f"--addr 127.0.0.1 --port {self.port} --jetstream --store_dir"
        return [_SERVER, *where.split(), str(folder / "store")]

    def tear(self) -> None:
        """A record begins with its length; 60 bytes of one of 200 follow the last."""
        blocks = max((self.folder or Path()).rglob("*.blk"), key=lambda path: path.stat().st_mtime)
        with blocks.open("ab") as file:
            file.write((200).to_bytes(4, "little") + b"\1" * 56)


async def _said_by_the_call(_: Exception) -> None:
    """Errors of the connection; the default writes them to stderr."""
