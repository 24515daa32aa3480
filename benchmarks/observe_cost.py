"""The cost of observing a call, in the best of several rounds.

Drives the hook alone, as the transport does for a put of two columns with 64 tagged rows, without a server: a call
through shared memory takes about 200 microseconds and varies by more than the figures here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry

from dataplane_client import observe
from dataplane_client._requests.requests import put_request
from report import Session
from rl_dataplane.v1 import data_plane_pb2 as pb
from timing import repeated

CALLS = 2_000
OBSERVERS: dict[str, Callable[[], observe.Observer]] = {
    "counters": lambda: observe.count_calls(CollectorRegistry()),
    "spans, none kept": lambda: observe.trace_calls(TracerProvider(sampler=ALWAYS_OFF)),
    "spans, all kept": lambda: observe.trace_calls(TracerProvider()),
}


def measure(session: Session) -> None:
    rounds, fields = session.rounds(20), {"x": torch.zeros(64, 8), "y": torch.zeros(64)}
    tags = [{"weight_version": 7}] * 64
    put = put_request("put", "train", [f"s{row}" for row in range(64)], fields, "caller", tags=tags)
    response = pb.PutSamplesResponse()

    def loop() -> None:
        for _ in range(CALLS):
            pass

    def call() -> None:
        for _ in range(CALLS):
            with observe.Call("PutSamples", "unix:///run/dataplane.sock", put.header) as one:
                one.sent_bytes = put.write.size_bytes
                one.transport = "shm"
                one.response = response

    def tell(name: str) -> None:
        spent = repeated(call, rounds).low - repeated(loop, rounds).low
        session.console.print(f"{name:<17} {spent / CALLS * 1e6:6.2f} us a call")

    tell("no observers")
    for name, observed in OBSERVERS.items():
        observer = observed()
        tell(name)
        observe.remove(observer)
