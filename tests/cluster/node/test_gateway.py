"""Clients of a node: their calls reach the coordinator, and their reads end in the node's own memory."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import pytest
from tests.cluster.node.conftest import MIB, Node, arena_of, read, rows
from tests.integration.wire.local_peer import HEAD, Lifeline, Peer, claim, framed
from tests.ranks import refused_port
from tests.waiting import soon

from dataplane_client._connect.deadline import Deadline
from dataplane_client._verbs._async.carriers import AsyncArenaCarrier
from dataplane_client._verbs._async.frame_calls import AsyncFrameCalls
from dataplane_client._verbs._sync.carriers import ArenaCarrier
from dataplane_client._verbs._sync.frame_calls import FrameCalls
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, OutOfSpaceError, UnavailableError
from dataplane_server.cluster.node.gateway import Gateway
from dataplane_server.cluster.node.line import Membership
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.local.local_connection import LocalConnection
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

STATUS = plane_pb.GetServerStatusRequest()


async def joined(client: AsyncFrameCalls) -> Peer:
    """A connection of a client to its node, as a peer that says what it likes."""
    peer = await asyncio.to_thread(Peer, arena_of(client).address)
    request = pb.JoinRequest(session=arena_of(client).token)
    await asyncio.to_thread(peer.call, pb.LOCAL_METHOD_JOIN, request, pb.JoinResponse)
    return peer


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_client_gets_the_memory_of_its_node_and_calls_the_coordinator(node: Node) -> None:
    client = await node.attach()
    arena = arena_of(client)
    assert (arena.inline_bytes, arena.can_write) == (0, True)
    assert arena.calls_at == (node.membership.host, node.membership.port)
    arena.writable[5] = 77
    assert node.arena.memory[5] == 77
    assert (await client.unary("GetServerStatus", STATUS, 20.0)).nodes[1].number == node.membership.node
    assert (node.gateway.clients, node.sessions) == (1, 1)


async def test_a_client_that_cannot_reach_the_coordinator_finds_that_at_once(node: Node) -> None:
    arena = await node.map()
    with refused_port() as port:
        arena.calls_at = ("127.0.0.1", port)
        with pytest.raises(ConnectionRefusedError):
            await AsyncFrameCalls("node 1", AsyncArenaCarrier(arena)).reach(20.0)


async def test_a_call_whose_connection_broke_does_not_keep_the_memory_mapped(node: Node) -> None:
    """The node takes an arena for used until its clients have unmapped it."""
    listener = socket.create_server(("127.0.0.1", 0))
    arena = await node.map()
    arena.calls_at = listener.getsockname()[:2]
    mapped = weakref.ref(arena)

    def call(calls: FrameCalls) -> None:
        with pytest.raises(UnavailableError):
            calls.unary("GetServerStatus", STATUS, 20.0)

    calling = asyncio.create_task(asyncio.to_thread(call, FrameCalls("this node", ArenaCarrier(arena))))
    del arena
    gc.disable()
    try:
        connection, _ = await asyncio.to_thread(listener.accept)
        assert await asyncio.to_thread(connection.recv, 1 << 16)
        connection.close()
        await calling
        del calling
        await soon(lambda: mapped() is None)  # the thread has just gone on
    finally:
        gc.enable()
        listener.close()


async def test_the_coordinator_learns_that_a_client_is_gone(node: Node) -> None:
    client, other = await node.attach(), await node.attach()
    await client.unary("GetServerStatus", STATUS, 20.0)
    await client.close()
    arena_of(client).leave()
    await soon(lambda: node.sessions == 1)
    assert (node.orphans, node.gateway.clients, node.gateway.former_clients) == ((), 1, 0)
    await other.unary("GetServerStatus", STATUS, 20.0)


async def test_a_client_that_is_gone_holds_no_memory_of_its_node(node: Node) -> None:
    client = await node.attach()
    column = plane_pb.Column(
        name="x", kind=plane_pb.FIELD_KIND_DENSE, data_type=plane_pb.DATA_TYPE_INT64, row_shape=[1000]
    )
    header = plane_pb.PutSamplesHeader(partition_id="p", sample_ids=["mine"], request_id="put", columns=[column])
    request = pb.LocalPutRequest(header=header, handle=1)
    call = client._connections.call(
        "PutSamples", pb.LOCAL_METHOD_PUT, request, pb.LocalWriteResponse, Deadline(20.0), ""
    )
    assert (await call).HasField("reservation")

    def used() -> int:
        return node.server.plane.nodes()[1].used

    assert used() == 8000
    arena_of(client).leave()
    await soon(lambda: not used())


async def test_a_call_ends_when_its_client_leaves_it(node: Node) -> None:
    client = await node.attach()
    call = asyncio.create_task(client.unary("ClaimSamples", claim(99), 60.0))
    await soon(lambda: node.server.plane.totals().waiting_claims == 1)
    call.cancel()
    await soon(lambda: not node.server.plane.totals().waiting_claims)


async def test_half_a_request_counts_against_the_bound_of_all_connections(node: Node) -> None:
    node.gateway.buffers._most_bytes = 1 << 20
    client = await node.attach()
    with closing(await joined(client)) as first, closing(await joined(client)) as second:
        for peer in (first, second):
            half = HEAD.pack(19 << 20, pb.LOCAL_METHOD_PUT) + bytes(600 << 10)
            await asyncio.to_thread(peer.socket.sendall, half)
        assert await asyncio.to_thread(lambda: first.ended)
        await soon(lambda: node.gateway.buffers.held_bytes == HEAD.size + (600 << 10))


async def test_a_client_without_a_session_or_half_way_through_a_request_is_closed_after_a_while(node: Node) -> None:
    loop = asyncio.get_running_loop()
    for part in (b"", HEAD.pack(8, pb.LOCAL_METHOD_JOIN)):
        here, there = socket.socketpair()
        with here:
            here.sendall(part)
            await loop.connect_accepted_socket(partial(LocalConnection, node.gateway, there, 0.02), there)
            assert await asyncio.to_thread(here.recv, 1) == b""


async def test_a_client_lets_go_no_faster_than_the_coordinator_reads(node: Node) -> None:
    reads, got = asyncio.Event(), bytearray()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.pack(0, pb.LOCAL_OUTCOME_UNSPECIFIED))
        await reads.wait()
        while data := await reader.read(1 << 20):
            got.extend(data)
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0, limit=1 << 16)
    node.gateway.join(Membership("127.0.0.1", server.sockets[0].getsockname()[1], b"", 2))
    await node.gateway.link()
    peer = await asyncio.to_thread(Lifeline, str(node.path))
    handles = range(500)
    frame = framed(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=handles))
    sending = asyncio.create_task(asyncio.to_thread(peer.socket.sendall, frame * 8_000))
    await soon(lambda: node.gateway._held_back)
    assert node.gateway.buffers.held_bytes < 2 * MIB
    reads.set()
    await sending
    session = peer.attached.session
    peer.close()
    gone = framed(pb.LOCAL_METHOD_CLIENT_GONE, pb.ClientGoneRequest(session=session))
    await soon(lambda: got.endswith(gone))
    let_go = framed(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=handles, session=session))
    assert len(got) > 8_000 * len(let_go)
    assert got.count(let_go) == 8_000
    server.close()


# -- reads -------------------------------------------------------------------------------------------------------------


async def test_readers_at_the_same_time_wait_for_one_fetch(node: Node) -> None:
    clients = [await node.attach() for _ in range(3)]
    node.elsewhere.go.clear()
    reads = [asyncio.create_task(read(client, 5)) for client in clients]
    await soon(lambda: node.fetching.hit_bytes == 2 * 8000)
    reads[0].cancel()  # the one that began the fetch
    node.elsewhere.go.set()
    for other in reads[1:]:
        assert np.array_equal(await other, rows()[5].numpy())
    assert len(node.elsewhere.calls) == 1


async def test_a_node_that_is_gone_makes_the_read_fail_and_the_next_one_try_again(node: Node) -> None:
    client = await node.attach()
    node.elsewhere.error = Refusal(Reason.NODE_LOST, "node 2 is gone")
    with pytest.raises(UnavailableError, match="node 2") as caught:
        await read(client, 0)
    assert caught.value.reason == "NODE_LOST"
    assert node.cache.used_bytes == 0
    node.elsewhere.error = None
    assert np.array_equal(await read(client, 0), rows()[0].numpy())


async def test_a_read_that_does_not_fit_into_the_cache_is_refused(node: Node, producer: DataPlaneClient) -> None:
    large = np.zeros((1, 5 << 17), np.int64)
    await asyncio.to_thread(producer.put_samples, ["s0"], "p", {"x": large})
    with pytest.raises(OutOfSpaceError, match="4194304") as caught:
        await read(await node.attach(), 0)
    assert caught.value.reason == "LIMIT_REACHED"


async def test_what_a_client_reads_stays_until_it_lets_it_go(node: Node, producer: DataPlaneClient) -> None:
    client = await node.attach()
    view = await read(client, 0, views=True)
    for number in range(1, 8):  # more than the cache holds, one after the other
        large = np.full((1, 1 << 18), number, np.int64)
        await asyncio.to_thread(producer.put_samples, [f"s{number}"], "p", {"x": large})
        assert (await read(client, number) == number).all()
    assert np.array_equal(view, rows()[0].numpy())
    del view
    node.elsewhere.calls.clear()
    await soon(lambda: not any(copy.users for copy in node.cache._known.values()))


async def test_a_client_that_dies_holds_nothing(node: Node) -> None:
    client = await node.attach()
    view = await read(client, 0, views=True)
    arena_of(client).leave()
    await soon(lambda: not any(copy.users for copy in node.cache._known.values()))
    assert len(view)


async def test_runs_that_are_no_lease_are_refused(node: Node) -> None:
    one, none = np.ones(1, "<i8").tobytes(), b""
    node_one = np.ones(1, "<u4").tobytes()
    sizes = [np.array([size], "<i8").tobytes() for size in (0, -1, 1 << 62)]
    wrong = [
        pb.ArenaRuns(nodes=node_one, offsets=one, sizes=one, versions=none),
        pb.ArenaRuns(nodes=none, offsets=one, sizes=one, versions=one),
        pb.ArenaRuns(nodes=node_one, offsets=sizes[1], sizes=one, versions=one),
        *(pb.ArenaRuns(nodes=node_one, offsets=one, sizes=size, versions=one) for size in sizes),
    ]
    client = await node.attach()
    for handle, runs in enumerate(wrong):
        with pytest.raises((InvalidArgumentError, OutOfSpaceError)):
            await client.fetch(handle, runs, Deadline(20.0), "")
    assert node.cache.used_bytes == 0
    assert np.array_equal(await read(client, 0), rows()[0].numpy())


async def test_other_calls_are_refused_at_the_node(node: Node) -> None:
    client = await node.attach()
    with closing(await joined(client)) as peer:
        reason, said = await asyncio.to_thread(peer.refused, pb.LOCAL_METHOD_GET_SERVER_STATUS)
    assert (reason, said) == ("INVALID_REQUEST", "unknown method")


# -- the coordinator's end ---------------------------------------------------------------------------------------------


async def test_attached_clients_outlive_the_coordinator_as_former_ones(node: Node) -> None:
    client, other = await node.attach(), await node.attach()
    view = await read(client, 0, views=True)
    await node.server.stop(0.0)
    await soon(lambda: node.gateway.former_clients == 2)
    assert node.gateway.clients == 0
    with pytest.raises(UnavailableError):
        await client.unary("GetServerStatus", STATUS, 20.0)
    assert np.array_equal(view, rows()[0].numpy())
    arena_of(other).leave()
    await soon(lambda: node.gateway.former_clients == 1)
    del view  # a former client lets go of what it read
    await soon(lambda: not any(copy.users for copy in node.cache._known.values()))


async def test_without_a_coordinator_clients_are_told_to_come_back(node: Node) -> None:
    node.gateway.leave()
    with pytest.raises(ConnectionResetError):
        await node.attach()
    node.gateway.join(node.membership)
    await node.gateway.link()
    assert np.array_equal(await read(await node.attach(), 6), rows()[6].numpy())


async def test_a_line_that_breaks_ends_calls_but_not_what_clients_hold(node: Node) -> None:
    client = await node.attach()
    view = await read(client, 0, views=True)
    token = arena_of(client).token
    call = asyncio.create_task(client.unary("ClaimSamples", claim(99), 60.0))
    await soon(lambda: node.server.plane.totals().waiting_claims == 1)
    assert node.gateway._line is not None
    cast("asyncio.Transport", node.gateway._line._transport).abort()
    with pytest.raises(UnavailableError):
        await call
    await soon(lambda: node.orphans == (token,))
    with pytest.raises(UnavailableError):
        await client.unary("GetServerStatus", STATUS, 20.0)
    await node.gateway.link()
    again = await node.attach()
    assert np.array_equal(await read(again, 1), rows()[1].numpy())
    assert node.gateway.has(token)
    del view
    arena_of(client).leave()
    await soon(lambda: not node.gateway.has(token))
    assert node.orphans == (token,)
    node.server._endpoint.release_orphans(node.orphans)
    await soon(lambda: not node.orphans and node.sessions == 1)


async def test_a_second_line_of_a_node_takes_the_place_of_the_first(node: Node) -> None:
    client = await node.attach()
    other = Gateway(node.arena, node.cache, node.fetching)
    other.join(node.membership)
    await other.link()
    await soon(lambda: node.gateway.former_clients == 1)
    assert node.orphans == (arena_of(client).token,)
    await other.close()


async def test_a_node_without_the_secret_has_no_line(node: Node) -> None:
    node.gateway.join(replace(node.membership, secret=bytes(16)))
    await node.gateway.link()
    with pytest.raises(ConnectionResetError):
        await node.attach()


@pytest.mark.parametrize(
    "frame",
    [HEAD.pack(0, pb.LOCAL_METHOD_READ), HEAD.pack(1, pb.LOCAL_METHOD_ATTACH) + b"\xff", HEAD.pack(21 << 20, 1)],
    ids=["a call", "malformed", "too large"],
)
async def test_a_line_that_breaks_the_protocol_is_closed(node: Node, frame: bytes) -> None:
    request = pb.RelayRequest(secret=node.membership.secret, node=node.membership.node)
    with closing(Peer(await _connected(node))) as line:
        await asyncio.to_thread(line.call, pb.LOCAL_METHOD_RELAY, request, pb.RelayResponse)
        line.socket.sendall(frame)
        assert await asyncio.to_thread(lambda: line.ended)
    with closing(Peer(await _connected(node))) as line:
        assert (await asyncio.to_thread(line.refused, pb.LOCAL_METHOD_JOIN, b""))[0] == "INVALID_REQUEST"
        said = await asyncio.to_thread(line.refused, pb.LOCAL_METHOD_ATTACH, b"")
        assert said == ("INVALID_REQUEST", "the first request on a connection must be JOIN or RELAY")


async def _connected(node: Node) -> socket.socket:
    address = (node.membership.host, node.membership.port)
    return await asyncio.to_thread(socket.create_connection, address)


async def test_a_new_coordinator_makes_all_copies_old(node: Node) -> None:
    await read(await node.attach(), 0)
    node.gateway.join(node.membership)
    await node.gateway.link()
    await read(await node.attach(), 0)
    assert len(node.elsewhere.calls) == 2


async def test_the_coordinator_does_not_hear_that_clients_are_gone_when_the_node_ends(node: Node) -> None:
    client = await node.attach()
    await client.unary("GetServerStatus", STATUS, 20.0)
    await node.gateway.close()
    await soon(lambda: node.orphans == (arena_of(client).token,))
    assert not node.path.exists()
