"""Values of a cluster, for calls that the coordinator serves: some are on its own node, others are fetched.

A node actor does what needs the bytes of a write: it copies what rows have already and takes digests; and another one
takes the bytes into its mirror, if there is one. So what happens to the rows meanwhile is found out when the write is
finished: the core refuses an append whose rows have changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable

import numpy as np
from xxhash import xxh3_128_digest

from dataplane_server.arena_streams import to_its_end
from dataplane_server.cluster.asking import ANSWER_S, NoAnswer, answer_of, answer_while
from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.coordinator.members import Member, Members
from dataplane_server.cluster.coordinator.mirrors import Mirrors
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.requests import ShareReservation
from dataplane_server.core.calls.values import Int64Array, Run, Runs
from dataplane_server.core.rows.regions import WITHIN_NODE, node_of
from dataplane_server.service.messages.frames import SENT_CHUNK_BYTES, in_message
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import in_chunks
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import frame_prefix

_WINDOW_BYTES = 64 << 20
"""That are fetched at once for one read over gRPC."""


class ClusterValues(Values):
    """The values of all nodes. A write waits for its mirror before it is applied."""

    stored_at_once = False

    def __init__(self, shell: Shell, members: Members, mirrors: Mirrors, home: HomeArena) -> None:
        super().__init__(shell.plane, home)
        self._shell = shell
        self._members = members
        self._mirrors = mirrors
        self._home = home
        self._lines = ByteLines()

    def digests(self, reservation: Reservation) -> bytes | Awaitable[bytes]:
        layout = self._plane.once_layout(reservation.ticket)
        first = [copy.target for copy in reservation.copies[:1]] + [run.offset for run in reservation.runs[:1]]
        if not first:
            return b"" if layout is None else xxh3_128_digest(b"") * layout[1].size  # all are without bytes
        node = node_of(first[0])
        if layout is None and not reservation.copies and not self._mirrors.follows(node):
            return b""
        return self._by_node(node, reservation, layout)

    async def _by_node(
        self, node: int, reservation: Reservation, layout: tuple[Int64Array, Int64Array] | None
    ) -> bytes:
        """Have the node of a write copy what its rows have, and take the digests of what is put once; and its mirror,
        all that is written.
        """
        member, digests = self._members.get(node), b""
        # Nodes write where it is reserved, so a repetition of the request must not free that before they have answered.
        self._shell.apply(ShareReservation(reservation.ticket))
        if reservation.copies:
            await to_its_end(self._copied(member, member.actor.copy.remote(member.secret, reservation.copies)))
        if layout is not None:
            digests = await answer_of(member.actor.digests.remote(*(part.ravel() for part in layout)), node)
        if self._mirrors.follows(node):
            copied = [Run(copy.target, copy.size_bytes) for copy in reservation.copies]
            await to_its_end(self._mirrors.follow(node, Runs.of([*copied, *reservation.runs])))
        return digests

    async def _copied(self, member: Member, call: Awaitable[None]) -> None:
        """Wait until a node has copied, however long that takes. Ray cannot cancel that call, and may lose its answer,
        so its target is free only when it answers, the node has registered again, which ends it, or is lost. A
        coordinator that stops waits no longer than for other answers: nodes register with the next one. Refusal
        NODE_LOST.
        """
        until = time.monotonic() + ANSWER_S

        def may_copy() -> bool:
            stops = time.monotonic() > until and self._plane.totals().draining
            return self._members.find(member.number) is member and not stops

        try:
            await answer_while(may_copy, call, member.number)
        except NoAnswer:
            member.is_doubted = True
            await answer_while(may_copy, asyncio.Event().wait(), member.number)

    def complete(self, reservation: Reservation) -> None:
        """The node has done it."""

    async def frames(self, header: pb.ReadColumnsHeader, runs: Runs) -> AsyncIterator[bytes]:
        head: bytes | None = header.SerializeToString()
        offset = 0
        for window in in_chunks(runs, _WINDOW_BYTES):
            for piece in await self._bytes_of(window):
                for start in range(0, len(piece), SENT_CHUNK_BYTES):
                    chunk = piece[start : start + SENT_CHUNK_BYTES]
                    yield in_message(b"".join((frame_prefix(head, offset, len(chunk)), chunk)))
                    offset, head = offset + len(chunk), None
        if head is not None:
            yield in_message(pb.ReadColumnsResponse(header=header).SerializeToString())

    async def _bytes_of(self, runs: Runs) -> list[memoryview]:
        pieces = {run: self._home.view(run) for run in runs if self._home.has(run)}
        by_node: dict[int, list[Run]] = {}
        for run in runs:
            if run not in pieces:
                by_node.setdefault(node_of(run.offset), []).append(run)
        for taken in await asyncio.gather(*(self._taken(node, of_node) for node, of_node in by_node.items())):
            pieces |= taken
        return [pieces[run] for run in runs]

    async def _taken(self, node: int, runs: list[Run]) -> dict[Run, memoryview]:
        wanted, place = Runs.of(runs), self._members.place_of(node)
        data = np.empty(wanted.sizes.sum(), np.uint8).data
        within = Runs(wanted.offsets & WITHIN_NODE, wanted.sizes)
        await self._lines.read(place, node, within, [data])
        ends = np.cumsum(wanted.sizes).tolist()
        return {run: data[end - run.size_bytes : end] for run, end in zip(runs, ends, strict=True)}

    async def close(self) -> None:
        """End reads of other nodes."""
        await self._lines.close()
