"""In a partition with digests, one byte that changes between a producer's tensor and a reader's is refused by name.

The places of a cluster are in `tests/cluster/node`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.conftest import ANY_PORT
from tests.integration.faults.proxy import FaultProxy
from xxhash import xxh3_64, xxh3_64_digest

from dataplane_client._requests.requests import put_request
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import CorruptedError, DataPlaneError, PreconditionError
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.durability.frames import HEAD, MARK, frame_of
from dataplane_server.durability.life import RecoveryError
from dataplane_server.durability.snapshot import Manifest
from dataplane_server.testing import ServerThread

IDS = ["s1", "s2"]
TOKENS = torch.stack([torch.zeros(1 << 14, dtype=torch.int64), torch.full((1 << 14,), 0x5A5A5A5A5A5A5A5A)])
"""Too many bytes for messages, so that each way is taken."""
PIECE = b"\x5a" * 64
"""Of the value of s2, and of nothing else."""


@contextlib.contextmanager
def serving(**config: Any) -> Iterator[ServerThread]:
    """A server, whose clients are as those of other hosts unless it is at a Unix socket."""
    listen = config.pop("listen", ANY_PORT)
    more = {"share_memory": listen != ANY_PORT, "direct": ANY_PORT if listen == ANY_PORT else None, **config}
    server = ServerThread(ServerConfig(listen=(listen,), limits=Limits(memory_bytes=16 << 20), **more))
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def client_of(server: ServerThread, transport: TransportChoice = "grpc") -> Iterator[DataPlaneClient]:
    """A client whose partition "p" has digests."""
    with connect(server.addresses[0], transport=transport, timeout_s=60.0) as client:
        client.register_partition("p", ["tokens", "reward"], 0, ["train"], digests=True)
        yield client


def put(client: DataPlaneClient, **more: torch.Tensor) -> None:
    client.put_samples(IDS, "p", {"tokens": TOKENS, "reward": torch.ones(2), **more})


def read(client: DataPlaneClient) -> None:
    client.get_samples(IDS, "p", ["reward", "tokens"])


def flip(memory: Any, piece: bytes = PIECE) -> None:
    """Change one bit of a value."""
    at = bytes(memory).find(piece)
    assert at >= 0
    memory[at] ^= 1


def flip_in(file: Path) -> None:
    data = bytearray(file.read_bytes())
    flip(data)
    file.write_bytes(data)


def in_the_producer_after_it_was_hashed(folder: Path) -> None:
    with serving() as server, client_of(server) as client:
        tokens = TOKENS.clone()
        put = put_request("put", "p", IDS, {"tokens": tokens, "reward": torch.ones(2)}, "")
        put.header.hashed = True
        put.write.hash_values()
        tokens[1, 77] += 1
        client._transport.write(put.write, client._transport.deadline(None))
        read(client)


def on_the_way(transport: TransportChoice, folder: Path, **over: str) -> None:
    with serving() as server, through_proxy(server, transport, **over) as client:
        read(client)


@contextlib.contextmanager
def through_proxy(
    server: ServerThread, transport: TransportChoice, put_over: Any = None, read_over: Any = None
) -> Iterator[DataPlaneClient]:
    """A client that has put the rows; a proxy flips a byte of that, or of what it reads next."""
    port = server.server.servicer._direct_port
    upstream = str(server.server.direct_address) if transport == "direct" else server.addresses[0]
    proxy = FaultProxy(upstream)
    if transport == "direct":
        assert port is not None
        port.port = int(proxy.address.rpartition(":")[2])
    address = server.addresses[0] if transport == "direct" else proxy.address
    try:
        with connect(address, transport=transport, timeout_s=60.0) as client:
            client.register_partition("p", ["tokens", "reward"], 0, ["train"], digests=True)
            proxy.flip = {put_over: PIECE} if put_over else {}
            put(client)
            proxy.flip = {read_over: PIECE} if read_over else proxy.flip
            assert bool(proxy.flip) == bool(read_over)
            yield client
    finally:
        proxy.close()


def in_shared_memory_by_another_client(folder: Path) -> None:
    listen = f"unix://{folder}/server.sock"
    with (
        serving(listen=listen) as server,
        client_of(server, "shm") as client,
        connect(listen, transport="shm") as stray,
    ):
        put(client)
        stray.partition("p")
        flip(stray._transport._local.carrier.arena.writable)  # type: ignore[union-attr]
        read(client)


def in_shared_memory_after_a_write_back(folder: Path) -> None:
    listen = f"unix://{folder}/server.sock"
    with serving(listen=listen) as server, client_of(server, "shm") as client:
        client.put_samples(IDS, "p", {"reward": torch.ones(2)})
        client.claim("p", "train", ["reward"], 2).commit({"tokens": TOKENS})
        flip(server.server._arena.memory)
        read(client)


def in_a_value_that_a_group_shares(folder: Path) -> None:
    with serving() as server, client_of(server, "direct") as client:
        with client.reserve_group("p", "g", ["s2"]) as group:
            group.put_shared({"tokens": TOKENS[1:]})
            group.put(["s2"], {"reward": torch.ones(1)})
        flip(server.server._arena.memory)
        client.get_samples(["s2"], "p", ["tokens"])


def in_a_put_that_the_server_hashes(folder: Path) -> None:
    """One with a log does; nothing is stored."""
    with serving(data_dir=folder / "data") as server:
        try:
            with through_proxy(server, "grpc", put_over="requests"):
                pytest.fail("the put was applied")
        finally:
            with client_of(server) as client:
                assert client.partition("p").rows == 0


def in_the_log(data: Path) -> None:
    """The record's checksum was made again, so the server takes digest and checksum for those of another value."""
    (segment,) = data.glob("log-*")
    log = bytearray(segment.read_bytes())
    digest = xxh3_64_digest(TOKENS[1].numpy().tobytes())[::-1]
    assert log.count(digest) == 2
    log = log.replace(digest, bytes([digest[0] ^ 1]) + digest[1:])
    begin = log.rindex(MARK, 0, log.index(digest[1:]))
    end = begin + HEAD.size + HEAD.unpack_from(log, begin)[1]
    log[begin:end] = frame_of(bytes(log[begin + HEAD.size : end]))
    segment.write_bytes(log)


