"""Which server a process uses, and when one that was started for it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
from tests import commands
from tests.waiting import eventually

import dataplane_transfer_queue as tq
from dataplane_client.client import connect
from dataplane_client.errors import InvalidArgumentError
from dataplane_server.testing import running_server

VERL_DEFAULT = {
    "enable": True,
    "metrics": {"enabled": False, "port": 0},
    "controller": {"sampler": "SequentialSampler", "polling_mode": False},
    "backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 8}},
}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server in the environment."""
    monkeypatch.delenv("DATAPLANE_SERVER", raising=False)


def address_of(conf: object) -> str:
    return conf["backend"]["RLDataPlane"]["address"]  # type: ignore[index, no-any-return]


def test_the_configuration_names_a_server_before_the_environment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server() as named, running_server() as other:
        monkeypatch.setenv("DATAPLANE_SERVER", other)
        conf = UserDict(backend={"storage_backend": "RLDataPlane", "RLDataPlane": {"address": named}}, x=1)
        returned = tq.init(conf)
        assert isinstance(returned, UserDict)
        assert (returned, address_of(returned)) == (conf, named)
        tq.kv_put("a", "p", tag={})
        tq.close()
        assert address_of(tq.init()) == other
        assert tq.kv_list() == {}
        tq.close()


def test_a_second_init_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server() as address:
        monkeypatch.setenv("DATAPLANE_SERVER", address)
        first = tq.init()
        assert tq.init({"backend": {"RLDataPlane": {"address": "127.0.0.1:1"}}}) is first
        tq.close()


def test_a_process_that_did_not_call_init_uses_the_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server() as address:
        monkeypatch.setenv("DATAPLANE_SERVER", address)
        assert tq.kv_list() == {}
        tq.close()


def test_without_a_server_calls_say_how_to_name_one() -> None:
    tq.close()
    assert tq.get_metrics_endpoint() is None
    for call in (tq.kv_list, tq.get_client):
        with pytest.raises(RuntimeError, match=r"call init\(\), or name the server: backend\.RLDataPlane\.address"):
            call()


def test_with_the_default_configuration_the_first_init_starts_a_server_and_close_ends_it() -> None:
    conf = tq.init(VERL_DEFAULT)
    assert conf is not None
    assert {**conf, "backend": None} == {**VERL_DEFAULT, "backend": None}
    assert tq.get_metrics_endpoint() is None
    tq.kv_put("a", "p", {"x": 1})
    socket = Path(address_of(conf).removeprefix("unix://"))
    with connect(address_of(conf)) as other:
        assert other.transport == "shm"
        assert other.partition("p").rows == 1
    assert socket.exists()
    tq.close()
    assert not socket.parent.exists()
    tq.init()
    assert tq.kv_list() == {}


def test_flags_of_the_server_come_from_its_block_and_metrics_from_theirs() -> None:
    conf = tq.init({"backend": {"RLDataPlane": {"memory": "64MiB", "max_rows": 1000}}, "metrics": {"enabled": True}})
    with connect(address_of(conf)) as client:
        status = client.server_status()
    assert (status.memory_budget_bytes, status.max_rows) == (64 << 20, 1000)
    with urllib.request.urlopen(f"http://{tq.get_metrics_endpoint()}/metrics") as answer:
        assert b"dataplane_" in answer.read()


def test_a_server_that_does_not_start_says_why_and_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"none can be started: .*--colour.*name the server: backend.RLDataPlane"):
        tq.init({"backend": {"RLDataPlane": {"colour": "red"}}})


STARTER = """
import sys, time
import dataplane_transfer_queue as tq
print(tq.init()["backend"]["RLDataPlane"]["address"], flush=True)
sys.stdin.read()
"""


