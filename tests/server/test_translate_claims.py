"""Claims, shards and groups as messages: nothing is lost, nothing is made up."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from dataplane_server.core.calls.answers import DeadLetter, Grant, GroupPart, Reserved
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import ClaimSamples, ClaimShard, ReserveGroup
from dataplane_server.service import translate
from rl_dataplane.v1 import data_plane_pb2 as pb


def int64s(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def test_a_claim_comes_through_whole() -> None:
    request = pb.ClaimSamplesRequest(
        request_id="r",
        partition_id="p",
        task="train",
        required_fields=["x", "y"],
        batch_size=8,
        min_size=2,
        mode=pb.CLAIM_MODE_CONSUME,
        session_id="s",
        whole_groups=True,
        max_tokens=9,
        unit=pb.BATCH_UNIT_ROWS,
    )
    expected = ClaimSamples("r", "p", "train", ("x", "y"), 8, 2, True, "s", True, 9, "rows")
    assert translate.claims.claim(request) == expected


@pytest.mark.parametrize("given", [{}, {"min_size": 0}, {"min_size": 3}], ids=str)
def test_a_claim_without_min_size_wants_all_it_asks_for(given: dict[str, Any]) -> None:
    claim = pb.ClaimSamplesRequest(batch_size=8, mode=pb.CLAIM_MODE_ACKNOWLEDGED, **given)
    shard = pb.ClaimShardRequest(batch_size=8, balance=pb.SHARD_BALANCE_ROWS, **given)
    assert translate.claims.claim(claim).min_size == given.get("min_size", 8)
    assert translate.claims.shard(shard).min_size == given.get("min_size", 8)


BALANCES = [(pb.SHARD_BALANCE_ROWS, "rows"), (pb.SHARD_BALANCE_TOKENS, "tokens"), (pb.SHARD_BALANCE_GROUPS, "groups")]


@pytest.mark.parametrize(("number", "balance"), BALANCES)
def test_a_claim_of_a_shard_comes_through_whole(number: pb.ShardBalance.ValueType, balance: Any) -> None:
    request = pb.ClaimShardRequest(
        request_id="r",
        partition_id="p",
        task="train",
        step=7,
        dp_rank=1,
        dp_world=4,
        required_fields=["x"],
        batch_size=16,
        min_size=8,
        balance=number,
        max_tokens=9,
        whole_groups=True,
        session_id="s",
        unit=pb.BATCH_UNIT_GROUPS,
    )
    expected = ClaimShard("r", "p", "train", 7, 1, 4, ("x",), 16, 8, balance, 9, True, "s", "groups")
    assert translate.claims.shard(request) == expected


def test_a_grant_holds_what_the_client_unpacks() -> None:
    grant = Grant("c", ("a", "b"), np.array([1, -1]), ({"n": 1}, {}), np.array([5, 6]), np.array([1, 3]))
    response = translate.claims.grant(grant)
    assert (response.claim_id, list(response.sample_ids)) == ("c", ["a", "b"])
    assert (response.sequence_lengths, response.generations, response.deliveries) == (
        int64s(1, -1),
        int64s(5, 6),
        int64s(1, 3),
    )
    assert [msgpack.unpackb(packed) if packed else {} for packed in response.row_tags] == [{"n": 1}, {}]
    assert list(response.groups) == []


def test_groups_of_a_grant_keep_their_order_and_weight_versions_that_are_not_known_stay_unset() -> None:
    parts = (GroupPart("g", 2, 0, 1), GroupPart("", 1))
    group, alone = translate.claims.grant(Grant("c", (), np.array([]), (), groups=parts)).groups
    assert (group.group_id, group.rows, group.start_weight_version, group.end_weight_version) == ("g", 2, 0, 1)
    assert (alone.group_id, alone.rows) == ("", 1)
    assert group.HasField("start_weight_version")
    assert not alone.HasField("start_weight_version")
    assert not alone.HasField("end_weight_version")


@pytest.mark.parametrize("version", [None, 0, 7], ids=str)
def test_a_reservation_comes_through_whole(version: int | None) -> None:
    request = pb.ReserveGroupRequest(
        request_id="r", partition_id="p", group_id="g", sample_ids=["b", "a"], session_id="s", weight_version=version
    )
    assert translate.claims.reserve(request) == ReserveGroup("r", "p", "g", ["b", "a"], "s", version)


def test_a_reservation_is_answered_with_the_generations_of_its_rows() -> None:
    response = translate.claims.reserved(Reserved("c-g1", np.array([5, 6])))
    assert (response.reservation_id, response.generations) == ("c-g1", int64s(5, 6))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (pb.ResetTaskRequest(whole_task=True), None),
        (pb.ResetTaskRequest(sample_ids=["b", "a"]), ["b", "a"]),
        (pb.ResetTaskRequest(), []),
    ],
    ids=["whole task", "samples", "neither"],
)
def test_a_reset_names_samples_or_all(request_: pb.ResetTaskRequest, expected: list[str] | None) -> None:
    assert translate.claims.reset(request_).sample_ids == expected


def test_a_reset_of_samples_and_all_is_refused() -> None:
    with pytest.raises(Refusal, match="not both") as caught:
        translate.claims.reset(pb.ResetTaskRequest(whole_task=True, sample_ids=["a"]))
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_dead_letters_keep_their_order() -> None:
    response = translate.claims.dead_letters([DeadLetter("b", 3, "bad tokens"), DeadLetter("a", 2, "expired")])
    assert [(letter.sample_id, letter.deliveries, letter.reason) for letter in response.dead_letters] == [
        ("b", 3, "bad tokens"),
        ("a", 2, "expired"),
    ]
