"""Rollout batches through a real server: padded in, ragged stored, padded out; and the way of one training step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dataplane_client import BatchedDataDict
from dataplane_client.client import DataPlaneClient, kv_first_write, read_columns, write_columns
from dataplane_client.errors import ClosedError, InvalidArgumentError
from dataplane_client.records.meta import KVBatchMeta

IDS = ["u0_g0", "u0_g1", "u1_g0"]
LENGTHS = [2, 5, 3]
PER_TOKEN = ["input_ids", "logprobs"]
FIELDS = [*PER_TOKEN, "reward", "input_lengths", "sample_mask", "problem"]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", FIELDS, 3, ["prev_lp", "train"], grpo_group_size=2, per_token_fields=PER_TOKEN)
    return client


def batch() -> BatchedDataDict[object]:
    """Three right-padded rows; what lies beyond a row's length is 99 and must not travel."""
    tokens = torch.full((3, 5), 99)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = torch.arange(length) + 10 * row
    return BatchedDataDict(
        {
            "input_ids": tokens,
            "reward": torch.tensor([0.0, 1.0, 0.5]),
            "input_lengths": torch.tensor(LENGTHS),
            "sample_mask": torch.ones(3),
            "problem": np.array([{"answer": 4}, {"answer": 4}, None], object),
        }
    )


def write(client: DataPlaneClient) -> None:
    kv_first_write(batch(), sample_ids=IDS, dp_client=client, partition_id="p", tags=[{"version": 3}] * 3)


def claimed(client: DataPlaneClient) -> KVBatchMeta:
    """The rows of the batch."""
    write(client)
    return client.claim_meta("p", "train", ["input_ids"], 3)


def test_a_batch_comes_back_padded_with_what_the_reader_asks_for(flow: DataPlaneClient) -> None:
    meta = claimed(flow)
    got = read_columns(flow, meta, ["input_ids", "reward", "problem"], pad_value_dict={"input_ids": -7})
    assert got["input_ids"].tolist() == [[0, 1, -7, -7, -7], [10, 11, 12, 13, 14], [20, 21, 22, -7, -7]]
    assert got["reward"].tolist() == [0.0, 1.0, 0.5]
    assert list(got["problem"]) == [{"answer": 4}, {"answer": 4}, None]


def test_a_pad_value_of_a_field_that_is_not_there_is_refused(flow: DataPlaneClient) -> None:
    meta = claimed(flow)
    read_columns(flow, meta, ["reward"], pad_value_dict={"input_ids": -7})  # the claim's, and not read now
    with pytest.raises(InvalidArgumentError, match=r"'inputs'.*input_ids"):
        read_columns(flow, meta, ["input_ids"], pad_value_dict={"input_ids": -7, "inputs": 1})


def test_written_columns_are_ragged_by_the_metas_lengths_and_complete_the_next_stage(flow: DataPlaneClient) -> None:
    write(flow)
    with flow.claim("p", "prev_lp", ["input_ids"], 3) as claim:
        logprobs = torch.arange(15.0).reshape(3, 5)
        write_columns(flow, claim.meta, {"logprobs": logprobs})
    meta = flow.claim("p", "train", ["input_ids", "logprobs"], 3, timeout_s=0).meta
    got = flow.get_samples(meta.sample_ids, "p", ["logprobs"])["logprobs"]
    assert [row.tolist() for row in got.unbind()] == [[0.0, 1.0], [5.0, 6.0, 7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]


def test_a_partition_describes_what_it_holds(flow: DataPlaneClient) -> None:
    write(flow)
    described = flow.partition("p")
    tokens, reward, problem = described.fields[0], described.fields[2], described.fields[5]
    assert (tokens.kind, tokens.dtype, tokens.row_shape, tokens.per_token) == ("jagged", "int64", (), True)
    assert (reward.kind, reward.dtype, reward.row_shape, reward.rows) == ("dense", "float32", (), 3)
    assert (problem.kind, problem.dtype) == ("object", "")
    assert (described.num_samples, described.grpo_group_size, described.rows) == (3, 2, 3)
    assert [status.task for status in described.tasks] == ["prev_lp", "train"]
    with pytest.raises(KeyError, match="eval"):
        described.task("eval")


def test_a_client_shows_its_state_in_one_line_and_closes_twice(client: DataPlaneClient) -> None:
    assert repr(client) == f"<DataPlaneClient {client.target} open>"
    client.close()
    client.close()
    assert repr(client) == f"<DataPlaneClient {client.target} closed>"
    with pytest.raises(ClosedError):
        client.partitions()


@pytest.mark.parametrize("pad_to_seqlen", [0, 4])
def test_layout_auto_is_dense_where_all_rows_read_have_one_length(flow: DataPlaneClient, pad_to_seqlen: int) -> None:
    flow.put_samples(
        IDS, "p", {"input_ids": [[1, 2], [3, 4], [5]], "reward": torch.ones(3), "problem": ["a", {}, None]}
    )
    names = ["input_ids", "reward", "problem"]
    meta = flow.claim_meta("p", "train", ["input_ids"], 3)
    mixed = flow.read_columns(meta, names, layout="auto", pad_to_seqlen=pad_to_seqlen)
    assert [row.tolist() for row in mixed["input_ids"].unbind()] == [[1, 2], [3, 4], [5]]
    assert mixed["problem"].tolist() == ["a", {}, None]
    even = flow.read_columns(meta.slice(0, 2), names, layout="auto", pad_to_seqlen=pad_to_seqlen)["input_ids"]
    assert (even.is_nested, even[:, :2].tolist(), even.shape[1]) == (False, [[1, 2], [3, 4]], pad_to_seqlen or 2)
