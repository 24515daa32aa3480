"""Measure what a coordinator's event loop does for each call, and what Ray takes to move bytes between nodes.

A local Ray cluster of two nodes runs a real coordinator and real node actors. The clients of the benchmark do as little
as they can, so they limit nothing. Rows are put on the one node and claimed, read and committed on the other.

A time is CPU time of the thread that runs the event loop, as the kernel counts it. One sample is the mean of
CALLS_AT_ONCE calls that come at once, as they do at a coordinator that has much to do; one call alone takes longer,
because the loop wakes up for it. Each series is measured several times, and the one with the lowest mean is kept:
other work of the machine only makes times longer.
"""

# ruff: noqa: SLF001  # some functions run inside of the coordinator

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from benchmarks import machine
from benchmarks.scaling.calls import (
    LOGPROBS,
    PARTITION,
    ROW_BYTES,
    TOKENS,
    GrpcClient,
    NodeClient,
    claim_request,
    clear_request,
    commit_header,
    put_header,
    read_request,
    registration,
    release_request,
)
from benchmarks.scaling.check import RealRun
from benchmarks.scaling.cluster import (
    CALLS_AT_ONCE,
    NAMESPACE,
    Busy,
    Samples,
    answer_of,
    in_coordinator,
    local_cluster,
    place_of,
)
from benchmarks.scaling.simulation import Workload

from dataplane_server.cluster.coordinator.starting import Cluster
from dataplane_server.cluster.messages import Beat, BytePlace
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.core.calls.values import Run, Runs
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

SIZES = (1, 8, 16, 64, 256)
MEMBERS = (4, 10, 100, 1_000)
FETCHES = (1 << 10, 1 << 20, 16 << 20)
_SAMPLES = 16  # that the file of inputs has of each series


def measure(repeats: int, rounds: int) -> dict[str, Any]:
    """All inputs of the simulation."""
    with local_cluster() as (cluster, other):
        place = place_of(cluster, other)
        consumer, producer = in_coordinator(cluster, _places)
        calls = _call_times(cluster, producer, consumer, repeats, rounds)
        return {
            "machine": machine.describe(),
            "row": {"tokens": TOKENS, "bytes": ROW_BYTES, "columns": 4},
            "calls_us": {name: _shortened(times) for name, times in sorted(calls.items())},
            "heartbeat_us": min(_heartbeat_us(cluster) for _ in range(repeats)),
            "connection_bytes": _connection_bytes(cluster, producer),
            "check": _check(cluster, producer, consumer),
            "fetch": _fetches(cluster, other, place, repeats),
            "beat_us": _beats_us(cluster, repeats),
        }


def _places(coordinator: Any) -> list[tuple[str, bytes]]:
    """The sockets of nodes and the nonces of their memory, that of the coordinator's own node first."""
    registered = [member.registration for member in coordinator._server.members]
    return [(one.socket, one.nonce) for one in registered]


# -- calls -------------------------------------------------------------------------------------------------------------


def _call_times(
    cluster: Cluster, to_producer: tuple[str, bytes], to_consumer: tuple[str, bytes], repeats: int, rounds: int
) -> Samples:
    """Microseconds by "transport operation rows"."""
    busy = Busy.loop(cluster)
    outside = GrpcClient(cluster.addresses["listen"][0], CALLS_AT_ONCE)
    outside.call("RegisterPartition", [registration()])
    producer, consumer = NodeClient(to_producer, CALLS_AT_ONCE), NodeClient(to_consumer, CALLS_AT_ONCE)
    number = itertools.count()
    best: Samples = {}
    for _, size in itertools.product(range(repeats), SIZES):
        found: Samples = {}
        for _ in range(rounds):
            _round(_Timed(busy, found, "node", size), producer, consumer, next(number))
            _round(_Timed(busy, found, "grpc", size), outside, outside, next(number))
        _keep_best(best, found)
    _keep_best(best, _scattered_reads(busy, producer, consumer, rounds))
    for client in (producer, consumer, outside):
        client.close()
    return best


class _Timed:
    """Names the series of one size of batch."""

    def __init__(self, busy: Busy, samples: Samples, transport: str, rows: int) -> None:
        self.rows = rows
        self._busy, self._samples, self._transport = busy, samples, transport

    def __call__(self, operation: str) -> contextlib.AbstractContextManager[None]:
        return self._busy.series(self._samples, f"{self._transport} {operation} {self.rows}")


