"""A campaign of clients on the nodes of a cluster and outside, while parts of the cluster are killed."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster.failures.hosts import Host, ping
from tests.cluster.failures.local_cluster import LocalCluster
from tests.cluster.failures.lost_rows import disagreements_on_lost_rows
from tests.cluster.failures.pauses import pauses
from tests.cluster.three_nodes import on_node, ray
from tests.integration.histories.campaign import judged, run
from tests.integration.histories.settings import FIELDS, PARTITION, TASKS, Settings

from dataplane_client.client import connect

_GRACE_S = 2.0
_SLOTS = ([0, 1], [0, 7], [0, 2])
"""Of the hosts of the nodes: a producer, and consumers of all kinds."""
_OUTSIDE = 8

_WORK_S = (1.0, 5.0)
"""For how long the cluster serves between two faults."""


Strike = Callable[["Clients", random.Random], object]


class Clients:
    """The hosts of a campaign, which begins once those of all nodes are ready."""

    def __init__(self, cluster: LocalCluster, folder: Path, seconds: float, seed: int, *, rows_vanish: bool) -> None:
        folder.mkdir()
        self.inside = Settings(cluster.address, folder, 0, seconds, _GRACE_S, seed, "shm", rows_vanish)
        self.outside = replace(self.inside, address=cluster.outside, processes=_OUTSIDE, transport="grpc")
        self.processes = _OUTSIDE + 1
        self._hosts = {ray_node: _host(ray_node) for ray_node in cluster.wait_for_nodes()}
        ray.get([host.__ray_ready__.remote() for host in self._hosts.values()])
        self.until = time.monotonic() + seconds
        self.dead: set[str] = set()
        self.spared = threading.Event()  # once no fault is to come
        self._slots = itertools.cycle(_SLOTS)
        for ray_node, host in self._hosts.items():
            self._begin(ray_node, host)

    def join(self, ray_node: str) -> None:
        """Have clients on a node that was added."""
        host = self._hosts[ray_node] = _host(ray_node)
        self._begin(ray_node, host)

    def leave(self, ray_node: str) -> None:
        """The node is dead."""
        self.dead.add(_prefix(ray_node))
        del self._hosts[ray_node]

    @property
    def ray_nodes(self) -> list[str]:
        return list(self._hosts)

    def _begin(self, ray_node: str, host: Any) -> None:
        """Run clients, whose processes are named after the node."""
        slots = next(self._slots)
        host.begin.remote(self.inside.json(), _prefix(ray_node), slots, self.until)
        self.processes += len(slots) + 1

    def wait_for_producers(self) -> None:
        self.spared.wait()
        self.wait(producers=True)

    def wait(self, *, producers: bool = False) -> None:
        for host in self._hosts.values():
            with contextlib.suppress(ray.exceptions.RayActorError):  # it died with its node
                ray.get(host.wait.remote(producers=producers))


def _host(ray_node: str) -> Any:
    return ray.remote(Host).options(**on_node(ray_node)).remote()


def _prefix(ray_node: str) -> str:
    return ray_node[:8]


@dataclass(frozen=True)
class Outcome:
    """found: what is wrong. counts: of everything. pauses: the longest of each client, in seconds."""

    found: list[str]
    counts: dict[str, int]
    pauses: dict[str, float]


def campaign(
    cluster: LocalCluster, folder: Path, seconds: float, seed: int, strike: Strike, *, rows_vanish: bool
) -> Outcome:
    """Have faults strike again and again while clients work. rows_vanish: with nodes that are killed, else none may."""
    with connect(cluster.outside) as client:
        client.register_partition(PARTITION, FIELDS, 0, TASKS, per_token_fields=["tokens"])
    clients = Clients(cluster, folder, seconds, seed, rows_vanish=rows_vanish)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(run, clients.outside, clients)
        pinging = threads.submit(ping, clients.outside, "outside-ping", clients.until)
        try:
            faults = _strike_often(clients, strike)  # in the main thread, which alone can start nodes
        finally:
            clients.spared.set()
        history = running.result()
        pinging.result()
    found, counts = judged(history, clients.outside, cluster.errors())
    found += disagreements_on_lost_rows(history, clients.dead if rows_vanish else ())
    counts |= {"lost rows": len(history.lost), "strikes": len(faults)}
    return Outcome(found, counts, pauses(folder, history, faults))


def _strike_often(clients: Clients, strike: Strike) -> list[int]:
    """Once all clients are there, and until the time is over. When, in ns."""
    while len([*clients.inside.folder.glob("*.jsonl")]) < clients.processes:
        assert time.monotonic() < clients.until, "the clients did not begin"
        time.sleep(0.05)
    dice, faults = random.Random(clients.inside.seed), list[int]()
    while time.monotonic() < clients.until:
        time.sleep(dice.uniform(*_WORK_S))
        faults.append(time.monotonic_ns())
        strike(clients, dice)
    return faults
