"""Measure the cost of observing a call: `python benchmarks/observe_cost.py`. Microseconds, the best of several rounds.

Drives the hook alone, as the transport does for a put of two columns with 64 tagged rows, without a server: a call
through shared memory takes about 200 microseconds and varies by more than the figures here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry

from dataplane_client import observe
from dataplane_client._requests.requests import put_request
from dataplane_client.observe._call import begin_call
from rl_dataplane.v1 import data_plane_pb2 as pb

CALLS, ROUNDS = 2_000, 20


def main() -> None:
    ids = [f"s{row}" for row in range(64)]
    fields = {"x": torch.zeros(64, 8), "y": torch.zeros(64)}
    put = put_request("put", "train", ids, fields, "caller", tags=[{"weight_version": 7}] * 64)
    response = pb.PutSamplesResponse()

    def loop() -> None:
        for _ in range(CALLS):
            pass

    def call() -> None:
        for _ in range(CALLS):
            with begin_call("PutSamples", "unix:///run/dataplane.sock", put.header) as one:
                one.writes(put.columns)
                one.attempted("shm")
                one.answered(response)

    empty = best(loop)
    print(f"no observers      {best(call) - empty:6.2f} us a call")
    observers: tuple[tuple[str, Callable[[], observe.Observer]], ...] = (
        ("counters", lambda: observe.count_calls(CollectorRegistry())),
        ("spans, none kept", lambda: observe.trace_calls(TracerProvider(sampler=ALWAYS_OFF))),
        ("spans, all kept", lambda: observe.trace_calls(TracerProvider())),
    )
    for name, observed in observers:
        observer = observed()
        print(f"{name:<17} {best(call) - empty:6.2f} us a call")
        observe.remove(observer)


def best(work: Callable[[], None]) -> float:
    """Microseconds for each call, in the best round."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        rounds.append(time.perf_counter() - began)
    return min(rounds) / CALLS * 1e6


if __name__ == "__main__":
    main()
