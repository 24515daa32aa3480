"""Draws through a client, over both transports: rows for off-policy training that nobody owns."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, NotFoundError, TooFewRowsError, UnsupportedTypeError
from dataplane_client.policies import TaskPolicy

NAMES = [f"s{i}" for i in range(6)]


@pytest.fixture
def client(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x", "y"], 6, ["train"], per_token_fields=["x"])
    rows = [torch.arange(length) for length in range(1, 7)]
    tags = [{"priority": 0.0 if i == 5 else 2.0**i, "weight_version": i} for i in range(6)]
    client.put_samples(NAMES, "p", {"x": rows}, tags)
    return client


def test_drawn_rows_are_read_as_claimed_ones_and_stay_for_their_tasks(client: DataPlaneClient) -> None:
    drawn = client.draw_samples("p", ["x"], 4)
    assert len(set(drawn.meta.sample_ids)) == 4
    assert (drawn.draws, drawn.probabilities) == ([1] * 4, [1 / 6] * 4)
    assert drawn.staleness == [5 - int(name[1]) for name in drawn.meta.sample_ids]
    read = client.get_data(drawn.meta)
    assert [len(row) for row in read["x"].unbind()] == drawn.meta.sequence_lengths
    assert client.read_columns(drawn.meta, ["x"])["x"].shape == (4, max(drawn.meta.sequence_lengths or ()))
    with client.claim("p", "train", ["x"], 6) as claim:
        assert claim.meta.sample_ids == NAMES
        again = client.draw_samples("p", ["x"], 6, strategy="lifo")
    assert again.meta.sample_ids == NAMES[::-1]
    assert again.draws == [1 + (name in drawn.meta.sample_ids) for name in NAMES[::-1]]


def test_a_put_of_tags_changes_priorities(client: DataPlaneClient) -> None:
    drawn = client.draw_samples("p", [], 9, min_size=1, strategy="prioritized", priority_tag="priority")
    expected = {name: 2.0 ** int(name[1]) / 31 for name in NAMES[:5]}
    assert dict(zip(drawn.meta.sample_ids, drawn.probabilities, strict=True)) == pytest.approx(expected, rel=1e-6)
    client.put_samples(drawn.meta.sample_ids, "p", tags=[{"priority": 1.0}] * 5, generations=drawn.meta.generations)
    by_root = {"priority_tag": "priority", "priority_exponent": 0.5}
    client.put_samples(["s5"], "p", tags=[{"priority": 16.0}])
    drawn = client.draw_samples("p", [], 6, strategy="prioritized", **by_root)  # type: ignore[arg-type]
    shown = dict(zip(drawn.meta.sample_ids, drawn.probabilities, strict=True))
    assert shown == pytest.approx({name: (4.0 if name == "s5" else 1.0) / 9 for name in NAMES}, rel=1e-6)


def test_draws_keep_to_the_bounds_that_they_name(client: DataPlaneClient) -> None:
    client.set_policies("p", {"train": TaskPolicy(max_staleness=2)})
    drawn = client.draw_samples("p", ["x"], 9, min_size=1, strategy="fifo", task_name="train")
    assert drawn.meta.sample_ids == ["s3", "s4", "s5"]
    assert drawn.meta.task_name == "train"
    rest = client.draw_samples("p", ["x"], 9, min_size=1, strategy="fifo", max_times_sampled=1, where="age_s < 3600")
    assert rest.meta.sample_ids == ["s0", "s1", "s2"]
    with pytest.raises(TooFewRowsError, match=r"1 rows wanted; 0 of 6 .*; 6 were drawn 1 times") as caught:
        client.draw_samples("p", [], 1, max_times_sampled=1)
    assert caught.value.details == {"partition_id": "p", "rows": "0"}


def test_a_seed_makes_a_draw_repeatable(client: DataPlaneClient) -> None:
    assert len({tuple(client.draw_samples("p", [], 3, seed=7).meta.sample_ids) for _ in range(4)}) == 1
    assert len({tuple(client.draw_samples("p", [], 3).meta.sample_ids) for _ in range(20)}) > 5


def test_what_is_wrong_in_a_draw_is_told(client: DataPlaneClient) -> None:
    for wrong, error, words in (
        ({"strategy": "best"}, InvalidArgumentError, "strategy must be one of"),
        ({"strategy": "prioritized"}, InvalidArgumentError, "needs priority_tag"),
        ({"priority_exponent": "1"}, UnsupportedTypeError, "priority_exponent must be a number"),
        ({"max_times_sampled": 0}, InvalidArgumentError, "max_times_sampled must be 1 to"),
        ({"seed": -1}, InvalidArgumentError, "seed must be 0 to"),
        ({"task_name": "judge"}, NotFoundError, "no task 'judge'"),
    ):
        with pytest.raises(error, match=words):
            client.draw_samples("p", ["x"], 1, **wrong)
    with pytest.raises(TooFewRowsError, match="6 lack field 'y'"):
        client.draw_samples("p", ["y"], 1)