def _round(timed: _Timed, producer: Any, consumer: Any, number: int) -> None:
    """The life of CALLS_AT_ONCE batches of rows, from the put to the clear."""
    ids = [[f"sample-{number:06}-{call}-{row:03}" for row in range(timed.rows)] for call in range(CALLS_AT_ONCE)]
    _write(timed, "put", producer, [put_header(some) for some in ids], ROW_BYTES)
    claims = _claims(timed, "claim", consumer, LOGPROBS, f"{number}")
    with timed("read"):
        consumer.read([read_request(claim, LOGPROBS) for claim in claims])
    _write(timed, "commit", consumer, [commit_header(claim.claim_id, timed.rows) for claim in claims], 4 * TOKENS)
    claims = _claims(timed, "claim", consumer, "train", f"{number}")
    with timed("release"):
        consumer.call("ReleaseClaim", [release_request(claim) for claim in claims])
    claims = _claims(timed, "claim", consumer, "train", f"{number} again")
    with timed("read"):
        consumer.read([read_request(claim, "train") for claim in claims])
    with timed("plain_commit"):
        consumer.commit([claim.claim_id for claim in claims])
    with timed("clear"):
        consumer.call("ClearSamples", [clear_request(claim) for claim in claims])


def _write(timed: _Timed, operation: str, client: Any, headers: Sequence[Any], row_bytes: int) -> None:
    verb = "PutSamples" if operation == "put" else "CommitClaim"
    if isinstance(client, GrpcClient):
        with timed(operation):
            client.write(verb, headers, bytes(timed.rows * row_bytes))
        return
    with timed(operation):
        handles = client.reserve(verb, headers)
    with timed("finish"):
        client.finish(handles)


def _claims(timed: _Timed, operation: str, client: Any, task: str, name: str) -> list[pb.ClaimSamplesResponse]:
    requests = [claim_request(task, timed.rows, f"{task} {name} {call}") for call in range(CALLS_AT_ONCE)]
    with timed(operation):
        return client.call("ClaimSamples", requests)  # type: ignore[no-any-return]


