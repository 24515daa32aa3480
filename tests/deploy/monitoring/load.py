"""Traffic like a training run's, with everything that goes wrong now and then, in a few seconds.

Two producers put groups of jagged rollouts, one through shared memory and one over gRPC. A task recomputes
log-probabilities and commits them, another trains on the rows and clears them, a third waits for rows that nobody
puts, and a slow put holds its space until the end. Meanwhile a client dies with rows in its hands, rows are delayed and
given up, a group is given up, calls are refused, and a put waits for space.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import torch
from tests.integration.wire.session_peer import SessionPeer

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError, NotFoundError
from dataplane_client.options import TransportChoice
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

MEMORY = "24MiB"
IMAGES = 14
"""Of 1 MiB: once they fit into the memory, twice they do not."""
GROUP = 4
SLOW_PUT = pb.PutSamplesHeader(
    request_id="slow",
    partition_id="uploads",
    sample_ids=["slow"],
    columns=[pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_UINT8, row_shape=[1])],
)
_GRACE_S = 0.3
"""Of the session that dies."""


class Load:
    """address: of a socket whose clients share the server's memory. Every client is closed when the load ends."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._ends = time.monotonic() + seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Blocks until the time is over; raises what a part of the load raised."""
        with self._client("shm") as client:
            register(client)
            parts: tuple[Callable[[], None], ...] = (
                lambda: self._produce("shm"),
                lambda: self._produce("grpc"),
                lambda: self._recompute("grpc"),
                lambda: self._train("shm"),
                lambda: self._starve("grpc"),
                lambda: self._hold_back("shm"),
                self._put_slowly,
            )
            with ThreadPoolExecutor(len(parts)) as pool:
                running = [pool.submit(part) for part in parts]
                try:
                    self._go_wrong(client)
                    time.sleep(max(0.0, self._ends - time.monotonic()))
                finally:
                    self._stopped.set()
                for part in running:
                    part.result()

    def _client(self, transport: TransportChoice) -> DataPlaneClient:
        return connect(self._address, transport=transport, timeout_s=10.0)

    def _produce(self, transport: TransportChoice) -> None:
        random = np.random.default_rng(len(transport))
        with self._client(transport) as client:
            for step in self._until_stopped(pause_s=0.03):
                name = f"{transport}{step}"
                ids = [f"{name}_g{row}" for row in range(GROUP)]
                with client.reserve_group("rollouts", name, ids, weight_version=step // 10) as group:
                    group.put(ids, rollouts(random), [{"weight_version": step // 10}] * GROUP)

    def _recompute(self, transport: TransportChoice) -> None:
        with self._client(transport) as client:
            for _ in self._until_stopped():
                with (
                    contextlib.suppress(DataPlaneError),
                    client.claim("rollouts", "prev_lp", ["input_ids"], 8, min_size=1, timeout_s=0.2) as claim,
                ):
                    batch = client.get_data(claim.meta, ["input_ids"])
                    claim.commit({"prev_logprobs": batch["input_ids"].float()})

    def _train(self, transport: TransportChoice) -> None:
        """Trains on rows that have log-probabilities; clears all but every tenth step's."""
        with self._client(transport) as client:
            for step in self._until_stopped():
                with (
                    contextlib.suppress(DataPlaneError),
                    client.claim("rollouts", "train", ["prev_logprobs"], 8, timeout_s=0.3) as claim,
                ):
                    client.read_columns(claim.meta, ["input_ids", "reward"])
                    claim.commit()
                    if step % 10:
                        client.clear_samples(claim.meta.sample_ids, "rollouts")

    def _starve(self, transport: TransportChoice) -> None:
        """Waits for prompts that nobody puts: its claims are refused when their time is over."""
        with self._client(transport) as client:
            for _ in self._until_stopped():
                with contextlib.suppress(DataPlaneError):
                    client.claim("prompts", "generate", ["prompt"], 1, timeout_s=1.5)

    def _hold_back(self, transport: TransportChoice) -> None:
        """Of two rows, one is given up after its first failure, and one delayed; a claim waits for it."""
        with self._client(transport) as client:
            client.put_samples(["a", "b"], "evals", {"prompt": torch.zeros(2)})
            client.claim("evals", "judge", ["prompt"], 1).release(reason="no answer")
            client.claim("evals", "judge", ["prompt"], 1).release(delay_s=60.0)
            for _ in self._until_stopped():
                with contextlib.suppress(DataPlaneError):
                    client.claim("evals", "judge", ["prompt"], 1, timeout_s=1.0)

    def _put_slowly(self) -> None:
        """Begins a put whose values come when the load ends: whoever scrapes meanwhile sees who holds memory."""

        def frames() -> Iterator[pb.PutSamplesRequest]:
            request = pb.PutSamplesRequest()
            request.header.MergeFrom(SLOW_PUT)
            yield request
            self._stopped.wait()
            yield pb.PutSamplesRequest(chunk=pb.Chunk(data=b"x"))

        with grpc.insecure_channel(self._address) as channel:
            pb_grpc.DataPlaneServiceStub(channel).PutSamples(frames(), timeout=120)

    def _go_wrong(self, client: DataPlaneClient) -> None:
        for _ in range(3):  # a rate needs a counter that is seen before it moves
            with contextlib.suppress(NotFoundError):
                client.get_samples(["gone"], "rollouts", ["reward"])
            client.reserve_group("rollouts", "unlucky", ["u0", "u1"]).abort("no engine")
            run_out_of_space(client)
            lose_a_client(self._address)
            time.sleep(0.2)

    def _until_stopped(self, pause_s: float = 0.0) -> Iterator[int]:
        step = 0
        while not self._stopped.wait(pause_s):
            yield step
            step += 1


def register(client: DataPlaneClient) -> None:
    fields = ["input_ids", "reward", "prev_logprobs"]
    per_token = ["input_ids", "prev_logprobs"]
    client.register_partition("rollouts", fields, 0, ["prev_lp", "train"], per_token_fields=per_token)
    client.register_partition("prompts", ["prompt"], 0, ["generate"])
    client.register_partition("evals", ["prompt"], 0, ["judge"], max_deliveries=1)
    client.register_partition("images", ["pixels"], 0, ["look"])
    client.register_partition("uploads", ["x"], 0, ["look"])


def rollouts(random: np.random.Generator) -> dict[str, torch.Tensor]:
    """A group of very different lengths."""
    rows = [torch.arange(int(length)) for length in random.integers(10, 2000, GROUP)]
    return {"input_ids": torch.nested.nested_tensor(rows, layout=torch.jagged), "reward": torch.rand(GROUP)}


def run_out_of_space(client: DataPlaneClient) -> None:
    """Take most of the memory; one put is refused, a second one waits until the first values are cleared."""
    first, second, third = ([f"{name}{row}" for row in range(IMAGES)] for name in ("first", "second", "third"))
    images = {"pixels": torch.zeros(IMAGES, 1 << 20, dtype=torch.uint8)}
    client.put_samples(first, "images", images)
    with contextlib.suppress(DataPlaneError):
        client.put_samples(second, "images", images, timeout_s=0.1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.put_samples, third, "images", images)
        time.sleep(0.3)
        client.clear_samples(first, "images")
        waiting.result()
    client.clear_samples(third, "images")


def lose_a_client(address: str) -> None:
    """A session opens, claims a row, and is never heard of again: its row goes to others."""
    with grpc.insecure_channel(address) as channel:
        peer = SessionPeer(channel)
        session_id = peer.open(grace_s=_GRACE_S, client_name="killed").session_id
        request = pb.ClaimSamplesRequest(request_id=session_id, partition_id="rollouts", task="prev_lp", batch_size=1)
        request.mode, request.session_id = pb.CLAIM_MODE_ACKNOWLEDGED, session_id
        request.required_fields.append("input_ids")
        request.wait_timeout.FromSeconds(5)
        pb_grpc.DataPlaneServiceStub(channel).ClaimSamples(request, timeout=10)
        peer.ending()
