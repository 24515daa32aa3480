"""Messages that cost a server much, if it lets them: of millions of parts, or of what it has to keep."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.wire.local_peer import MIB

from dataplane_client.client import DataPlaneClient
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb


def part(number: int, body: bytes) -> bytes:
    """A field of bytes, as protobuf encodes it."""
    size, encoded = len(body), bytearray([number << 3 | 2])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size]) + body


def many(number: int, body: bytes = b"", size_bytes: int = 19 * MIB) -> bytes:
    """A field that is repeated until a message is nearly as long as a message may be."""
    one = part(number, body)
    return one * (size_bytes // len(one))


CROWDED: dict[str, Callable[[], tuple[int, bytes]]] = {
    "names of an enum": lambda: (pb.LOCAL_METHOD_REGISTER_PARTITION, part(7, part(1, b"x") + part(2, many(1)))),
    "fields of a partition": lambda: (pb.LOCAL_METHOD_REGISTER_PARTITION, many(3)),
    "columns": lambda: (pb.LOCAL_METHOD_PUT, part(1, many(4))),
    "columns with names": lambda: (pb.LOCAL_METHOD_PUT, part(1, many(4, part(1, b"xxxx")))),
    "dimensions of a column": lambda: (pb.LOCAL_METHOD_PUT, part(1, part(4, part(4, b"\x01" * 19 * MIB)))),
    "columns of a commit": lambda: (pb.LOCAL_METHOD_COMMIT, part(1, many(3))),
    "tags": lambda: (pb.LOCAL_METHOD_PUT, part(1, many(5))),
    "tags of one row": lambda: (
        pb.LOCAL_METHOD_PUT,
        part(1, part(3, b"s") + part(5, b"\xdf\x00\x00\xff\xff" + b"\xa0\xc0" * 65535)),
    ),
    "ids to put": lambda: (pb.LOCAL_METHOD_PUT, part(1, many(3))),
    "ids to read": lambda: (pb.LOCAL_METHOD_READ, part(1, many(2))),
    "fields to read": lambda: (pb.LOCAL_METHOD_READ, part(1, many(3))),
    "ids to clear": lambda: (pb.LOCAL_METHOD_CLEAR_SAMPLES, many(3)),
    "tasks": lambda: (pb.LOCAL_METHOD_GET_CONSUMPTION_STATUS, many(2)),
    "fields of a claim": lambda: (pb.LOCAL_METHOD_CLAIM_SAMPLES, many(4)),
}
"""Methods and bodies, made when they are wanted: 20 MB each."""

FRAMES: dict[str, Callable[[], bytes]] = {
    "a header in pieces": lambda: many(1),
    "unknown numbers": lambda: b"\x18\x01" * (9 * MIB),
    "a header of columns": lambda: part(1, many(4)),
    "unknown fields": lambda: part(1, b"") + many(3),
}

SERVICE = plane_pb.DESCRIPTOR.services_by_name["DataPlaneService"].full_name


def put_tags(client: DataPlaneClient, call: int) -> None:
    tags = [{f"metric {number}": call + row + 0.5 for number in range(64)} for row in range(200)]
    client.put_samples([f"{call}-{row}" for row in range(200)], "kept", tags=tags)


def put_ids(client: DataPlaneClient, call: int) -> None:
    client.put_samples([f"{call}-{row}-{'x' * 200}" for row in range(2000)], "kept", tags=[{"v": 1}] * 2000)


def register_enums(client: DataPlaneClient, call: int) -> None:
    names = [f"{call}-{number}-{'x' * 200}" for number in range(1000)]
    client.register_partition(f"kept {call}", ["x"], 0, ["train"], enums={"x": names})


KEPT = {"tags": put_tags, "ids": put_ids, "enums": register_enums}
