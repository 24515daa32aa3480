"""`dataplane status`: its text, its JSON and its exit codes."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from tests.client.cli.reading import DATAPLANE, read, run, run_json
from tests.waiting import eventually

from dataplane_client import OutOfSpaceError, connect
from dataplane_server.observe.verdict import AILMENTS
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
        "task  untaken  ready  claimed  rows/s in last minute  versions behind  claims waiting  longest wait",
        "train  2 rows, 64 B, oldest ~",
        "  prev_lp  2  -  0  0  1  0  -",
        "  train  1  1  1  0  0  0  -",
        "val  0 rows, 0 B",
    ]


def test_it_waits_for_a_server_that_comes_late(tmp_path: Path) -> None:
    place = tmp_path / "late.sock"
    address = f"unix://{place}"
    with socket.socket(socket.AF_UNIX) as hanging_up:
        hanging_up.bind(str(place))
        hanging_up.listen()
        waiting = subprocess.Popen([DATAPLANE, "status", "-s", address, "--wait", "300"], stdout=subprocess.PIPE)
        hanging_up.accept()[0].close()  # it has looked once
    place.unlink()
    with running_server(listen=address):
        shown = waiting.communicate(timeout=300)[0].decode()
    assert waiting.returncode == 0
    assert "serving, healthy" in shown


def test_many_partitions_with_many_tasks_of_long_names_are_shown_whole() -> None:
    tasks = [f"{task:0250}" for task in range(64)]
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        for number in range(40):
            client.register_partition(f"p{number:0249}", ["x"], 0, tasks)
        assert [len(partition.tasks) for partition in client.partitions()] == [64] * 40
        code, text = run("status", "-s", address)
    assert code == 0
    assert text.count("\n  0000") == 40 * 64


def bytes_of(rows: int, half_mib: int) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(rows, half_mib << 19, dtype=torch.uint8)}


def test_who_holds_memory_that_no_clear_frees_is_told_by_name() -> None:
    with (
        running_server(memory_bytes=8 << 20) as address,
        connect(address, client_name="rollout-0") as client,
        connect(address, client_name="\x1b[2J trainer") as reader,
    ):
        client.register_partition("p", ["x"], 0, ["train"])
        meta = client.put_samples(["a", "b"], "p", bytes_of(2, 4))
        views = [reader.read_columns(meta.subset([0]), ["x"], layout="jagged")]
        assert run("status", "-s", address)[0] == 0
        client.clear_samples(["a", "b"], "p")
        code, text = run("status", "-s", address)
        assert code == 0  # it is less than half
        assert "  held      \\x1b[2J trainer 2.0 MiB of cleared rows, 2.0 MiB leased" in text.splitlines()
        meta = client.put_samples(["c"], "p", bytes_of(1, 5))
        views.append(client.read_columns(meta, ["x"], layout="jagged"))
        client.clear_samples(["c"], "p")
        code, text = run("status", "-s", address)
        assert code == 3
        reason = "no clear frees 4.5 MiB of 8.0 MiB, which clients hold until they let go or end"
        assert f"  ! {reason}: rollout-0, \\x1b[2J trainer" in text.splitlines()
        held = {holder.client_name: holder.owed_bytes >> 19 for holder in client.server_status().holders}
        assert held == {"\x1b[2J trainer": 4, "rollout-0": 5}
        with pytest.raises(OutOfSpaceError, match=r"'rollout-0' 2\.5 MiB, .* trainer' 2 MiB"):
            client.put_samples(["d"], "p", bytes_of(1, 10), timeout_s=0.0)
        views.clear()


def test_a_server_with_puts_waiting_for_space_is_unhealthy_and_exits_with_3() -> None:
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 1_000_000, dtype=torch.uint8)})
        late = {"x": torch.zeros(1, 500_000, dtype=torch.uint8)}
        put = threading.Thread(target=client.put_samples, args=(["b"], "p", late), kwargs={"timeout_s": 30.0})
        put.start()
        eventually(lambda: client.server_status().waiting_puts)
        code, text = run("status", "-s", address)
        document = run_json("status", "-s", address, code=3)
        client.clear_samples(["a"], "p")
        put.join(300)
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


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("unix:///nowhere/dataplane.sock", "there is no socket file /nowhere/dataplane.sock"),
        ("127.0.0.1:1", "nothing listens there"),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["describe", "train"]], ids=["status", "describe"])
def test_without_a_server_one_line_says_what_is_wrong_and_what_to_do(
    command: list[str], address: str, cause: str
) -> None:
    advice = f'Start a server with "dataplane-server --listen {address}", or correct the address'
    assert run(*command, "-s", address) == (1, f"dataplane: no server answers at {address}: {cause}. {advice}\n")


def test_a_server_that_does_not_answer_in_time_is_said_to_be_slow() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, text = run("status", "-s", address, "--timeout", "0.1")
    assert (code, text) == (1, f"dataplane: at {address}: no answer before the deadline\n")


@pytest.mark.parametrize(
    "arguments",
    ["status --timeout", "status --wait", "top --count 2 --interval", "why --fail-after", "bench --seconds"],
)
def test_a_time_that_is_no_number_is_a_usage_error(arguments: str) -> None:
    code, text = run(*arguments.split(), "nan", "-s", "127.0.0.1:1")
    assert code == 2
    assert f"{arguments.split()[-1]}'" in text
    assert "nan is not a number of seconds" in text


@pytest.mark.parametrize("command", ["status", "top", "doctor"])
def test_a_malformed_address_is_a_usage_error(command: str) -> None:
    code, text = run(command, "-s", "nowhere")
    assert code == 2
    assert "unix:///path or host:port" in text


@pytest.mark.parametrize(
    "arguments",
    [["-s", "{}", "status"], ["status", "--server", "{}"], ["-s", "127.0.0.1:1", "status", "-s", "{}"]],
    ids=["before", "after", "both"],
)
def test_the_server_may_be_named_before_and_after_the_command(address: str, arguments: list[str]) -> None:
    code, text = run(*(word.format(address) for word in arguments), DATAPLANE_SERVER="127.0.0.1:1")
    assert (code, text.split()[0]) == (0, f"{address}:")


def test_its_help_lists_everything_that_makes_a_server_unhealthy() -> None:
    _, text = run("status", "--help")
    assert sum(line.strip().startswith("- ") for line in text.splitlines()) == len(AILMENTS)
