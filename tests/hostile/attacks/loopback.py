"""Ways of another user of this host to be taken for the server's own on loopback, each tried many times as that user.

    python -m tests.hostile.attacks.loopback [--attempts 1000]

The kernel has no user for a socket that its process has closed, and a local port may have several connections, to
different addresses. Each way ends in a request that the server must not carry out. It takes root to try. The
exit status is 1 if a single attempt goes through.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlencode

from tests.as_user import user
from tests.hostile.attacks.http2 import DATA, HEADERS, OPENING, SETTINGS_KIND, frame, request
from tests.integration.wire.local_peer import framed

from dataplane_client.client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import local_pb2

STRANGER = 65533
_HOST = "127.0.0.1"
_TIMEOUT_S = 200.0
_CALLS = 8  # of a connection
_BATCH = 50  # attempts that the other user's process makes in one go
_IP_LOCAL_PORT_RANGE = 51
_PORT_TAKEN = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)  # by chance a connection of somebody else has the port as well
_SERVER_CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)  # the connection, before the attempt was over
_SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"].full_name


@dataclass(frozen=True)
class Ports:
    """Of a server on loopback: gRPC, the page, the door, the direct port. owner: from which a process of the server's
    user is connected to gRPC. owner_elsewhere: and from which to a port of another program.
    """

    grpc: int
    page: int
    door: int
    direct: int
    owner: int
    owner_elsewhere: int


# -- connections -------------------------------------------------------------------------------------------------------


def _line(port: int, from_port: int | None = None) -> socket.socket:
    """from_port: 0 for one that the system chooses when it is bound, None for when it connects."""
    line = socket.socket()
    line.settimeout(_TIMEOUT_S)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if from_port is not None:
        line.bind((_HOST, from_port))
    line.connect((_HOST, port))
    return line


def _line_by_range(port: int, from_port: int) -> socket.socket:
    """A connection from a port that is in use, which the system chooses from a range of one."""
    line = socket.socket()
    line.settimeout(_TIMEOUT_S)
    line.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("HH", from_port, from_port))
    line.connect((_HOST, port))
    return line


def _line_behind(port: int, closed_port: int) -> socket.socket:
    """A connection from the port of one to another port that has been closed."""
    with _line(closed_port, 0) as first:
        first.sendall(OPENING)
        _read_until(first, SETTINGS_KIND, 1)  # what is left unread would reset the connection
        from_port = first.getsockname()[1]
    return _line(port, from_port)


def _rest(line: socket.socket) -> bytes:
    answer = b""
    with line, contextlib.suppress(ConnectionError):
        while data := line.recv(1 << 16):
            answer += data
    return answer


# -- requests ----------------------------------------------------------------------------------------------------------


def _registrations(name: str) -> bytes:
    """A connection's bytes that make partitions by gRPC."""
    return OPENING + b"".join(_registration(f"{name}-{part}", 2 * part + 1) for part in range(_CALLS))


def _registration(name: str, stream: int) -> bytes:
    message = pb.RegisterPartitionRequest(request_id=name, partition_id=name, fields=["x"], tasks=["t"])
    data = message.SerializeToString()
    head = frame(HEADERS, 4, stream, request(f"/{_SERVICE}/RegisterPartition", "localhost"))
    return head + frame(DATA, 1, stream, b"\0" + len(data).to_bytes(4, "big") + data)


def _await_answer(line: socket.socket) -> None:
    with line, contextlib.suppress(ConnectionError):
        _read_until(line, HEADERS, 0)


def _read_until(line: socket.socket, kind: int, flags: int) -> None:
    """Read frames until one of a kind, or the end of the connection."""
    with line.makefile("rb") as reader:
        while len(head := reader.read(9)) == 9:
            reader.read(int.from_bytes(head[:3], "big"))
            if head[3] == kind and head[4] & flags == flags:
                return


