"""Rectangles for per-token fields: their padding is cut off by the lengths of the call, and never stored unseen."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from dataplane_client import observe
from dataplane_client.client import DataPlaneClient, connect, write_columns
from dataplane_client.errors import InvalidArgumentError, PreconditionError
from dataplane_client.options import TransportChoice

IDS = ["a", "b"]
LENGTHS = [2, 4]
PADDED = torch.tensor([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0]])
FULL = torch.arange(6).reshape(2, 3)
FIELDS = ["tokens", "logprobs", "image", "input_lengths"]


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", FIELDS, 2, ["train"], per_token_fields=["tokens", "logprobs"])
    return client


def rows(client: DataPlaneClient, field: str) -> list[list[int]]:
    return [row.tolist() for row in client.get_samples(IDS, "p", [field])[field].unbind()]


@pytest.mark.parametrize(
    "lengths", [LENGTHS, np.array(LENGTHS), torch.tensor(LENGTHS, dtype=torch.int32)], ids=["list", "array", "tensor"]
)
@pytest.mark.parametrize("given", ["sequence_lengths", "input_lengths"])
@pytest.mark.parametrize("value", [PADDED, PADDED.numpy(), PADDED.tolist()], ids=["tensor", "array", "lists"])
def test_padding_is_cut_off_by_the_lengths_of_the_call(
    flow: DataPlaneClient, value: object, given: str, lengths: object
) -> None:
    fields = {"tokens": value, "logprobs": PADDED.float(), "image": torch.ones(2, 5, 7)}
    if given == "input_lengths":
        meta = flow.put_samples(IDS, "p", {**fields, "input_lengths": lengths})
    else:
        meta = flow.put_samples(IDS, "p", fields, sequence_lengths=lengths)  # type: ignore[arg-type]
    assert meta.sequence_lengths == LENGTHS
    assert rows(flow, "tokens") == [[1, 2], [3, 4, 5, 6]]
    assert rows(flow, "logprobs") == [[1, 2], [3, 4, 5, 6]]
    assert flow.get_samples(IDS, "p", ["image"])["image"].shape == (2, 5, 7)
    assert flow.claim_meta("p", "train", ["tokens"], 2).sequence_lengths == LENGTHS


def test_lengths_of_ragged_columns_are_in_the_meta_of_a_claim_alone(flow: DataPlaneClient) -> None:
    assert flow.put_samples(IDS, "p", {"tokens": [[1, 2], [3, 4, 5, 6]]}).sequence_lengths is None
    assert flow.claim_meta("p", "train", ["tokens"], 2).sequence_lengths == LENGTHS
    nested = torch.nested.nested_tensor([torch.arange(5), torch.arange(5)], layout=torch.jagged)  # never cut
    with pytest.raises(InvalidArgumentError, match=r"'tokens' .*5 tokens, sequence_lengths .*2"):
        flow.put_samples(IDS, "p", {"tokens": nested, "image": torch.ones(2, 5)}, sequence_lengths=LENGTHS)


def test_padding_that_nothing_tells_apart_is_refused_and_nothing_is_stored(flow: DataPlaneClient) -> None:
    told = (
        "'p', sample 'a': field 'tokens' is per-token, and the put has 5 tokens for every row, padding included; .* "
        r"pack_per_token_field\(value, lengths\), .* sequence_lengths= \(rows without padding: \[5\] \* len\(sample_ids"
    )
    with pytest.raises(InvalidArgumentError, match=told):
        flow.put_samples(IDS, "p", {"tokens": PADDED})
    with pytest.raises(InvalidArgumentError, match=r"rows without padding: \[5\] \* len"):
        flow.put_samples(IDS, "p", {"tokens": torch.zeros(2, 5, 0)})
    assert flow.partition("p").rows == 0


def test_a_rectangle_narrower_than_a_row_is_refused(flow: DataPlaneClient) -> None:
    with pytest.raises(
        InvalidArgumentError,
        match=r"'p', field 'tokens', row 1: .*4 .*3 ",
    ):
        flow.put_samples(IDS, "p", {"tokens": FULL}, sequence_lengths=LENGTHS)
    assert flow.partition("p").rows == 0


def test_two_lengths_of_a_row_are_refused(flow: DataPlaneClient) -> None:
    told = "sample 'b': sequence_lengths says 4 tokens, the field 'input_lengths' 3"
    with pytest.raises(InvalidArgumentError, match=told):
        flow.put_samples(IDS, "p", {"tokens": PADDED, "input_lengths": [2, 3]}, sequence_lengths=LENGTHS)


WRITES: dict[str, Callable[[DataPlaneClient, torch.Tensor], object]] = {
    "write": lambda client, value: client.claim("p", "train", [], 2).write({"logprobs": value}),
    "commit": lambda client, value: client.claim("p", "train", [], 2).commit({"logprobs": value}),
    "write_columns": lambda client, value: write_columns(
        client, client.claim("p", "train", [], 2).meta, {"logprobs": value}
    ),
}


@pytest.mark.parametrize("lengths", [LENGTHS, [9, 9]], ids=["padded", "full"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_results_are_cut_to_the_lengths_of_the_claimed_rows(
    flow: DataPlaneClient, write: Callable[[DataPlaneClient, torch.Tensor], object], lengths: list[int]
) -> None:
    flow.put_samples(IDS, "p", {"image": FULL}, sequence_lengths=lengths)
    write(flow, torch.full((2, 9), 0.5))
    assert rows(flow, "logprobs") == [[0.5] * length for length in lengths]


@pytest.mark.parametrize("verb", ["write", "commit"])
def test_results_for_rows_of_unknown_lengths_are_cut_to_those_beside_them(flow: DataPlaneClient, verb: str) -> None:
    flow.put_samples(IDS, "p", {"image": FULL})
    claim = flow.claim("p", "train", [], 2)
    assert claim.meta.sequence_lengths is None
    getattr(claim, verb)({"logprobs": torch.full((2, 9), 0.5), "input_lengths": torch.tensor(LENGTHS)})
    assert rows(flow, "logprobs") == [[0.5] * length for length in LENGTHS]


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def connected(address: str, transport: TransportChoice) -> Iterator[Callable[[], DataPlaneClient]]:
    """Connects another client."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(address, timeout_s=200.0, transport=transport))


