"""A re-creation of prime-rl's transports of micro-batches, not the package itself. A worker (see `workers`).

Follows `src/prime_rl/transports/batch` of PrimeIntellect-ai/prime-rl: `filesystem.py` at commit 6bc6e998, `zmq.py` at
43da2dcb, `types.py` at 0f59b241. It has the same structs, libraries and settings, and is written anew. Each rank's
micro-batches are one msgpack message.

- Files: a temporary file for each rank, renamed when it is complete. prime-rl looks for it once a second; this looks
  every 2 ms, so that the transfer is compared and not the pause. The folder is in memory if the system has one there.
- ZMQ: a PUB socket on TCP, a SUB socket with the rank's topic, and a PUSH socket on which each rank says once that it
  is ready. All high-water marks are 10.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec  # type: ignore[import-not-found]
import zmq
import zmq.asyncio

from grid import RANKS, WAIT_S, GridCalls, tensors

_POLL_S = 0.002
_MARK = 10
_MEMORY = Path("/dev/shm")  # noqa: S108  # the system's folder in memory


class MicroBatch(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):  # type: ignore[call-arg,misc]
    """The fields that a text model has. prime-rl's others are absent from its messages, too, if they are None."""

    input_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float]
    position_ids: list[int]
    sequence_lengths: list[int]
    temperatures: list[float]
    env_names: list[str]
    seq_lens: list[int]


def _decoded(message: Any) -> Sequence[Mapping[str, Any]]:
    """The micro-batches of a message, as tensors."""
    return [tensors(msgspec.structs.asdict(batch)) for batch in _DECODER.decode(message)]


_DECODER = msgspec.msgpack.Decoder(type=list[MicroBatch])
_ENCODER = msgspec.msgpack.Encoder()


def _file(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step_{step}" / f"rank_{rank}.bin"


class FileSender:
    """Writes a file for each rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()

    def send(self, grid: Any, step: int) -> None:
        self._loop.run_until_complete(asyncio.to_thread(self._write, grid, step))

    def clear(self, step: int) -> None:
        shutil.rmtree(_file(self._folder, step, 0).parent)

    def _write(self, grid: Any, step: int) -> None:
        _file(self._folder, step, 0).parent.mkdir()
        for rank, batches in enumerate(grid):
            path = _file(self._folder, step, rank)
            incomplete = path.with_suffix(".bin.tmp")
            incomplete.write_bytes(_ENCODER.encode(batches))
            incomplete.rename(path)


class FileReceiver:
    """Reads the files of a rank."""

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank, self._folder = rank, folder

    def receive(self, step: int) -> Sequence[Mapping[str, Any]]:
        path, deadline = _file(self._folder, step, self._rank), time.monotonic() + WAIT_S
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {path.name} within {WAIT_S:.0f} s")
            time.sleep(_POLL_S)
        return _decoded(path.read_bytes())

    def release(self) -> None: ...


class ZmqSender:
    """Publishes to each rank. Ports are chosen by the system."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        context = zmq.asyncio.Context.instance()
        self._socket, self._ready = context.socket(zmq.PUB), context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.SNDHWM, _MARK)
        self._ready.setsockopt(zmq.RCVHWM, _MARK)
        self.ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (self._socket, self._ready)]

    def wait_for(self, ranks: int) -> None:
        """Wait until all ranks have subscribed."""
        self._loop.run_until_complete(asyncio.wait_for(self._all_ready(ranks), WAIT_S))

    async def _all_ready(self, ranks: int) -> None:
        ready: set[bytes] = set()
        while len(ready) < ranks:
            ready.add(await self._ready.recv())

    def send(self, grid: Any, step: int) -> None:
        self._loop.run_until_complete(self._send(grid))

    async def _send(self, grid: Any) -> None:
        for rank, batches in enumerate(grid):
            await self._socket.send_multipart([_topic(rank), _ENCODER.encode(batches)], copy=False)

    def clear(self, step: int) -> None: ...


class ZmqReceiver:
    """The subscriber of a rank."""

    def __init__(self, rank: int, port: int, ready_port: int) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket, self._ready = context.socket(zmq.SUB), context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.RCVHWM, _MARK)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._socket.setsockopt(zmq.SUBSCRIBE, _topic(rank))
        self._ready.setsockopt(zmq.SNDHWM, _MARK)
        self._ready.connect(f"tcp://127.0.0.1:{ready_port}")
        self._ready.send(str(rank).encode())

    def receive(self, step: int) -> Sequence[Mapping[str, Any]]:
        if not self._socket.poll(round(WAIT_S * 1e3)):
            raise TimeoutError(f"no message within {WAIT_S:.0f} s")
        _, message = self._socket.recv_multipart(copy=False)
        return _decoded(message)

    def release(self) -> None: ...


def _topic(rank: int) -> bytes:
    return f"data_rank|{rank}|".encode()


class Calls(GridCalls):
    """The calls of the driver."""

    def __init__(self) -> None:
        super().__init__({"files": FileReceiver, "ZMQ": ZmqReceiver})
        self._folder = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)

    def prepare(self, way: str) -> None:
        """Open a way, and check that the grid arrives unchanged."""
        structs = [[MicroBatch(**batch) for batch in rank] for rank in self.grid]
        if way == "files":
            folder = Path(self._folder.name)
            self.open_way(way, FileSender(folder), structs, folder)
        else:
            sender = ZmqSender()
            self.open_way(way, sender, structs, *sender.ports)
            sender.wait_for(RANKS)
        self.check(way)

    def close(self) -> None:
        self._folder.cleanup()