def test_the_server_ends_with_the_process_that_started_it_even_if_that_is_killed() -> None:
    command = [sys.executable, "-c", STARTER]
    with commands.begin(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        address = starter.stdout.readline().strip()
        with connect(address) as client:
            assert client.partitions() == []
        starter.kill()
    folder = Path(address.removeprefix("unix://")).parent
    eventually(lambda: not folder.exists())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12 on
def test_a_process_that_was_forked_leaves_the_server_to_its_parent() -> None:
    conf = tq.init()
    child = os.fork()
    if child == 0:
        tq.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Path(address_of(conf).removeprefix("unix://")).exists()
    assert tq.kv_list() == {}


def test_a_checkpoint_brings_rows_and_consumption_back(tmp_path: Path) -> None:
    tq.init({"backend": {"RLDataPlane": {"data_dir": str(tmp_path / "data"), "memory": "4MiB"}}})
    native = tq.get_client()
    tq.kv_put("a", "p", {"x": 1}, {"s": 1})
    tq.kv_put("b", "p", {"x": 2})
    taken = native.get_meta(["x"], 1, "p", task_name="t").global_indexes
    tq.save_checkpoint(tmp_path / "step-3", metadata={"step": 3})
    tq.kv_clear("a", "p")
    tq.kv_put("c", "q", {"x": 3})
    assert tq.load_checkpoint(tmp_path / "step-3") == {"step": 3}
    assert tq.kv_list() == {"p": {"a": {"s": 1}, "b": {}}}
    assert native.get_meta(["x"], 1, "p", task_name="t").global_indexes > taken
    assert tq.kv_put("d", "q", {"x": 4}).fields == ["x"]
    with pytest.raises(FileNotFoundError):
        tq.load_checkpoint(tmp_path / "step-4")


def test_a_checkpoint_needs_a_directory_of_the_server(tmp_path: Path) -> None:
    tq.init()
    with pytest.raises(InvalidArgumentError, match="--data-dir"):
        tq.save_checkpoint(tmp_path / "step-1")


@pytest.mark.parametrize(
    ("conf", "named"), [("unix:///s", "conf"), ({"backend": {"RLDataPlane": "unix:///s"}}, "RLDataPlane")]
)
def test_a_configuration_that_is_no_mapping_is_refused_by_name(conf: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"init: {named!r} must be a mapping, got 'unix:///s'"):
        tq.init(conf)


@pytest.mark.parametrize("sampler", ["GRPOGroupNSampler", tq.RankAwareSampler])
def test_rows_are_not_fetched_in_place_of_another_sampler(sampler: object) -> None:
    with running_server() as address:
        tq.init({"controller": {"sampler": sampler}, "backend": {"RLDataPlane": {"address": address}}})
        tq.kv_put("k", "p", tag={"of": 1})  # which no sampler has a part in
        with pytest.raises(ValueError, match=r"controller\.sampler is '\w+Sampler'.* serves SequentialSampler only"):
            tq.get_client().get_meta([], 1, "p", task_name="t")
        tq.close()
        tq.init({"controller": {"sampler": tq.SequentialSampler()}, "backend": {"RLDataPlane": {"address": address}}})
        assert tq.get_client().get_meta([], 1, "p", task_name="t").size == 1


def test_what_is_not_served_can_be_imported_and_refuses_to_be_used() -> None:
    from dataplane_transfer_queue import GRPOGroupNSampler, StreamingDataset

    with pytest.raises(NotImplementedError, match="whole_groups"):
        GRPOGroupNSampler(4)
    with pytest.raises(NotImplementedError, match="ClaimLoader"):
        StreamingDataset({}, 8, 4, ["input_ids"], "p", "t", 0)


def test_init_warns_where_transferqueue_itself_is_installed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = tmp_path / "transferqueue-0.1.11.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: TransferQueue\nVersion: 0.1.11\n")
    monkeypatch.syspath_prepend(tmp_path)
    with running_server() as address:
        tq.init({"backend": {"RLDataPlane": {"address": address}}})
        assert "transfer_queue_is_installed_too version=0.1.11" in caplog.text
