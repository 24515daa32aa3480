"""Calls of the command line to a server: over gRPC, without retries.

The client's own transport repeats calls until their deadline and loads shared memory and numpy. A command should fail
at once when the server is not reachable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import typer
from google.protobuf.message import Message

from dataplane_client._connect.channel import Connection
from dataplane_client._connect.tls_probe import SERVER_SPEAKS_TLS, speaks_tls
from dataplane_client.cli._output import fail
from dataplane_client.errors import DataPlaneError, UnavailableError
from rl_dataplane.v1 import data_plane_pb2 as pb

_PAGE_PARTITIONS = 1024


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

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(self, verb: str, request: Message) -> Any:
        """Call a method and return its response. Raises DataPlaneError."""
        try:
            return getattr(self._connection.stub, verb)(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            # Only a command that fails needs them.
            from dataplane_client._connect.connection_errors import MAY_DIFFER_IN_TLS
            from dataplane_client._connect.error_table import translated

            failed = translated(error, verb, self.address)
            failed.message = failed.message.removeprefix(f"{verb} ")  # users know commands, not RPCs
            if isinstance(failed, UnavailableError) and not failed.reason:
                failed.message = f"no server answers {failed.message}"
                may_lack_tls = MAY_DIFFER_IN_TLS in failed.message and not self._connection.secured.encrypts
                if may_lack_tls and speaks_tls(self.address):
                    failed.message = f"no server answers at {self.address}: {SERVER_SPEAKS_TLS}"
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


def answer_of(address: str, timeout_s: float, verb: str, request: Message) -> Any:
    """The response to one call. An error ends the command with exit code 1."""
    with server_or_exit(address, timeout_s) as server:
        return server.call(verb, request)