def _sample(line: socket.socket) -> int:
    """Whether the page shows the values of a row."""
    query = urlencode({"partition": "train", "id": "r"})
    line.sendall(f"GET /page/sample?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return int(_rest(line).startswith(b"HTTP/1.1 200"))


def _put(name: str) -> bytes:
    body = b'{"samples": [{"sample_id": "%s", "fields": {"x": 1}}]}' % name.encode()
    return _post(len(body)) + body


def _post(size: int) -> bytes:
    head = "POST /v1/partitions/train/samples HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode()


# -- ways --------------------------------------------------------------------------------------------------------------


def _sample_behind_a_closed_call(ports: Ports, name: str) -> int:
    return _sample(_line_behind(ports.page, ports.grpc))


def _put_behind_a_closed_call(ports: Ports, name: str) -> int:
    line = _line_behind(ports.door, ports.grpc)
    line.sendall(_put(name))
    return int(_rest(line).startswith(b"HTTP/1.1 200"))


def _direct_behind_a_closed_call(ports: Ports, name: str) -> int:
    """Whether the direct port looks at what it is sent, a wrong nonce."""
    line = _line_behind(ports.direct, ports.grpc)
    with line, contextlib.suppress(ConnectionError):
        line.sendall(framed(local_pb2.LOCAL_METHOD_DIRECT, local_pb2.DirectRequest(nonce=bytes(16))))
        return int(b"another run of the server" in line.recv(1 << 16))
    return 0


def _call_behind_a_closed_connection_to_the_page(ports: Ports, name: str) -> int:
    with _line(ports.page, 0) as first:
        from_port = first.getsockname()[1]
    line = _line(ports.grpc, from_port)
    line.sendall(_registrations(name))
    _await_answer(line)
    return 0


def _closed_call(ports: Ports, name: str) -> int:
    with _line(ports.grpc) as line:
        line.sendall(_registrations(name))
    return 0


def _call_that_is_reset(ports: Ports, name: str) -> int:
    with _line(ports.grpc) as line:
        line.sendall(_registrations(name))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return 0


def _sample_from_the_owners_port(ports: Ports, name: str) -> int:
    return _sample(_line(ports.page, ports.owner))


def _sample_from_the_owners_port_by_range(ports: Ports, name: str) -> int:
    return _sample(_line_by_range(ports.page, ports.owner))


def _call_from_the_owners_port(ports: Ports, name: str) -> int:
    line = _line_by_range(ports.grpc, ports.owner_elsewhere)
    line.sendall(_registrations(name))
    _await_answer(line)
    return 0


def _closed_call_from_the_owners_port(ports: Ports, name: str) -> int:
    with _line_by_range(ports.grpc, ports.owner_elsewhere) as line:
        line.sendall(_registrations(name))
    return 0


def _closed_put(ports: Ports, name: str) -> int:
    """The server sees no end of a connection before it has read what is behind the first request."""
    with _line(ports.door) as line:
        line.sendall(_put(name) + _post(300_000) + bytes(299_000))
    return 0


def _half_closed_put(ports: Ports, name: str) -> int:
    with _line(ports.door) as line:
        line.sendall(_put(name) + _post(300_000) + bytes(299_000))
        line.shutdown(socket.SHUT_WR)
    return 0


WAYS: dict[str, Callable[[Ports, str], int]] = {
    way.__name__.strip("_").replace("_", " "): way
    for way in (
        _sample_behind_a_closed_call,
        _put_behind_a_closed_call,
        _direct_behind_a_closed_call,
        _call_behind_a_closed_connection_to_the_page,
        _closed_call,
        _call_that_is_reset,
        _sample_from_the_owners_port,
        _sample_from_the_owners_port_by_range,
        _call_from_the_owners_port,
        _closed_call_from_the_owners_port,
        _closed_put,
        _half_closed_put,
    )
}


def _try(way: str, ports: list[Ports]) -> int:
    """In the other user's process."""
    return sum(_attempt(WAYS[way], at, f"{way}-{attempt}") for attempt, at in enumerate(ports))


def _attempt(way: Callable[[Ports, str], int], ports: Ports, name: str) -> int:
    try:
        return way(ports, name)
    except OSError as error:
        if error.errno not in (*_PORT_TAKEN, *_SERVER_CLOSED):
            raise
        return 0


# -- the server --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server_on_loopback() -> Iterator[ServerThread]:
    """A server with gRPC, page, door and direct port on loopback. Partition train has row r."""
    any_port = f"{_HOST}:0"
    listening = {"http": any_port, "http_door": any_port, "direct": any_port}
    server = ServerThread(ServerConfig(listen=(any_port,), limits=Limits(memory_bytes=64 << 20), **listening))  # type: ignore[arg-type]
    try:
        with connect(server.addresses[0], transport="grpc") as client:
            client.register_partition("train", ["x"], 0, ["t"])
            client.put_samples(["r"], "train", {"x": [1]})
        yield server
    finally:
        server.stop()


def went_through(server: ServerThread, way: str, attempts: int, uid: int = STRANGER) -> int:
    """How many attempts of a user the server has carried out."""
    found = server.server
    addresses = (*found.addresses, found.http_address, found.http_door_address, found.direct_address)
    at = [int(str(address).rpartition(":")[2]) for address in addresses]
    with connect(server.addresses[0], transport="grpc") as client, contextlib.ExitStack() as owners:
        before = client.partition("train").rows
        other = owners.enter_context(socket.create_server((_HOST, 0), backlog=attempts))
        to = (at[0], other.getsockname()[1])
        lines = [[owners.enter_context(_line(port)).getsockname()[1] for port in to] for _ in range(attempts)]
        ports = [Ports(*at, *line) for line in lines]
        answered: int = user(uid).run(_try, way, ports)
    with contextlib.closing(HTTPConnection(_HOST, at[2], timeout=_TIMEOUT_S)) as door:
        door.request("GET", "/v1/partitions/train")  # behind what the door has been sent
        door.getresponse().read()
    with connect(server.addresses[0], transport="grpc") as client:
        made = [found.partition_id for found in client.partitions() if found.partition_id != "train"]
        for name in made:
            client.drop_partition(name)
        return max(answered, len(made) + client.partition("train").rows - before)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of: {', '.join(WAYS)} (default: all)")
    parser.add_argument("--attempts", type=int, default=1000, help="of each way (default: %(default)d)")
    given = parser.parse_args()
    total = 0
    with server_on_loopback() as server:
        for way in given.ways or WAYS:
            batches = [min(_BATCH, given.attempts - begin) for begin in range(0, given.attempts, _BATCH)]
            count = sum(went_through(server, way, size) for size in batches)
            total += count
            sys.stdout.write(f"{way}: {count} of {given.attempts} went through\n")
            sys.stdout.flush()
    return int(total > 0)


if __name__ == "__main__":
    raise SystemExit(main())
