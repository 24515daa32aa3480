"""Calls of the command line to a server: small ones over gRPC, each made once.

The client's own transport repeats calls until their deadline, and brings shared memory and numpy with it. A person who
asks how a server is doing wants to know now that it does not answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc
import typer
from google.protobuf.message import Message

from dataplane_client._channel import CHANNEL_OPTIONS, checked_target
from dataplane_client.cli._output import fail
from dataplane_client.errors import DataPlaneError
from rl_dataplane.v1.data_plane_pb2_grpc import DataPlaneServiceStub


class Server:
    """A server at an address. A context manager; raises ValueError for what is no address.

    timeout_s: how long a call may take.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(checked_target(address), options=CHANNEL_OPTIONS)
        self._stub: Any = DataPlaneServiceStub(self._channel)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def ask(self, verb: str, request: Message) -> Any:
        """Call a method. Raises DataPlaneError."""
        try:
            return getattr(self._stub, verb)(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            from dataplane_client._error_table import translated  # not loaded by a command that succeeds

            raise translated(error, verb, self.address) from None


def server_at(address: str, timeout_s: float) -> Server:
    """A server for the calls of a command, which a malformed address ends with exit code 2."""
    try:
        return Server(address, timeout_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def asked(address: str, timeout_s: float) -> Iterator[Server]:
    """A server for the calls of one command: one that fails ends it with exit code 1, a malformed address with 2."""
    with server_at(address, timeout_s) as server:
        try:
            yield server
        except DataPlaneError as error:
            fail(str(error))
