"""A server without sockets, with a few rows, made anew for every input, so that an input means the same in every run.

Claims, sessions and reservations are numbered from the same number on, so an input can name what it made before. Calls
that wait are given a few turns of the event loop and are then cancelled, as by a caller that hangs up. The arena is
shared by all worlds: no target looks at values that another input has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgpack
import numpy as np
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.hostile.fuzz.inputs import pieces

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import OpenSession
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_endpoint import LocalEndpoint
from dataplane_server.service.local.local_methods import local_methods
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import frame_prefix

SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
INCARNATION = "0123456789ab"
LIMITS = Limits(
    memory_bytes=1 << 16,
    max_rows=256,
    max_rows_per_call=128,
    remembered_claims=64,
    remembered_events=256,
    bookkeeping_bytes=1 << 20,
)
TAGS: list[dict[str, object]] = [{"std": 0.5, "source": "math", "weight_version": 3}, {"std": -1, "n": None}]
"""Of the two rows."""
_TURNS = 8


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """The event loop of all worlds of this process."""
    return asyncio.new_event_loop()


@functools.cache
def _arena() -> Arena:
    return Arena(LIMITS.memory_bytes, shared=True)


class World:
    """Partition "p": fields x (jagged int64), y (dense float32), o (objects); tasks a and b; rows s0 and s1."""

    def __init__(self) -> None:
        self.plane = DataPlane(LIMITS, incarnation=INCARNATION, first_generation=1)
        metrics = Metrics(self.plane, lambda: True)
        self.shell = Shell(self.plane, metrics)
        self.servicer = DataPlaneServicer(self.shell, Values(self.plane, _arena()), metrics)
        self.messages = Messages(LIMITS)
        methods = local_methods(LocalCalls(self.shell, Values(self.plane, _arena()), metrics), self.servicer)
        self.endpoint = LocalEndpoint(self.shell, _arena(), metrics, methods)

    async def fill(self) -> None:
        self.shell.apply(OpenSession("", "client", 3600.0))
        await self.servicer.RegisterPartition(register(), None)
        await self.servicer.PutSamples(_stream(put_frame()), None)

    async def call(self, verb: str, data: bytes) -> object:
        """The answer to a call as over gRPC; None if it waits. data: the request, or the pieces of a stream of them."""
        method, serve = SERVICE.methods_by_name[verb], getattr(self.servicer, verb)
        if method.client_streaming:
            return await _within_turns(serve(_stream(*pieces(data)), None))
        request = self.messages.parse(GetMessageClass(method.input_type), data)
        if method.server_streaming:
            return [frame async for frame in serve(request, None)]
        return await _within_turns(serve(request, None))

    def end(self) -> None:
        """End everything that waits, and check the laws of the core."""
        self.shell.drain()
        self.plane.check_invariants()


async def calls(world: World, requests: list[tuple[str, bytes]]) -> None:
    """Calls, one after the other. Raises what is no Refusal."""
    await world.fill()
    for verb, data in requests:
        with contextlib.suppress(Refusal):
            answer = await world.call(verb, data)
            if isinstance(answer, Message):
                answer.SerializeToString()
    world.end()


def register() -> pb.RegisterPartitionRequest:
    return pb.RegisterPartitionRequest(
        request_id="r0",
        partition_id="p",
        fields=["x", "y", "o"],
        per_token_fields=["x"],
        tasks=["a", "b"],
        num_samples=4,
        enums={"y": pb.EnumNames(names=["low", "high"])},
    )


def put_frame() -> bytes:
    """The put of both rows, as one frame."""
    header = pb.PutSamplesHeader(
        request_id="r1",
        partition_id="p",
        sample_ids=["s0", "s1"],
        columns=[
            pb.Column(name="x", kind=pb.FIELD_KIND_JAGGED, data_type=pb.DATA_TYPE_INT64, row_lengths=_int64s(2, 1)),
            pb.Column(name="y", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_FLOAT32),
            pb.Column(name="o", kind=pb.FIELD_KIND_OBJECT, row_lengths=_int64s(1, 2)),
        ],
        row_tags=list(map(msgpack.packb, TAGS)),
        sequence_lengths=_int64s(2, 1),
    )
    values = bytes(3 * 8) + bytes(2 * 4) + b"\xc0\xa1a"
    return frame_prefix(header.SerializeToString(), 0, len(values)) + values


def _int64s(*numbers: int) -> bytes:
    return np.array(numbers, "<i8").tobytes()


async def _stream(*frames: bytes) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


async def _within_turns(call: Coroutine[Any, Any, object]) -> object:
    """The answer; None if the call still waits after some turns of the event loop, and was cancelled."""
    task = asyncio.ensure_future(call)
    for _ in range(_TURNS):
        if task.done():
            return task.result()
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return None
