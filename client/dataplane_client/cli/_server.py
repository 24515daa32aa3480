"""Calls of the command line to a server: over gRPC, without retries.

The client's own transport repeats calls until their deadline and loads shared memory and numpy. A command should fail
at once when the server is not reachable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc
import typer
from google.protobuf.message import Message

from dataplane_client._connect.channel import Connection
from dataplane_client.cli._output import fail
from dataplane_client.credentials import Credentials
from dataplane_client.errors import DataPlaneError, UnavailableError
from rl_dataplane.v1 import data_plane_pb2 as pb

_PAGE_PARTITIONS = 1024
_HANDSHAKE_S = 1.0


class Server:
    """A connection to a server; a context manager. Raises ValueError for a malformed address.

    timeout_s: the deadline of each call.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._connection = Connection(address, None)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def call(self, verb: str, request: Message) -> Any:
        """Call a method and return its response. Raises DataPlaneError."""
        try:
            return getattr(self._connection.stub, verb)(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            from dataplane_client._connect.error_table import translated  # only a command that fails needs it

            failed = translated(error, verb, self.address)
            failed.message = failed.message.removeprefix(f"{verb} ")  # users know commands, not RPCs
            if isinstance(failed, UnavailableError) and not failed.reason:
                failed.message = f"no server answers {failed.message}"
                if mismatch := _tls_mismatch(self.address):
                    failed.message = f"no server answers at {self.address}: {mismatch}"
            failed.args = (failed.message,)
            raise failed from None

    def partitions(self) -> list[pb.Partition]:
        """All partitions, by id. Raises DataPlaneError."""
        request, listed = pb.ListPartitionsRequest(page_size=_PAGE_PARTITIONS), []
        while True:
            response = self.call("ListPartitions", request)
            listed += response.partitions
            if not response.next_page_token:
                return listed
            request.page_token = response.next_page_token


def _tls_mismatch(address: str) -> str:
    """Why a call to this address failed, if one side speaks TLS and the other does not; otherwise "". Takes 1 s at most
    for each of connection and handshake.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:"):
        return ""
    import socket
    import ssl

    encrypts = Credentials.from_environment().ca is not None
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is sent: only whether the server speaks TLS counts
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _HANDSHAKE_S) as plain,
            unchecked.wrap_socket(plain),
        ):
            return "" if encrypts else "the server speaks TLS: set DATAPLANE_TLS_CA to the file of its CA"
    except ssl.SSLError as error:
        plain_text = error.reason == "WRONG_VERSION_NUMBER"
        return "the server does not speak TLS: unset DATAPLANE_TLS_CA" if encrypts and plain_text else ""
    except OSError:
        return ""


def open_server(address: str, timeout_s: float) -> Server:
    """Connect to a server. A malformed address ends the command with exit code 2."""
    try:
        return Server(address, timeout_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def server_or_exit(address: str, timeout_s: float) -> Iterator[Server]:
    """As open_server, for a block in which an error of a call ends the command with exit code 1."""
    with open_server(address, timeout_s) as server:
        try:
            yield server
        except DataPlaneError as error:
            fail(str(error))
