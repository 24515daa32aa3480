"""Drivers by the name of their system."""

from __future__ import annotations

import importlib

from dataplane_conformance.system import Driver

DRIVERS = {
    "rl-dataplane": "dataplane_conformance.drivers.rl_dataplane:RLDataPlane",
    "redis": "dataplane_conformance.drivers.redis_streams:RedisStreams",
    "nats": "dataplane_conformance.drivers.nats_jetstream:NatsJetStream",
    "ray": "dataplane_conformance.drivers.ray_queue:RayQueue",
    "transfer-queue": "dataplane_conformance.drivers.transfer_queue:TransferQueue",
}


def driver_named(name: str) -> type[Driver]:
    """The driver of a system, or that of `module:Class`. Raises ModuleNotFoundError where its client is missing."""
    module, _, kind = DRIVERS.get(name, name).partition(":")
    found: type[Driver] = getattr(importlib.import_module(module), kind)
    return found
