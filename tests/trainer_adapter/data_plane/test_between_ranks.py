"""Two replicas of two ranks on gloo, and a real server that counts calls: only leaders call it, and all ranks fail
together.

replica_cases.py has the cases and their data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.rank_pool import RankPool
from tests.trainer_adapter.data_plane import replica_cases
from tests.trainer_adapter.data_plane.replica_cases import IDS, LENGTHS, ORDERS, PAD, WORLD, counters, tokens

from dataplane_client.client import DataPlaneClient, connect, kv_first_write
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread

pytestmark = pytest.mark.xdist_group("ranks")

DECLARED = [*replica_cases.FIELDS, "input_lengths", "prev_logprobs", "reward"]


class Played(NamedTuple):
    """ranks: what each rank saw, by case. counts: the server's counters by (name, partition)."""

    ranks: list[dict[str, Any]]
    counts: dict[tuple[str, str], int]
    client: DataPlaneClient

    def seen(self, case: str) -> list[Any]:
        return [rank[case] for rank in self.ranks]


@pytest.fixture(scope="module")
def played(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("ranks")
    server = ServerThread(ServerConfig(listen=(f"unix://{folder}/socket",), http="127.0.0.1:0"))
    try:
        with connect(server.addresses[0]) as client:
            for name in replica_cases.CASES:
                client.register_partition(name, DECLARED, 8, ["train"], per_token_fields=["prev_logprobs"])
                kv_first_write(replica_cases.first_batch(), sample_ids=IDS, dp_client=client, partition_id=name)
            ranks = rank_pool.play(replica_cases.play_cases, server.addresses[0], ranks=WORLD)
            yield Played(ranks, counters(server.http_address), client)
    finally:
        server.stop()


def padded(rows: list[int], width: int) -> list[list[int]]:
    return [tokens(row) + [PAD] * (width - LENGTHS[row]) for row in rows]


def batch_of(rows: list[int], width: int) -> dict[str, Any]:
    return {
        "input_ids": padded(rows, width),
        "token_mask": [[True] * LENGTHS[row] + [False] * (width - LENGTHS[row]) for row in rows],
        "sample_mask": [1.0] * len(rows),
        "notes": [{"row": row, "tools": ["x"] * row} for row in rows],
    }


def by_rank(of_replica: list[Any]) -> list[Any]:
    return [of_replica[0], of_replica[0], of_replica[1], of_replica[1]]


# --- fetch ---


@pytest.mark.parametrize(
    ("case", "width", "rows_read"),
    [("fetched", 8, 8), ("minted", 12, 8), ("unknown_lengths", 8, 8), ("independent", 8, 16)],
)
def test_all_ranks_get_the_rows_asked_for_at_one_width_and_leaders_alone_read(
    played: Played, case: str, width: int, rows_read: int
) -> None:
    assert played.seen(case) == by_rank([batch_of(rows, width) for rows in ORDERS])
    assert played.counts["dataplane_read_rows_total", case] == rows_read


def test_ragged_rows_stay_ragged_and_share_their_offsets(played: Played) -> None:
    expected = [{"rows": [tokens(row) for row in rows], "notes": batch_of(rows, 8)["notes"]} for rows in ORDERS]
    assert played.seen("jagged") == by_rank(expected)


def test_the_leader_preprocesses_once_for_all(played: Played) -> None:
    for rank, seen in enumerate(played.seen("preprocessed")):
        assert seen["calls"] == ([rank] if rank % 2 == 0 else [])
        assert seen["doubled"] == (2 * torch.tensor(seen["input_ids"])).tolist()


def test_a_plan_of_other_rows_is_refused_on_every_rank(played: Played) -> None:
    for text in played.seen("plan_of_other_rows"):
        assert text.startswith("ValueError: partition 'plan_of_other_rows': the plan of microbatches does not fit")
        assert text.endswith("it has 4 rows, the meta has 3")


LACKING = "NotFoundError: .*gone"
UNREADABLE = "RuntimeError: .*another data-parallel rank could not read"


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("unreadable", ["nothing", "nothing", LACKING, LACKING]),
        ("unreadable_of_unknown_lengths", [UNREADABLE, UNREADABLE, LACKING, LACKING]),
        ("without_rows", [UNREADABLE, UNREADABLE, *[".*ValueError: .*has no rows"] * 2]),
        (
            "unreadable_by_one",
            ["nothing", "nothing", f"RuntimeError: another rank of the replica failed: {LACKING}", LACKING],
        ),
    ],
)
def test_a_read_that_fails_fails_on_all_that_need_it(played: Played, case: str, texts: list[str]) -> None:
    """The replica, or all where they have to agree on a width."""
    for found, text in zip(played.seen(case), texts, strict=True):
        assert re.match(text, found)


def test_a_preprocessing_that_fails_or_loses_rows_fails_on_all_ranks(played: Played) -> None:
    for rank, (fails, drops) in enumerate(played.seen("preprocess_fails")):
        prefix = "" if rank % 2 == 0 else f"RuntimeError: rank {rank - 1} failed: "
        assert fails == f"{prefix}KeyError: 'no such prompt'"
        assert drops.startswith(f"{prefix}ValueError: preprocess must keep the meta's 4 rows, but returned 3")


# --- write_back ---


def test_the_leaders_result_is_stored_row_by_row_without_padding(played: Played) -> None:
    stored = played.client.get_samples(IDS, "written", ["prev_logprobs"])["prev_logprobs"].unbind()
    for row, values in enumerate(stored):
        leader = 0 if row in ORDERS[0] else 2
        torch.testing.assert_close(values, row + torch.arange(LENGTHS[row]) / 10 + 1000 * leader)