def _scattered_reads(busy: Busy, producer: NodeClient, consumer: NodeClient, rounds: int) -> Samples:
    """Reads of rows that were put one by one."""
    found: Samples = {}
    for number, size in itertools.product(range(rounds // 4), SIZES[1:]):
        ids = [f"single-{number}-{size}-{row}" for row in range(CALLS_AT_ONCE * size)]
        for first in range(0, len(ids), CALLS_AT_ONCE):
            producer.finish(
                producer.reserve("PutSamples", [put_header([one]) for one in ids[first : first + CALLS_AT_ONCE]])
            )
        timed = _Timed(busy, found, "node", size)
        claims = _claims(timed, "claim_singles", consumer, LOGPROBS, f"single {number} {size}")
        with timed("read_singles"):
            consumer.read([read_request(claim, LOGPROBS) for claim in claims])
        consumer.call("ClearSamples", [clear_request(claim) for claim in claims])
    return found


def _keep_best(best: Samples, found: Mapping[str, list[float]]) -> None:
    for name, times in found.items():
        if name not in best or np.mean(times[1:]) < np.mean(best[name]):
            best[name] = times[1:]  # the first warms up


def _shortened(times: Sequence[float]) -> list[float]:
    """At most _SAMPLES numbers with the mean and nearly the distribution of these."""
    parts = np.array_split(np.sort(times), min(_SAMPLES, len(times)))
    return [round(float(part.mean()), 1) for part in parts]


def _check(
    cluster: Cluster, producer: tuple[str, bytes], consumer: tuple[str, bytes], seconds: float = 15.0
) -> dict[str, Any]:
    """A workload in real time, for the simulation to agree with; and what the way to an idle coordinator takes."""
    busy = Busy.loop(cluster)
    workload = Workload(3_000.0, 8, 64, nodes=12, ranks=8, sessions=0)
    idle = RealRun("idle", replace(workload, rows_per_s=300.0), producer, consumer)
    idle_s = idle.run(seconds / 3, busy.microseconds)
    _clear(producer)
    run = RealRun("busy", workload, producer, consumer)
    measured = run.run(seconds, busy.microseconds)
    service_s = idle_s["utilisation"] / idle_s["calls_per_s"]
    wire_s = round(idle_s["p50_s"] - service_s, 6)
    return {"workload": asdict(workload), "seconds": seconds, "wire_s": wire_s, "measured": measured}


def _clear(place: tuple[str, bytes]) -> None:
    client = NodeClient(place, 1)
    request = pb.ClearSamplesRequest(
        request_id=f"clear {time.monotonic_ns()}", partition_id=PARTITION, whole_partition=True
    )
    client.call("ClearSamples", [request])
    client.close()


# -- what else takes the loop's time -----------------------------------------------------------------------------------


def _heartbeat_us(cluster: Cluster, sessions: int = 50, times: int = 10) -> float:
    """A heartbeat of a session, when those of all sessions come at once."""
    busy, samples = Busy.loop(cluster), Samples()
    address = cluster.addresses["listen"][0]
    with contextlib.ExitStack() as stack:
        streams = []
        for number in range(sessions):
            options = (("grpc.use_local_subchannel_pool", 1),)
            stub: Any = pb_grpc.DataPlaneServiceStub(stack.enter_context(grpc.insecure_channel(address, options)))
            beats: queue.SimpleQueue[pb.SessionRequest | None] = queue.SimpleQueue()
            stream = stub.Session(iter(beats.get, None))
            beats.put(pb.SessionRequest(open=pb.OpenSession(client_name=f"session {number}")))
            next(stream)
            streams.append(beats)
        for _ in range(times):
            with busy.series(samples, "heartbeat", sessions):
                for beats in streams:
                    beats.put(pb.SessionRequest())
                time.sleep(0.3)  # there is no answer to wait for
        for beats in streams:
            beats.put(None)
    return round(float(np.mean(sorted(samples["heartbeat"])[: times // 2])), 1)


def _beats_us(cluster: Cluster, repeats: int) -> dict[str, float]:
    """A beat of a node actor, by the number of nodes, which know each other."""
    busy = Busy.interpreter(cluster)
    found: dict[str, float] = {}
    for members in MEMBERS:
        in_coordinator(cluster, _add_members, members)
        beat = in_coordinator(cluster, _last_beat)
        samples: Samples = {}
        for _ in range(3 * repeats):
            with busy.series(samples, "beat"):
                for answer in [cluster.coordinator.beat.remote(beat) for _ in range(CALLS_AT_ONCE)]:
                    answer_of(answer)
        found[str(members)] = round(min(samples["beat"]), 1)
    return found


def _last_beat(coordinator: Any) -> Beat:
    """Of a node that knows all others."""
    members = coordinator._server.members
    last: Beat = next(member.beat for member in members if member.beat is not None)
    return replace(last, told=members.added)


def _add_members(coordinator: Any, number: int) -> None:
    """Have the coordinator know this number of nodes, each by a place of its own. The core knows nothing of them."""
    members = coordinator._server.members
    known = list(members)
    for more in range(len(known), number):
        place = replace(known[0].registration.bytes_at, port=more, secret=more.to_bytes(16, "big"))
        name = f"false-{more}"
        registration = replace(known[0].registration, arena_id=name, ray_node=name, bytes_at=place)
        members.add(replace(known[0], number=1_000_000 + more, registration=registration))


def _connection_bytes(cluster: Cluster, place: tuple[str, bytes], connections: int = 400) -> int:
    """What a client's connection takes of the coordinator's memory."""
    process = Busy.loop(cluster).process
    before = _resident(process)
    clients = NodeClient(place, connections)
    taken = _resident(process) - before
    clients.close()
    return taken // connections


def _resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- nodes -------------------------------------------------------------------------------------------------------------


def _node_process(place: Mapping[str, Any]) -> int:
    """Who listens at a node's socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place["socket"])
        return int(struct.unpack("=3I", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _fetches(cluster: Cluster, ray_node: str, place: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    """Seconds until this process has bytes of another node, by how many bytes, and CPU time of both processes. One
    fetch at a time.
    """
    import ray

    actor = ray.get_actor(f"{cluster.name}-node-{ray_node}", NAMESPACE)
    at, number = ray.get(actor.__ray_call__.remote(lambda node: (node._bytes_at, node._number)))
    busy = Busy.whole(_node_process(place))
    found: dict[str, Any] = {}
    for size in FETCHES:
        samples: Samples = {}
        seconds, own_us = [], []
        for _ in range(5 * repeats):
            with busy.series(samples, "fetch"):
                began, before = time.perf_counter(), time.process_time()
                asyncio.run(_fetch(at, number, size))
                seconds.append((time.perf_counter() - began) / CALLS_AT_ONCE)
                own_us.append((time.process_time() - before) / CALLS_AT_ONCE * 1e6)
        giver_us, taker_us = round(min(samples["fetch"]), 1), round(min(own_us), 1)
        found[str(size)] = {"seconds": round(min(seconds), 6), "giver_us": giver_us, "taker_us": taker_us}
    return found


async def _fetch(place: BytePlace, node: int, size: int) -> None:
    lines, into = ByteLines(), [memoryview(bytearray(size))]
    for _ in range(CALLS_AT_ONCE):
        await lines.read(place, node, Runs.of([Run(0, size)]), into)
    await lines.close()
