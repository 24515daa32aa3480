"""`dataplane-server --cluster ray`: a cluster from the command line."""

from __future__ import annotations

import fcntl
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.cluster_utils import Cluster as RayCluster
from tests.cluster.three_nodes import remove_folders

from dataplane_client import connect
from dataplane_server.cluster.coordinator.starting import start
from dataplane_server.config import ServerConfig

pytestmark = pytest.mark.xdist_group("cluster")

NAME = "dp-command"


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray cluster of two nodes, to which this process is not connected."""
    cluster = RayCluster()
    usual: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster.add_node(**usual, dashboard_port=None)  # Ray's default leaves a socket open where another cluster is
    cluster.add_node(**usual)
    yield cluster.address
    cluster.shutdown()  # type: ignore[no-untyped-call]


def command(ray_address: str, *flags: str) -> subprocess.Popen[str]:
    server = [sys.executable, "-m", "dataplane_server", "--cluster", "ray", "--ray-address", ray_address]
    server += ["--cluster-name", NAME, "--listen", "127.0.0.1:0", "--http", "", "--memory", "4MiB", *flags]
    return subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def serving(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr is not None else ""
    told: dict[str, Any] = json.loads(line)
    return told


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    return process.returncode


def folders() -> list[Path]:
    return list(Path("/dev/shm").glob(f"rl-dataplane-{NAME}-*"))  # noqa: S108  # where nodes have their arenas


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_rows_of_a_cluster_with_a_data_directory_are_there_when_it_runs_again(ray_address: str, tmp_path: Path) -> None:
    for life in range(2):
        process = command(ray_address, "--data-dir", str(tmp_path))
        with connect(serving(process)["listen"][0]) as client:
            if life == 0:
                client.register_partition("p", ["x"], 0, ["train"])
                meta = client.put_samples(["a"], "p", {"x": [torch.arange(3)]})
                assert client.transport == "grpc"
                assert client.server_status().durability == "disk"
            else:
                assert client.read_columns(meta, ["x"])["x"].tolist() == [[0, 1, 2]]
        assert ended(process) == 0
    remove_folders(NAME)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_command_that_finds_a_cluster_says_which_of_its_flags_mean_nothing(ray_address: str) -> None:
    processes = [command(ray_address) for _ in range(2)]
    try:
        found = [serving(process)["listen"] for process in processes]
        assert found[0] == found[1]
        flags = ("--memory", "8MiB", "--grace", "7", "--cluster-cache", "1KiB", "--cluster-mirrors")
        processes.append(command(ray_address, *flags))
        assert serving(processes[2])["listen"] == found[0]
        for process in processes[:2]:
            process.kill()
            assert "cluster_found" not in process.communicate()[1]
        processes[2].send_signal(signal.SIGTERM)
        lines = processes[2].communicate(timeout=120)[1].splitlines()
        (warning,) = (line for line in lines if "cluster_found" in line)
        assert sorted(json.loads(warning)["keeps"]) == [
            f"cache_bytes: {1 << 20}, not 1024",
            "drain_grace_s: 20.0, not 7.0",
            f"memory_bytes: {4 << 20}, not {8 << 20}",
            "mirrored: False, not True",
        ]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_command_whose_cluster_cannot_start_says_why_and_the_next_runs_it_until_it_is_told_to_end(
    ray_address: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags, why in (
            (("--cluster-cache", "10TiB"), "Errno"),
            (("--data-dir", str(data)), "File exists"),
            (("--http", port), f"cannot listen on {port}"),
        ):
            process = command(ray_address, *flags)
            event = json.loads(process.communicate(timeout=120)[1].splitlines()[-1])
            assert (event["event"], why in event["why"]) == ("start_failed", True)
            assert "\n" not in event["why"]
            assert process.returncode == 1
            assert [file for folder in folders() for file in folder.iterdir()] == []
    process = command(ray_address)
    told = serving(process)
    assert (told["event"], told["cluster"]) == ("serving", f"ray://{NAME}")
    assert len(folders()) in (1, 2), "the second node may be on its way"
    assert ended(process) == 0
    assert folders() == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_command_that_waits_for_its_cluster_ends_when_it_is_told_to(ray_address: str, tmp_path: Path) -> None:
    with (tmp_path / "coordinator.lock").open("w") as former:
        fcntl.flock(former, fcntl.LOCK_EX)
        process = command(ray_address, "--data-dir", str(tmp_path))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(300)
        assert ended(process) == 128 + signal.SIGTERM
    process = command(ray_address)
    serving(process)
    assert ended(process) == 0
    remove_folders(NAME)  # a cluster with a directory keeps them


def test_a_command_ends_at_whatever_moment_of_its_wait_it_is_told_to() -> None:
    module = [sys.executable, "-m", "tests.cluster.ended_at_any_moment"]
    ended = subprocess.run(module, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
    assert set(ended.stdout.split()) == {"serving", "stopped"}


def test_an_address_of_ray_that_is_none_is_refused_in_words() -> None:
    process = command("head-node")
    event = json.loads(process.communicate(timeout=120)[1].splitlines()[-1])
    assert event["why"] == "the cluster cannot start: Invalid address format: head-node"


def test_a_cluster_has_no_direct_port() -> None:
    with pytest.raises(ValueError, match="direct: "):
        start(ServerConfig(direct="127.0.0.1:0"))
