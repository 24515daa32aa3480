"""A workload in real time, which the simulation has to agree with: clients without a library, at one coordinator.

Producers put at random times, and ranks take steps together, as in `simulation`. A call's time begins when its
client sends it and ends when the client has the answer; so it contains two wake-ups, of the coordinator and of the
client. An idle coordinator shows what these take, and that is added to the simulation's times.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scaling.calls import (
    LOGPROBS,
    NodeClient,
    claim_request,
    clear_request,
    commit_header,
    put_header,
    read_request,
)
from benchmarks.scaling.simulation import Workload, quantile

from rl_dataplane.v1 import data_plane_pb2 as pb


@dataclass
class RealRun:
    """producer, consumer: sockets of nodes, and the nonces of their memory. calls: so far; their operations, and seconds
    until their answers.
    """

    name: str
    workload: Workload
    producer: tuple[str, bytes]
    consumer: tuple[str, bytes]
    calls: list[tuple[str, float]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float, busy_us: Callable[[], float]) -> dict[str, float]:
        """Returns utilisation of the coordinator's loop, calls a second, and quantiles of the calls' seconds."""
        began = time.monotonic()
        with ThreadPoolExecutor(self.workload.nodes + self.workload.ranks) as threads:
            running = [threads.submit(self._produce, number, began) for number in range(self.workload.nodes)]
            running += [threads.submit(self._step, number, began) for number in range(self.workload.ranks)]
            before = busy_us()
            time.sleep(seconds)
            counted, lasted, used_us = list(self.calls), time.monotonic() - began, busy_us() - before
            self.ending.set()
            for thread in running:
                thread.result()
        times = sorted(taken for _, taken in counted)
        return {
            "utilisation": round(used_us / lasted / 1e6, 3),
            "calls_per_s": round(len(times) / lasted, 1),
            "p50_s": round(quantile(times, 50), 6),
            "p99_s": round(quantile(times, 99), 6),
        }

    def _produce(self, number: int, due: float) -> None:
        client, chance, rows = NodeClient(self.producer, 1), random.Random(number), self.workload.put_rows
        for put in range(1 << 30):
            due += chance.expovariate(self.workload.rows_per_s / rows / self.workload.nodes)
            if self._ends_before(due):
                break
            ids = [f"{self.name}-{number:04}-{put:06}-{row:03}" for row in range(rows)]
            handles = self._timed("put", client.reserve, "PutSamples", [put_header(ids)])
            time.sleep(self.workload.copy_s)
            self._timed("finish", client.finish, handles)
        client.close()

    def _step(self, number: int, began: float) -> None:
        client, chance, rows = NodeClient(self.consumer, 1), random.Random(-1 - number), self.workload.claim_rows
        step_s = rows * self.workload.ranks / self.workload.rows_per_s
        for step in range(1, 1 << 30):
            if self._ends_before(began + step * step_s + chance.random() * self.workload.spread_s):
                break
            claim = self._claim(client, LOGPROBS, f"{number} {step}")
            if claim is None:
                continue
            self._timed("read", client.read, [read_request(claim, LOGPROBS)])
            time.sleep(step_s * self.workload.compute)
            header = commit_header(claim.claim_id, len(claim.sample_ids))
            handles = self._timed("commit", client.reserve, "CommitClaim", [header])
            time.sleep(self.workload.copy_s)
            self._timed("finish", client.finish, handles)
            claim = self._claim(client, "train", f"{number} {step}")
            if claim is None:
                continue
            self._timed("read", client.read, [read_request(claim, "train")])
            self._timed("plain_commit", client.commit, [claim.claim_id])
            self._timed("clear", client.call, "ClearSamples", [clear_request(claim)])
        client.close()

    def _claim(self, client: NodeClient, task: str, name: str) -> pb.ClaimSamplesResponse | None:
        """What there is of a batch; None if there is nothing."""
        request = claim_request(task, self.workload.claim_rows, f"{self.name} {task} {name}")
        request.min_size = 1
        request.wait_timeout.FromMilliseconds(1)
        try:
            (claim,) = self._timed("claim", client.call, "ClaimSamples", [request])
        except RuntimeError:  # too few rows yet
            return None
        return claim  # type: ignore[no-any-return]

    def _ends_before(self, due: float) -> bool:
        return self.ending.wait(max(0.0, due - time.monotonic()))

    def _timed(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        answer = call(*arguments)
        self.calls.append((operation, time.perf_counter() - began))
        return answer
