"""The command `dataplane` on a real server: what a person reads, what a program parses, what the shell is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner

from dataplane_client import connect, kv_first_write
from dataplane_client.cli import _app, _duration, _size
from dataplane_server.testing import running_server

WIDE = {"COLUMNS": "200", "TERM": "dumb"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_server(memory_bytes=64 << 20) as address, connect(address) as client:
        fields = ["input_ids", "input_lengths", "sample_mask", "prev_logprobs"]
        client.register_partition("train", fields, 4, ["prev_lp", "train"], per_token_fields=["input_ids"])
        batch = {
            "input_ids": torch.arange(6).view(2, 3),
            "input_lengths": torch.tensor([2, 3]),
            "sample_mask": torch.ones(2),
        }
        kv_first_write(batch, sample_ids=["a", "b"], dp_client=client, partition_id="train")
        client.claim("train", "train", ["input_ids"], 1)
        yield address


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(_app, list(arguments), env=WIDE)
    return result.exit_code, result.output


def test_status_shows_the_server_and_its_partitions_on_one_screen(address: str) -> None:
    code, text = run("status", "-s", address)
    assert code == 0
    assert "2 rows, 64 B of 64.0 MiB used, 0 claims and 0 puts wait" in text
    lines = [line.split() for line in text.splitlines()]
    assert [
        "train",
        "2",
        "64",
        "B",
        "2",
        "0",
        "prev_lp",
        "2",
        "/",
        "0",
        "/",
        "0,",
        "train",
        "1",
        "/",
        "1",
        "/",
        "0",
    ] in lines


def test_describe_shows_fields_and_tasks(address: str) -> None:
    code, text = run("describe", "train", "-s", address)
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["input_ids", "jagged", "int64", "(*)", "yes", "2", "40", "B"] in lines
    assert ["prev_logprobs", "0", "0", "B"] in lines
    assert ["train", "1", "1", "0", "0", "0"] in lines


def test_json_output_is_for_programs(address: str) -> None:
    code, text = run("status", "-s", address, "-o", "json")
    document = json.loads(text)
    assert code == 0
    assert document["server"]["memory_budget_bytes"] == 64 << 20
    assert [partition["rows"] for partition in document["partitions"]] == [2]


def test_an_unknown_partition_is_named_and_the_exit_code_is_1(address: str) -> None:
    code, text = run("describe", "tarin", "-s", address)
    assert code == 1
    assert "there is no partition 'tarin'" in text


def test_a_server_that_is_not_there_is_named_and_the_exit_code_is_1() -> None:
    code, text = run("status", "-s", "unix:///nowhere/dataplane.sock", "--timeout", "0.2")
    assert code == 1
    assert "unix:///nowhere/dataplane.sock" in text


def test_a_malformed_address_is_a_usage_error() -> None:
    code, text = run("status", "-s", "nowhere")
    assert code == 2
    assert "unix:///path or host:port" in text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_carry_their_unit(size: int, text: str) -> None:
    assert _size(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(3.9, "3 s"), (61, "1 min 1 s"), (7322, "2 h 2 min")])
def test_durations_carry_their_units(seconds: float, text: str) -> None:
    assert _duration(seconds) == text
