"""`dataplane status`: its text, its JSON and its exit codes."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from tests.client.cli.reading import read, run, run_json

from dataplane_client import connect
from dataplane_server.testing import running_server


def test_the_server_and_its_partitions_are_on_one_screen(address: str) -> None:
    code, text = run("status", "-s", address)
    assert code == 0
    assert read(text, r"version +\S+,") == [
        f"{address}: serving, healthy",
        "  ~ up ~",
        "  memory  [....................]  0 %  64 B of 64.0 MiB, largest free range 64.0 MiB",
        "  rows  2 of at most 4,000,000",
        "  waiting  0 claims, 0 puts",
        "  sessions  1",
        "  values  through shared memory on its host, otherwise over gRPC",
        "",
        "partition  rows  size  oldest row  task  untaken  ready  claimed  consumed  lag  waiting  longest",
        "train  2  64 B  ~  prev_lp  2  -  0  0  1  0  -",
        "    train  1  1  1  0  0  0  -",
        "val  0  0 B  -",
    ]


def test_numbers_of_a_table_are_right_aligned(address: str) -> None:
    lines = run("status", "-s", address)[1].splitlines()
    heading = next(line for line in lines if line.startswith("partition"))
    end = heading.index("untaken") + len("untaken")
    assert [line[end - 2 : end] for line in lines[lines.index(heading) + 1 : -1]] == [" 2", " 1"]


def test_a_server_without_partitions_says_so() -> None:
    with running_server() as address:
        assert run("status", "-s", address)[1].splitlines()[-1] == "no partitions"


def test_a_server_with_puts_waiting_for_space_is_unhealthy_and_exits_with_3() -> None:
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 1_000_000, dtype=torch.uint8)})
        late = {"x": torch.zeros(1, 500_000, dtype=torch.uint8)}
        put = threading.Thread(target=client.put_samples, args=(["b"], "p", late), kwargs={"timeout_s": 30.0})
        put.start()
        while client.server_status().waiting_puts == 0:
            time.sleep(0.001)
        code, text = run("status", "-s", address)
        document = run_json("status", "-s", address, code=3)
        client.clear_samples(["a"], "p")
        put.join(30)
        assert run("status", "-s", address)[0] == 0
    assert code == 3
    reason = "memory is over 95 % full and 1 put waits for space: rows are put faster than they are cleared"
    lines = read(text)
    assert lines[:2] == [f"{address}: serving, not healthy", f"  ! {reason}"]
    assert "  memory  [###################.]  95 %  976.6 KiB of 1.0 MiB, largest free range 47.4 KiB" in lines
    assert "  waiting  0 claims, 1 put (longest ~)" in lines
    assert (document["healthy"], document["reasons"]) == (False, [reason])


def test_json_output_has_health_server_and_partitions(address: str) -> None:
    document = run_json("status", "-s", address)
    assert (document["healthy"], document["reasons"], document["shares_memory"]) == (True, [], True)
    assert document["server"]["memory_budget_bytes"] == 64 << 20
    assert [(partition["partition_id"], partition["rows"]) for partition in document["partitions"]] == [
        ("train", 2),
        ("val", 0),
    ]


@pytest.mark.parametrize("command", ["status", "describe"])
def test_an_unreachable_server_exits_with_1_and_its_address(command: str) -> None:
    arguments = [command, "train"] if command == "describe" else [command]
    code, text = run(*arguments, "-s", "unix:///nowhere/dataplane.sock")
    assert code == 1
    assert text.startswith("dataplane: Get")
    assert "unix:///nowhere/dataplane.sock" in text


@pytest.mark.parametrize("command", ["status", "top", "doctor"])
def test_a_malformed_address_is_a_usage_error(command: str) -> None:
    code, text = run(command, "-s", "nowhere")
    assert code == 2
    assert "unix:///path or host:port" in text


def test_the_environment_variable_chooses_the_server(address: str) -> None:
    assert run("status", DATAPLANE_SERVER=address)[0] == 0