def restarted(folder: Path, change: Callable[[Path], None]) -> None:
    """A server with a log hashes all values before it serves them."""
    with serving(data_dir=folder / "data") as server, client_of(server) as client:
        put(client)
    change(folder / "data")
    with serving(data_dir=folder / "data"):
        pytest.fail("it started")


def in_a_snapshot(folder: Path) -> None:
    """Its checksum was made again, so it is restored."""
    with serving(data_dir=folder / "data") as server, client_of(server) as client:
        put(client)
        client.create_snapshot("day", timeout_s=600.0)
        snapshot = folder / "data" / "snapshots" / "day"
        flip_in(snapshot / "values")
        with pytest.raises(PreconditionError, match="values was changed"):
            client.restore_snapshot("day", timeout_s=600.0)
        make_checksums_again(snapshot)
        with pytest.raises(DataPlaneError):  # the server ends, to go on from the snapshot
            client.restore_snapshot("day", timeout_s=3.0)
    with serving(data_dir=folder / "data") as server, client_of(server) as client:
        read(client)


def make_checksums_again(snapshot: Path) -> None:
    ranges = np.frombuffer((snapshot / "ranges").read_bytes(), "<i8").reshape(-1, 2)
    values, found = (snapshot / "values").read_bytes(), xxh3_64()
    for begin, size in ranges.tolist():
        found.update(values[begin : begin + size])
    entries = json.loads((snapshot / "manifest.json").read_text()) | {"values": found.hexdigest(), "manifest": ""}
    entries["manifest"] = Manifest(**entries).checksum
    (snapshot / "manifest.json").write_text(json.dumps(entries))


PLACES: dict[str, Callable[[Path], None]] = {
    "in the producer after it was hashed": in_the_producer_after_it_was_hashed,
    "in a message of a put": partial(on_the_way, "grpc", put_over="requests"),
    "in a message of a read": partial(on_the_way, "grpc", read_over="answers"),
    "on the line of a put": partial(on_the_way, "direct", put_over="requests"),
    "on the line of a read": partial(on_the_way, "direct", read_over="answers"),
    "in shared memory by another client": in_shared_memory_by_another_client,
    "in shared memory after a write-back": in_shared_memory_after_a_write_back,
    "in a value that a group shares": in_a_value_that_a_group_shares,
    "in a put that the server hashes": in_a_put_that_the_server_hashes,
    "in the arena between two servers": partial(restarted, change=lambda data: flip_in(data / "arena")),
    "in the log": partial(restarted, change=in_the_log),
    "in a snapshot": in_a_snapshot,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_one_changed_byte_is_refused_by_name(place: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises((CorruptedError, RecoveryError)) as caught:
        place(tmp_path)
    assert all(f"'{name}'" in str(caught.value) for name in ("p", "s2", "tokens"))
    if isinstance(caught.value, CorruptedError):
        assert caught.value.reason == "DIGEST_MISMATCH"
        assert caught.value.details == {"partition_id": "p", "sample_id": "s2", "field": "tokens"}


def test_what_was_read_is_no_view_that_a_later_write_could_change(tmp_path: Path) -> None:
    listen = f"unix://{tmp_path}/server.sock"
    with serving(listen=listen) as server, client_of(server, "shm") as client:
        put(client)
        meta = client.claim("p", "train", ["tokens"], 2).meta
        batch = client.read_columns(meta, ["tokens"], layout="jagged")
        flip(server.server._arena.memory)
        assert torch.equal(batch["tokens"], TOKENS)
