"""How the command `dataplane` shows the nodes of a cluster."""

from __future__ import annotations

import socket

import pytest
import torch
from tests.client.cli.reading import read, run, run_json
from tests.cluster.three_nodes import ThreeNodes

from dataplane_client.client import connect

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]


def test_status_top_and_doctor_show_the_nodes(three_nodes: ThreeNodes) -> None:
    outside = three_nodes.cluster.addresses["listen"][0]
    with three_nodes.emptied() as address, connect(address, transport="shm") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 1 << 20, dtype=torch.uint8)})
        number = three_nodes.figures(1).number
        mine = f"  node {number}  up on {socket.gethostname()}: 1.0 MiB used, "
        for command in (["status"], ["top", "-n", "1"]):
            code, text = run(*command, "-s", outside)
            assert code == 0, text
            shown = [line for line in read(text) if line.startswith("  node ")]
            assert (len(shown), [line.startswith(mine) for line in shown].count(True)) == (3, 1)
        assert "through shared memory of its node, otherwise over gRPC" in run("status", "-s", outside)[1]
        document = run_json("status", "-s", outside)
        assert {node["name"] for node in document["server"]["nodes"]} == set(three_nodes.nodes)
        found = {check["name"]: check for check in run_json("doctor", "-s", outside)["checks"]}
        assert found["health"]["found"] == "healthy"
        assert found["shared memory"]["found"] == "values travel over gRPC: this is a cluster of 3 nodes"
        assert "ray://NAME" in found["shared memory"]["advice"]
