"""A coordinator for tests of one node: it relays to an ordinary server, and calls that server's memory the arena of
node 2. The node under test is node 1, so each value that one of its clients reads comes from another node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable

import numpy as np

from dataplane_server.cluster.node.relay import Relay
from rl_dataplane.v1 import local_pb2 as pb

HEAD = struct.Struct("<IHxx")
SECRET = b"a secret of the test"


class RelayServer:
    """Relays to the socket at path. gone: connections that ended with CLIENT_GONE. lost: those that ended without.
    methods: of all requests. version: of all runs.
    """

    def __init__(self, path: str) -> None:
        self.gone = self.lost = 0
        self.methods: list[int] = []
        self.version = 7
        self.ended = asyncio.Condition()
        self._path = path
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Relay("127.0.0.1", self._server.sockets[0].getsockname()[1], SECRET, 1)

    async def kill(self) -> None:
        """Break all connections and listen no more."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self.until(lambda: not self._writers)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of the connections that have ended."""
        async with self.ended:
            await asyncio.wait_for(self.ended.wait_for(holds), 20.0)

    async def _serve(self, node: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        self._writers.add(to_node)
        try:
            _, body = await next_frame(node)
            request = pb.RelayRequest.FromString(body)
            assert (request.secret, request.node) == (SECRET, 1)
            session, connection = self._attach() if request.attaches else (b"", self._connect())
            server, to_server = await asyncio.open_unix_connection(sock=connection)
            response = pb.RelayResponse(session=session).SerializeToString()
            to_node.write(HEAD.pack(len(response), 0) + response)
            await self._relay(node, to_node, server, to_server)
            self.gone += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            self._writers.discard(to_node)
            to_node.close()
            async with self.ended:
                self.ended.notify_all()

    async def _relay(
        self,
        node: asyncio.StreamReader,
        to_node: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """Until CLIENT_GONE."""
        last = [0]
        answers = asyncio.create_task(self._answer(last, server, to_node))
        try:
            while True:
                method, body = await next_frame(node)
                if method == pb.LOCAL_METHOD_CLIENT_GONE:
                    return
                self.methods.append(method)
                last[0] = method
                to_server.write(HEAD.pack(len(body), method) + body)
        finally:
            answers.cancel()
            to_server.close()

    async def _answer(self, last: list[int], server: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        try:
            while True:
                outcome, body = await next_frame(server)
                if outcome == pb.LOCAL_OUTCOME_UNSPECIFIED and last[0] == pb.LOCAL_METHOD_READ:
                    body = self._elsewhere(pb.LocalReadResponse.FromString(body))
                to_node.write(HEAD.pack(len(body), outcome) + body)
                await to_node.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            to_node.close()

    def _elsewhere(self, response: pb.LocalReadResponse) -> bytes:
        runs = len(response.lease.offsets) // 8
        response.lease.nodes = np.full(runs, 2, "<u4").tobytes()
        response.lease.versions = np.full(runs, self.version, "<i8").tobytes()
        return response.SerializeToString()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self._path)
        return connection

    def _attach(self) -> tuple[bytes, socket.socket]:
        connection = self._connect()
        connection.sendall(HEAD.pack(0, pb.LOCAL_METHOD_ATTACH))
        data, descriptors, _, _ = socket.recv_fds(connection, 4096, 2)
        for descriptor in descriptors:
            os.close(descriptor)
        return pb.AttachResponse.FromString(data[HEAD.size :]).session, connection


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size, number = HEAD.unpack(await reader.readexactly(HEAD.size))
    return number, await reader.readexactly(size)
