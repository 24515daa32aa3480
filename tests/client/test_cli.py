"""The command `dataplane` on a real server: what a person reads, what a program parses, what the shell is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner

from dataplane_client import connect, kv_first_write
from dataplane_client._cli_tables import duration_text, size_text
from dataplane_client.cli import _app
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
    assert "removed rows: none" in text.splitlines()
    assert ["train", "1", "1", "0", "0", "0", "0", "1", "none", "0"] in lines
    assert ["prev_lp", "2", "0", "0", "0", "0", "0", "0", "none", "0"] in lines


def test_describe_shows_for_each_task_who_waits_for_whom(address: str) -> None:
    """A claim is open all the while, and nobody has ever asked for rows of the other task."""
    _, text = run("describe", "train", "-s", address)
    table = text[text.index("waits for producers") :].splitlines()
    shares = {line.split()[0]: [cell for cell in line.split() if cell.endswith("%")] for line in table[1:]}
    assert set(shares) == {"train", "prev_lp"}
    assert all(len(cells) == 5 for cells in shares.values())


@pytest.fixture
def troubled() -> Iterator[str]:
    """A server with a partition of rows a, b and c: a is dead for `train`, b was committed and cleared, c is new."""
    with running_server(memory_bytes=64 << 20) as address, connect(address, client_name="rollout-0") as client:
        client.register_partition("p", ["x"], 3, ["train"], max_deliveries=2)
        client.put_samples(["a"], "p", {"x": torch.zeros(1, 4)}, [{"prompt": "[red]7"}])
        for reason in ("NaN in the loss", "out of [bold]memory"):
            client.claim("p", "train", ["x"], 1).release(reason=reason)
        client.put_samples(["b"], "p", {"x": torch.zeros(1, 4)})
        client.claim("p", "train", ["x"], 1).commit()
        client.clear_samples(["b"], "p")
        client.put_samples(["c"], "p", {"x": torch.zeros(1, 4)})
        yield address


def test_a_sample_is_told_as_a_story(troubled: str) -> None:
    code, text = run("sample", "p", "a", "-s", troubled)
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("a is in p: generation ")
    assert lines[1:3] == ["fields: x", "tags: prompt='[red]7'"]
    assert ["train", "dead", "2"] in [line.split() for line in lines]
    events = lines[next(number for number, line in enumerate(lines) if line.startswith("ago")) + 1 :]
    words = ["put", "claimed", "released", "claimed", "released", "dead_letter"]
    assert [line.split()[2] for line in events] == words
    assert "rollout-0" in events[0]
    assert events[2].rstrip().endswith("NaN in the loss")
    assert events[4].rstrip().endswith("out of [bold]memory")


def test_a_sample_that_is_gone_still_has_its_story(troubled: str) -> None:
    code, text = run("sample", "p", "b", "-s", troubled)
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "b is not in p any more"
    assert [line.split()[2] for line in lines[2:]] == ["put", "claimed", "committed", "cleared"]


def test_a_sample_of_a_reserved_group_is_shown_as_hidden(troubled: str) -> None:
    with connect(troubled) as client:
        group = client.reserve_group("p", "prompt-7", ["g"])
        _, text = run("sample", "p", "g", "-s", troubled)
        group.abort()
    assert "group: prompt-7, still reserved, so no claim sees it" in text.splitlines()
    assert "fields: none yet" in text.splitlines()


def test_a_sample_that_nobody_knows_is_named_and_the_exit_code_is_1(troubled: str) -> None:
    code, text = run("sample", "p", "nobody", "-s", troubled)
    assert code == 1
    assert "partition 'p' has no sample 'nobody'" in text


def test_dead_letters_are_listed_with_their_last_reason(troubled: str) -> None:
    code, text = run("dead-letters", "p", "train", "-s", troubled)
    assert code == 0
    assert text.splitlines()[1].split() == ["a", "2", "out", "of", "[bold]memory"]


def test_stories_and_dead_letters_as_json_are_for_programs(troubled: str) -> None:
    story = json.loads(run("sample", "p", "a", "-s", troubled, "-o", "json")[1])
    assert (story["resident"], story["fields"], story["tags"]) == (True, ["x"], {"prompt": "[red]7"})
    assert story["tasks"] == [{"task": "train", "state": "dead", "deliveries": 2, "claim_id": ""}]
    assert story["events"][-1]["what"] == "dead_letter"
    letters = json.loads(run("dead-letters", "p", "train", "-s", troubled, "-o", "json")[1])
    assert letters == [{"sample_id": "a", "deliveries": 2, "reason": "out of [bold]memory"}]
    described = json.loads(run("describe", "p", "-s", troubled, "-o", "json")[1])
    assert described["removed_rows"]["consumed"] == 1
    assert described["tasks"][0]["ended_deliveries"] == {"committed": 1, "released": 2}


def test_describe_shows_where_rows_went_and_how_deliveries_ended(troubled: str) -> None:
    _, text = run("describe", "p", "-s", troubled)
    assert "removed rows: consumed 1; dead after 2 deliveries" in text.splitlines()
    row = "train 1 0 0 0 1 1 3 committed 1, released 2 0"
    assert row in [" ".join(line.split()) for line in text.splitlines()]


def test_a_dead_letter_that_is_reset_gets_another_chance(troubled: str) -> None:
    assert run("reset", "p", "train", "a", "-s", troubled) == (0, "rows reset: 1, claims fenced: 0\n")
    assert run("dead-letters", "p", "train", "-s", troubled) == (0, "no dead letters\n")


def test_a_whole_task_is_reset_only_when_all_are_asked_for(troubled: str) -> None:
    with connect(troubled) as client:
        client.claim("p", "train", ["x"], 1)
        code, text = run("reset", "p", "train", "-s", troubled)
        assert (code, "--all" in text) == (2, True)
        assert run("reset", "p", "train", "a", "--all", "-s", troubled)[0] == 2
        assert run("reset", "p", "train", "--all", "-s", troubled) == (0, "rows reset: 2, claims fenced: 1\n")


@pytest.mark.parametrize("command", ["dead-letters", "reset"])
def test_an_unknown_task_is_named_and_the_exit_code_is_1(troubled: str, command: str) -> None:
    code, text = run(command, "p", "trian", *(["--all"] if command == "reset" else []), "-s", troubled)
    assert code == 1
    assert "'trian'" in text


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
    assert size_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(3.9, "3 s"), (61, "1 min 1 s"), (7322, "2 h 2 min")])
def test_durations_carry_their_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
