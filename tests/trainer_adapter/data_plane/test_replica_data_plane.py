"""A replica of one rank against a real server: reads, writes, claims and refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.data_plane.replica_cases import IDS, LENGTHS, PAD, first_batch, meta_of, tokens

from dataplane_client.client import DataPlaneClient, connect, kv_first_write
from dataplane_client.errors import InvalidArgumentError, NotFoundError, ReplacedError
from dataplane_client.records.meta import PAD_TARGET_KEY, KVBatchMeta
from dataplane_server.testing import running_server
from trainer_adapter.data_plane import ReplicaDataPlane, ReplicaGroup

ALONE = ReplicaGroup(None, 0, is_leader=True)
ROWS = [4, 1, 6]
OF_8 = torch.zeros(3, 8)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def client() -> Iterator[DataPlaneClient]:
    with running_server() as address, connect(address) as client:
        declared = [*first_batch(), "prompt_ids_for_adv", "prev_logprobs", "score", "embedding"]
        client.register_partition("p", declared, 8, ["train"])
        batch = {**first_batch(), "prompt_ids_for_adv": first_batch()["input_ids"]}
        kv_first_write(batch, sample_ids=IDS, dp_client=client, partition_id="p")
        yield client


def side_of(client: DataPlaneClient | None, device: str = "cpu", **changes: Any) -> ReplicaDataPlane:
    settings: dict[str, Any] = {"replica": ALONE, "dp_group": None, "pad_token_id": PAD, "pad_multiple": 4, **changes}
    return ReplicaDataPlane(client, device=torch.device(device), **settings)


def claim_of(side: ReplicaDataPlane, **options: Any) -> Any:
    return side.claim_shard("p", "train", ["input_ids"], 8, step=0, dp_rank=0, dp_world=1, timeout_s=200, **options)


@pytest.fixture
def side(client: DataPlaneClient) -> ReplicaDataPlane:
    return side_of(client)


# --- fetch ---


@pytest.mark.parametrize("known", [True, False], ids=["lengths known", "lengths unknown"])
@pytest.mark.parametrize("pad_token_id", [PAD, None])
def test_only_ids_are_padded_with_the_pad_token(client: DataPlaneClient, known: bool, pad_token_id: int | None) -> None:
    names = ["input_ids", "prompt_ids_for_adv", "token_mask"]
    batch = side_of(client, pad_token_id=pad_token_id).fetch(meta_of("p", ROWS, known), names)
    ids = [tokens(row) + [pad_token_id or 0] * (8 - LENGTHS[row]) for row in ROWS]
    assert batch["input_ids"].tolist() == ids
    assert batch["prompt_ids_for_adv"].tolist() == ids
    assert batch["token_mask"].tolist() == [[token < LENGTHS[row] for token in range(8)] for row in ROWS]


@pytest.mark.parametrize(
    ("arguments", "error", "fragment"),
    [
        ({"fetch_policy": "leader"}, ValueError, "fetch_policy"),
        ({"fetch_policy": "leader_broadcast"}, RuntimeError, "several ranks"),
        ({"layout": "packed"}, ValueError, "layout"),
        ({"fields": []}, ValueError, "'p': no fields"),
        ({"fields": "tokens"}, TypeError, "'tokens'"),
        ({"fields": ["nonsense"]}, InvalidArgumentError, "nonsense"),
        ({"fields": ["prev_logprobs"]}, NotFoundError, "prev_logprobs"),
    ],
)
def test_a_fetch_that_cannot_be_is_refused(
    side: ReplicaDataPlane, arguments: dict[str, Any], error: type[Exception], fragment: str
) -> None:
    with pytest.raises(error, match=re.escape(fragment)):
        side.fetch(meta_of("p", ROWS), **arguments)


@pytest.mark.parametrize("known", [True, False])
def test_rows_wider_than_what_the_driver_chose_are_refused(side: ReplicaDataPlane, known: bool) -> None:
    meta = replace(meta_of("p", ROWS, known), extra_info={PAD_TARGET_KEY: 6})
    with pytest.raises(ValueError, match="'p': a row has 7 tokens, more than the width 6"):
        side.fetch(meta, ["input_ids"])


# --- write_back ---


@pytest.mark.parametrize("width", [7, 8, 20])
def test_padding_is_not_stored_however_wide_the_result(
    client: DataPlaneClient, side: ReplicaDataPlane, width: int
) -> None:
    values = torch.rand(3, width, requires_grad=True)
    side.write_back(meta_of("p", ROWS), {"logprobs": values}, result_key="logprobs", field="prev_logprobs")
    stored = client.get_samples([IDS[row] for row in ROWS], "p", ["prev_logprobs"])["prev_logprobs"].unbind()
    for row, kept, value in zip(ROWS, stored, values.detach(), strict=True):
        assert torch.equal(kept, value[: LENGTHS[row]])


@pytest.mark.parametrize(
    ("result", "known", "error", "fragment"),
    [
        ([torch.zeros(3)], True, RuntimeError, "list"),
        ({"logprob": torch.zeros(3, 8)}, True, RuntimeError, "['logprob']"),
        ({"logprobs": [0.0, 0.0, 0.0]}, True, TypeError, "'logprobs'"),
        ({"logprobs": torch.zeros(4, 8)}, True, ValueError, "shape (4, 8)"),
        ({"logprobs": torch.tensor(1.0)}, True, ValueError, "shape ()"),
        ({"logprobs": torch.zeros(3, 6)}, True, ValueError, "6 positions"),
        ({"logprobs": OF_8}, False, ValueError, "lengths"),
        ({"logprobs": OF_8, "input_lengths": torch.tensor([1, 1])}, False, ValueError, "input_lengths (3,)"),
    ],
)
def test_a_result_of_other_rows_is_refused_and_nothing_written(
    client: DataPlaneClient, side: ReplicaDataPlane, result: Any, known: bool, error: type[Exception], fragment: str
) -> None:
    with pytest.raises(error, match=re.escape(fragment)):
        side.write_back(meta_of("p", ROWS, known), result, result_key="logprobs", field="prev_logprobs")
    with pytest.raises(NotFoundError):
        client.get_samples([IDS[ROWS[0]]], "p", ["prev_logprobs"])


def test_a_row_that_was_put_again_is_another_one(client: DataPlaneClient, side: ReplicaDataPlane) -> None:
    claim = claim_of(side)
    client.clear_samples(["s2"], "p")
    client.put_samples(["s2"], "p", {"sample_mask": torch.ones(1)})
    with pytest.raises(ReplacedError):
        side.write_back(claim.meta, {"s": torch.zeros(8)}, result_key="s", field="score")
    assert claim.release() == 7


# --- claims ---


def test_a_claim_is_released_with_the_error_as_its_reason(client: DataPlaneClient, side: ReplicaDataPlane) -> None:
    with pytest.raises(ZeroDivisionError), claim_of(side) as claim:
        raise ZeroDivisionError("a bad row")
    assert claim.state == "released"
    assert "ZeroDivisionError: a bad row" in str(client.sample("p", "s0"))


def test_columns_that_do_not_fit_leave_the_claim_open(side: ReplicaDataPlane) -> None:
    claim = claim_of(side)
    with pytest.raises(ValueError, match=r"'score' has 3 rows, .*8 samples"):
        claim.commit({"score": torch.zeros(3)})
    assert (claim.state, claim.release(), claim.state) == ("open", 8, "released")
    assert repr(claim).endswith("8 rows released>")


def test_columns_may_be_lists(client: DataPlaneClient, side: ReplicaDataPlane) -> None:
    scores = [0.5 * row for row in range(8)]
    with claim_of(side) as claim:
        assert claim.commit({"score": scores}) == 8
    assert client.get_samples(IDS, "p", ["score"])["score"].tolist() == scores


@pytest.mark.parametrize("width", [2, 20], ids=["narrower than the longest row", "wider"])
def test_columns_that_are_not_per_token_are_stored_whole(
    client: DataPlaneClient, side: ReplicaDataPlane, width: int
) -> None:
    embedding = torch.rand(8, width, requires_grad=True)
    with claim_of(side) as claim:
        assert claim.commit({"embedding": embedding}) == 8
    assert torch.equal(client.get_samples(IDS, "p", ["embedding"])["embedding"], embedding.detach())


@pytest.mark.parametrize("known", [True, False], ids=["lengths known", "lengths unknown"])
def test_padding_of_per_token_columns_is_not_committed(
    client: DataPlaneClient, side: ReplicaDataPlane, known: bool
) -> None:
    """Without the lengths of the claimed rows it is told apart by input_lengths."""
    fields = ["logprobs", "input_lengths", "score"]
    client.register_partition("q", fields, 8, ["train"], per_token_fields=["logprobs"])
    client.put_samples(IDS, "q", {"score": torch.zeros(8)}, sequence_lengths=LENGTHS if known else None)
    values = torch.rand(8, 20)
    with side.claim_shard("q", "train", ["score"], 8, step=0, dp_rank=0, dp_world=1, timeout_s=200) as claim:
        beside = {} if known else {"input_lengths": torch.tensor(LENGTHS)}
        assert claim.commit({"logprobs": values, **beside}) == 8
    stored = client.get_samples(claim.meta.sample_ids, "q", ["logprobs"])["logprobs"].unbind()
    for sample_id, kept, value in zip(claim.meta.sample_ids, stored, values, strict=True):
        assert torch.equal(kept, value[: LENGTHS[IDS.index(sample_id)]])


# --- on a device ---


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("known", [True, False])
def test_a_batch_on_the_device_is_the_one_on_the_host(client: DataPlaneClient, known: bool) -> None:
    meta = meta_of("p", ROWS, known)
    expected, found = side_of(client).fetch(meta), side_of(client, "cuda").fetch(meta)
    assert list(found) == list(expected)
    for name, value in found.items():
        if isinstance(value, torch.Tensor):
            assert value.device.type == "cuda"
            assert torch.equal(value.cpu(), expected[name])


@pytest.mark.gpu
@needs_cuda
def test_results_on_the_device_are_stored_like_those_on_the_host(client: DataPlaneClient) -> None:
    meta: KVBatchMeta = meta_of("p", ROWS)
    values = torch.rand(3, 8)
    side_of(client, "cuda").write_back(meta, {"l": values.cuda()}, result_key="l", field="prev_logprobs")
    stored = client.get_samples(meta.sample_ids, "p", ["prev_logprobs"])["prev_logprobs"].unbind()
    for row, kept, value in zip(ROWS, stored, values, strict=True):
        assert torch.equal(kept, value[: LENGTHS[row]])
