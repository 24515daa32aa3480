"""Puts that their caller has named are applied once, and compared with their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.codec import with_padded_rows
from dataplane_client.errors import DataPlaneError, PreconditionError
from rl_dataplane.v1 import data_plane_pb2 as pb

pytestmark = pytest.mark.fresh_server

ROWS: dict[str, Any] = {"fields": {"x": [[1, 2], [3]]}, "tags": [{"k": 1}, {}], "sequence_lengths": [2, 1]}
OTHERS: dict[str, dict[str, Any]] = {
    "another value": {"fields": {"x": [[1, 2], [4]]}},
    "another tag": {"tags": [{"k": 2}, {}]},
    "other lengths": {"sequence_lengths": None},
    "another sample": {"sample_ids": ["a", "c"]},
}


@pytest.fixture
def partition(client: DataPlaneClient) -> str:
    client.register_partition("p", ["x"], 0, ["t"])
    return "p"


@pytest.mark.parametrize("group", [False, True], ids=["alone", "as a group"])
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_put_with_a_name_is_applied_once_and_another_one_is_refused(
    client: DataPlaneClient, partition: str, group: bool, change: dict[str, Any]
) -> None:
    def put(**given: Any) -> object:
        name = f"named {group} {change}"[:64]
        rows: dict[str, Any] = {
            "sample_ids": ["a", "b"],
            "partition_id": partition,
            "request_id": name,
            **ROWS,
            **given,
        }
        return client.put_group(group_id="g", weight_version=3, **rows) if group else client.put_samples(**rows)

    first = put()
    assert client.clear_samples(["a"], partition) == 1
    assert put() == first
    with pytest.raises(PreconditionError) as refused:
        put(**change)
    assert refused.value.reason == "REQUEST_ID_USED"
    assert client.partition(partition).rows == 1


def test_padding_that_is_not_put_is_no_part_of_what_is_compared(client: DataPlaneClient, partition: str) -> None:
    for padding in (0, 9):
        fields = with_padded_rows({"x": torch.tensor([[1, padding], [2, 3]])}, [1, 2], {"x"})
        assert client.put_samples(["a", "b"], partition, fields, request_id="padded").outcomes == ["created"] * 2


@pytest.mark.parametrize("fields", [{"x": [[1]]}, {"y": [1, 2]}, None], ids=["too few", "a field", "no value"])
def test_a_group_of_which_a_step_is_refused_leaves_nothing(
    client: DataPlaneClient, partition: str, fields: dict[str, Any] | None
) -> None:
    with pytest.raises(DataPlaneError):
        client.put_group(partition, "g", ["a", "b"], fields, request_id="refused")
    described = client.partition(partition)
    assert (described.rows, described.open_groups) == (0, 0)
    assert client.put_group(partition, "g", ["a", "b"], **ROWS, request_id="refused") == 2


def test_a_digest_that_is_too_long_is_refused(client: DataPlaneClient) -> None:
    with pytest.raises(DataPlaneError) as refused:
        client._transport.unary(
            "FinishGroup", pb.FinishGroupRequest(request_id="r", reservation_id="-", request_digest=b"x" * 65), 10.0
        )
    assert refused.value.reason == "INVALID_REQUEST"