@pytest.fixture
def calls(transport: TransportChoice) -> Iterator[Callable[[], dict[str, float]]]:
    """Writes of all clients so far and their questions, by verb, with the error of those that were refused."""
    registry = CollectorRegistry()
    counters = observe.count_calls(registry)

    def counted() -> dict[str, float]:
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        return {
            f"{sample.labels['verb']} {sample.labels['code']}": sample.value
            for sample in samples
            if sample.name == "dataplane_client_calls_total"
            and sample.labels["transport"] == transport
            and sample.labels["verb"] in ("PutSamples", "CommitClaim", "GetPartition")
        }

    yield counted
    observe.remove(counters)


def test_who_registered_the_partition_sends_padded_rows_once(
    calls: Callable[[], dict[str, float]], flow: DataPlaneClient
) -> None:
    flow.put_samples(IDS, "p", {"tokens": PADDED}, sequence_lengths=LENGTHS)
    flow.claim("p", "train", [], 2).commit({"logprobs": torch.full((2, 9), 0.5)})
    assert calls() == {"PutSamples OK": 1, "CommitClaim OK": 1}
    assert rows(flow, "logprobs") == [[0.5] * 2, [0.5] * 4]


def test_another_client_asks_once_which_fields_are_per_token(
    calls: Callable[[], dict[str, float]], flow: DataPlaneClient, connected: Callable[[], DataPlaneClient]
) -> None:
    other = connected()
    for _ in range(3):
        other.put_samples(IDS, "p", {"tokens": PADDED}, sequence_lengths=LENGTHS)
    assert calls() == {"PutSamples InvalidArgumentError": 1, "GetPartition OK": 1, "PutSamples OK": 3}


@pytest.mark.fresh_server
def test_a_commit_that_is_repeated_with_other_padding_or_none_gets_the_answer_of_the_first(
    flow: DataPlaneClient, connected: Callable[[], DataPlaneClient]
) -> None:
    flow.put_samples(IDS, "p", {"tokens": PADDED}, sequence_lengths=LENGTHS)
    claim, other = flow.claim("p", "train", [], 2), connected()
    again = [other.adopt_claim(claim.claim_id, claim.meta) for _ in range(2)]
    assert claim.commit({"logprobs": torch.ones(2, 9)}, request_id="r") == 2
    assert again[0].commit({"logprobs": [[1.0] * 2, [1.0] * 4]}, request_id="r") == 2
    other.partition("p")
    assert again[1].commit({"logprobs": torch.ones(2, 7)}, request_id="r") == 2


@pytest.mark.fresh_server
@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_commit_of_integers_into_fields_of_floats_that_is_repeated_gets_the_answer_of_the_first(
    client: DataPlaneClient, connected: Callable[[], DataPlaneClient], is_cleared: bool
) -> None:
    client.register_partition(
        "p",
        ["tokens", "logprobs", "reward"],
        2,
        ["train"],
        per_token_fields=["tokens", "logprobs"],
        dtypes={"logprobs": "float32", "reward": "float16"},
        clear_when_consumed=is_cleared,
    )
    client.put_samples(IDS, "p", {"tokens": PADDED}, sequence_lengths=LENGTHS)
    claim, other = client.claim("p", "train", [], 2), connected()
    again, wrong = (of.adopt_claim(claim.claim_id, claim.meta) for of in (client, client))
    elsewhere = other.adopt_claim(claim.claim_id, claim.meta)
    name = uuid.uuid4().hex
    given = {"reward": [1, -2], "logprobs": torch.ones(2, 9, dtype=torch.int64)}
    assert [one.commit(given, request_id=name) for one in (claim, again, elsewhere)] == [2, 2, 2]
    with pytest.raises(PreconditionError, match="asked for something else"), wrong:
        wrong.commit({"reward": [1, -2]}, request_id=name)


def test_columns_are_not_cut_for_a_partition_that_had_the_name_before(
    flow: DataPlaneClient, connected: Callable[[], DataPlaneClient]
) -> None:
    """What was learned of its fields is no longer true, and no value goes missing."""
    other = connected()
    other.drop_partition("p")
    other.register_partition("p", FIELDS, 2, ["train"])
    for _ in range(2):
        flow.put_samples(IDS, "p", {"tokens": PADDED}, sequence_lengths=LENGTHS)
        assert torch.equal(flow.get_samples(IDS, "p", ["tokens"])["tokens"], PADDED)


def test_a_field_that_another_client_has_declared_per_token_meanwhile_is_cut_too(
    flow: DataPlaneClient, connected: Callable[[], DataPlaneClient]
) -> None:
    connected().extend_partition("p", fields=["values"], per_token_fields=["values"])
    flow.put_samples(IDS, "p", {"tokens": PADDED, "values": PADDED}, sequence_lengths=LENGTHS)
    assert rows(flow, "tokens") == rows(flow, "values") == [[1, 2], [3, 4, 5, 6]]
