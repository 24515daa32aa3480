"""`dataplane samples`, `claims`, `groups` and `sessions`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from tests.client.cli.reading import read, run, run_json
from tests.waiting import eventually

from dataplane_client import DataPlaneClient, connect
from dataplane_client.errors import ClosedError
from dataplane_client.records.meta import Tag
from dataplane_server.testing import running_server


@pytest.fixture(scope="module")
def client() -> Iterator[DataPlaneClient]:
    """A server with partition p: of rows 0 to 4 the task `train` has consumed row 0 and holds rows 1 and 2."""
    with running_server(memory_bytes=1 << 20) as address, connect(address, client_name="trainer-3") as client:
        client.register_partition("p", ["x", "y"], 5, ["train"])
        tags: list[dict[str, Tag]] = [{"weight_version": row % 2, "note": f"row {row}"} for row in range(5)]
        ids = [f"s{row}" for row in range(5)]
        client.put_samples(ids, "p", {"x": torch.zeros(5)}, tags, sequence_lengths=[3, 4, 5, 6, 7])
        client.claim("p", "train", ["x"], 1).commit()
        held = client.claim("p", "train", ["x"], 2)
        yield client
        held.release()


def test_samples_are_listed_with_lengths_states_and_tags(client: DataPlaneClient) -> None:
    code, text = run("samples", "p", "--task", "train", "--limit", "2", "-s", client.target)
    assert (code, read(text)) == (
        0,
        [
            "sample  tokens  state  tags",
            "s0  3  consumed  weight_version=0, note='row 0'",
            "s1  4  claimed  weight_version=1, note='row 1'",
            "there are more than 2: see --limit",
        ],
    )


def test_a_row_of_unknown_length_hides_no_other_length(client: DataPlaneClient) -> None:
    client.register_partition("q", ["x"], 0, ["train"])
    client.put_samples(["known"], "q", {"x": [1]}, sequence_lengths=[3])
    client.put_samples(["unknown"], "q", {"x": [1]})
    assert [row["sequence_length"] for row in run_json("samples", "q", "-s", client.target)] == [3, None]
    client.drop_partition("q")


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        (["--tag", "weight_version=1"], ["s1", "s3"]),
        (["--tag", "weight_version=1", "--tag", "note=row 3"], ["s3"]),
        (["--task", "train", "--state", "untaken", "--state", "consumed"], ["s0", "s3", "s4"]),
        (["--tag", 'weight_version="1"'], []),
        (["--tag", "weight_version=0", "--tag", "weight_version=1"], []),
        (["--where", "note > 'row 1' and age_s < 600"], ["s2", "s3", "s4"]),
        (["--where", "note > 'row 1' or note is null", "--tag", "weight_version=1"], ["s3"]),
    ],
    ids=["tag", "tags", "states", "text", "two values", "filter", "filter and tag"],
)
def test_samples_are_chosen_by_tags_and_states(client: DataPlaneClient, flags: list[str], ids: list[str]) -> None:
    rows = run_json("samples", "p", *flags, "-s", client.target)
    assert [row["sample_id"] for row in rows] == ids


def test_tags_of_a_filter_that_no_row_has_are_named(client: DataPlaneClient) -> None:
    asked = ("samples", "p", "-s", client.target, "--where")
    assert run(*asked, "sdt > 0 and note > 'z'") == (0, "no samples: no row has the tag 'sdt'\n")
    assert run(*asked, "note > 'z' or age_s > 600") == (0, "no samples\n")
    code, text = run(*asked, "y > 0")
    assert (code, "'y' is a field" in text) == (1, True)


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--state", "untaken"], "--state needs --task"),
        (["--tag", "x"], "KEY=VALUE"),
        (["--tag", "n=99999999999999999999"], "--tag: tag 'n' of the filter: an int has at most 64 bits"),
        (["--where", "std > high"], "--where: filter 'std > high', column 7"),
    ],
)
def test_wrong_flags_are_named(client: DataPlaneClient, flags: list[str], rule: str) -> None:
    code, text = run("samples", "p", *flags, "-s", client.target)
    assert (code, rule in text) == (2, True)


def test_claims_show_who_holds_rows_and_who_waits_for_what(client: DataPlaneClient) -> None:
    with connect(client.target, client_name="trainer-4") as other:
        wait = threading.Thread(target=_claim_in_vain, args=(other,))
        wait.start()
        eventually(lambda: client.claims().waiting)
        code, text = run("claims", "p", "train", "-s", client.target)
        watched = [
            run("why", *flags, "-s", client.target)[0] for flags in ([], ["--fail-after", "0"], ["--fail-after", "60"])
        ]
    wait.join()
    assert (code, read(text, r"[0-9a-f]{12}-[0-9a-f]{16}-\d+")) == (
        0,
        [
            "client  partition  task  rows  held for  claim  shard",
            "trainer-3  p  train  2  ~  ~",
            "",
            "client  partition  task  waits  wants  ready  missing",
            "trainer-4  p  train  ~  9  0  y in 2 rows",
        ],
    )
    assert watched == [0, 3, 0]
    assert run("why", "p", "--fail-after", "0", "-s", client.target)[0] == 0, "nothing waits any more"


def _claim_in_vain(client: DataPlaneClient) -> None:
    with pytest.raises(ClosedError):
        client.claim("p", "train", ["x", "y"], 9, timeout_s=1000.0)


def test_sessions_show_what_each_client_holds(client: DataPlaneClient) -> None:
    code, text = run("sessions", "-s", client.target)
    assert (code, read(text, r"[0-9a-f]{12}-[0-9a-f]{16}-s\d+")) == (
        0,
        ["client  claims  rows  groups  silent for  grace  session", "trainer-3  1  2  0  ~  ~  ~"],
    )
    (session,) = run_json("sessions", "-s", client.target)
    assert (session["client"], session["rows"], session["grace_s"]) == ("trainer-3", 2, 10.0)


def test_groups_are_listed_with_what_they_wait_for_and_why_some_were_given_up(client: DataPlaneClient) -> None:
    assert run("groups", "p", "-s", client.target) == (0, "no reserved groups\n")
    client.reserve_group("p", "hard", max_regenerations=0).abort("no test passes")
    with client.reserve_group("p", "p7", ["p7-0", "p7-1"], deadline_s=60.0, min_rows=1) as group:
        group.put(["p7-0"], {"x": torch.zeros(1)})
        code, text = run("groups", "p", "-s", client.target)
        group.abort()
    lines = read(text)
    assert (code, lines[0]) == (0, "group  client  age  rows  failed  deadline in  waits for")
    assert lines[1].startswith("p7  trainer-3  ~  2  0  ~  p7-1")
    assert lines[-1] == "hard  1  no test passes"
    assert run("groups", "q", "-s", client.target)[0] == 1