def test_a_result_with_one_value_a_row_is_stored_as_it_is_and_needs_no_lengths(played: Played) -> None:
    stored = played.client.get_samples(IDS, "written", ["reward"])["reward"]
    assert stored.tolist() == [row + 0.5 for row in range(8)]
    assert played.counts["dataplane_put_rows_total", "written"] == 3 * 8  # rollouts, and twice each row


def test_a_result_without_the_key_fails_on_all_ranks(played: Played) -> None:
    for rank, text in enumerate(played.seen("unwritable")):
        prefix = "" if rank % 2 == 0 else f"RuntimeError: rank {rank - 1} failed: "
        refusal = "RuntimeError: write-back of 'scores': the result has no such key, only ['logprobs', 'reward']"
        assert text == f"{prefix}{refusal}"


# --- claims ---


def test_a_replica_claims_once_and_commits_what_its_leader_has(played: Played) -> None:
    seen = played.seen("claimed")
    assert [seen[1]["ids"], seen[3]["ids"]] == [seen[0]["ids"], seen[2]["ids"]]
    assert sorted(seen[0]["ids"] + seen[2]["ids"]) == IDS
    for rank in seen:
        assert rank["known"] == [LENGTHS[IDS.index(sample_id)] for sample_id in rank["ids"]]
        assert (rank["rows"], rank["state"]) == (len(rank["ids"]), "committed")
        assert rank["again"].startswith("PreconditionError: ")
    for name in ("dataplane_claims_total", "dataplane_commits_total"):
        assert played.counts[name, "claimed"] == 2


def test_columns_of_a_commit_are_stored_without_padding(played: Played) -> None:
    stored = played.client.get_samples(IDS, "claimed", ["prev_logprobs", "notes"])
    leaders = {sample_id: rank for rank in (0, 2) for sample_id in played.seen("claimed")[rank]["ids"]}
    for row, (values, note) in enumerate(zip(stored["prev_logprobs"].unbind(), stored["notes"], strict=True)):
        leader = leaders[IDS[row]]
        torch.testing.assert_close(values, row + torch.arange(LENGTHS[row]) / 10 + 1000 * leader)
        assert note == {"by": leader}


def test_a_claim_that_one_rank_leaves_with_an_error_is_released_for_all(played: Played) -> None:
    for rank, (left, committed, again) in enumerate(played.seen("one_rank_fails")):
        for text, state in (left, committed):
            assert state == "released"
            if rank in (1, 2):
                assert text == "ZeroDivisionError: a bad row"
            else:
                assert text.startswith("RuntimeError: claim ")
                assert text.endswith("was released because another rank failed with ZeroDivisionError: a bad row")
        assert len(again) == 4
        for sample_id in again:
            events = played.client.sample("one_rank_fails", sample_id).events
            reasons = [event.reason for event in events if event.what == "released"]
            assert [reason.endswith("ZeroDivisionError: a bad row") for reason in reasons[:2]] == [True, True]
    assert played.counts["dataplane_commits_total", "one_rank_fails"] == 0


DISAGREE = "RuntimeError: the ranks of the replica end claim ID in different ways: ['commit', 'release']"


@pytest.mark.parametrize(
    ("case", "seen", "commits"),
    [
        pytest.param("planned", replica_cases.PLAN, 0, id="every rank gets the driver's plan"),
        pytest.param("left_clean", ["committed", False, True], 2, id="a claim that all leave in order is committed"),
        pytest.param("ranks_disagree", [DISAGREE, "open", 4, "released"], 0, id="disagreeing ranks keep the claim"),
        pytest.param("fenced", ["ClaimFencedError", "fenced"], 0, id="a fenced claim"),
        pytest.param("cleared", ["ZeroDivisionError: ", "NotFoundError", "released"], 0, id="a commit lacks a row"),
        pytest.param("exchanged", 60, 0, id="whatever is broadcast comes as it was"),
        pytest.param("gathered", 15, 0, id="whatever is gathered comes as it was, in the order of ranks"),
    ],
)
def test_all_ranks_see_the_same(played: Played, case: str, seen: Any, commits: int) -> None:
    assert played.seen(case) == [seen] * WORLD
    assert played.counts.get(("dataplane_commits_total", case), 0) == commits


# --- exchange ---


def test_an_unsupported_value_is_refused_by_name_on_all_ranks(played: Played) -> None:
    for rank, (odd, unnamed, gathered) in enumerate(played.seen("refused")):
        prefix = "" if rank % 2 == 0 else f"rank {rank - 1}: "
        for text, (_, fact) in zip(odd, replica_cases.unsupported(), strict=True):
            assert re.match(f"UnsupportedValue: ({prefix})?value 'odd': .*{fact}", text), text
        for text, (_, fact) in zip(unnamed, replica_cases.UNNAMED, strict=True):
            assert re.match(f"UnsupportedValue: ({prefix})?value.*{fact}", text), text
        assert gathered == f"UnsupportedValue: {'rank 0: ' if rank == 1 else ''}value 'odd': unsupported value type set"


def test_a_replica_is_all_that_share_a_place_in_dp(played: Played) -> None:
    for rank, seen in enumerate(played.seen("layouts")):
        pairs = [rank // 2 * 2, rank % 2 == 0, 2]
        assert seen == {
            "(2, 1, 2)": pairs,
            "(2, 2, 1)": pairs,
            "(1, 2, 2)": [0, rank == 0, 4],
            "(4, 1, 1)": [rank, True, 1],
        }
