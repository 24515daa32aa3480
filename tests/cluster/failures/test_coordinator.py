"""The coordinator is killed: it goes on from its log, refuses to go on without it, and shows nothing of former rows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cluster.failures.hosts import ping
from tests.cluster.failures.local_cluster import LocalCluster, pid_of
from tests.cluster.failures.pauses import pauses
from tests.cluster.three_nodes import ray
from tests.integration.histories.reader import read_history
from tests.integration.histories.settings import Settings
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_client.errors import NotFoundError, UnavailableError

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

_LONGEST_S = 15.0
"""On cores that other tests use as well; a campaign on a quiet machine has the promise."""


def test_clients_go_on_after_kills_and_nothing_acknowledged_is_lost_or_counted_twice(
    plane: LocalCluster, tmp_path: Path
) -> None:
    folder, seconds, kills = tmp_path / "histories", 9.0, list[int]()
    folder.mkdir()
    clients = {
        "near": Settings(plane.address, folder, 1, seconds, 2.0, 1, "shm"),
        "near, by gRPC": Settings(plane.address, folder, 1, seconds, 2.0, 1, "grpc"),
        "outside": Settings(plane.outside, folder, 1, seconds, 2.0, 1, "grpc"),
    }
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=ping, args=(client, name, end)) for name, client in clients.items()]
    for thread in threads:
        thread.start()
    eventually(lambda: len(list(folder.iterdir())) == len(clients))
    while time.monotonic() < end - 2.0:
        kills.append(time.monotonic_ns())
        plane.kill_coordinator()
    for thread in threads:
        thread.join()
    history = read_history(folder, 2.0, (), frozenset())
    assert kills
    assert history.complaints == []
    assert max(pauses(folder, history, kills).values()) < _LONGEST_S


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["is not back", "hangs"])
def test_a_cluster_that_is_stopped_while_its_coordinator_does_not_answer_leaves_no_actor(
    start_plane: Callable[..., LocalCluster], number: int
) -> None:
    plane = start_plane(durable=False)
    os.kill(pid_of(plane.coordinator), number)
    plane.stop()
    left = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    assert not [name for name in left if name.startswith(plane.name)]
    assert plane.folders == []


def test_a_coordinator_without_the_log_of_its_nodes_rows_says_what_is_gone(plane: LocalCluster, tmp_path: Path) -> None:
    with connect(plane.address) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.ones(1)})
    empty(tmp_path / "data")
    with pytest.raises(Exception, match=r"data .* /dev/shm/"):
        plane.kill_coordinator()
    with pytest.raises(UnavailableError, match="LostLogError"):
        connect(plane.address, connect_timeout_s=3.0)
    with pytest.raises(UnavailableError, match=re.escape(plane.outside)):
        connect(plane.outside, connect_timeout_s=1.0)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_coordinator_that_accepts_the_loss_of_its_log_begins_anew(
    start_plane: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    plane = start_plane(accept_loss=True)
    with connect(plane.address, transport="shm") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        old = client.put_samples(["a"], "p", {"x": torch.full((1, 1000), 7)})
        read = client.get_data(old, ["x"])["x"]
        empty(tmp_path / "data")
        plane.kill_coordinator()
        with pytest.raises(NotFoundError, match="'p'"):
            client.get_data(old, ["x"])
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["b"], "p", {"x": torch.full((1, 1000), 8)})
        assert client.get_samples(["b"], "p", ["x"])["x"].tolist() == [[8] * 1000]
        assert read.tolist() == [[7] * 1000], "what a client maps stays its own"
