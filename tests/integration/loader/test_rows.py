"""The rows that a loop sees: each once, in full batches while rows are coming, to the last."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from tests.integration.loader.conftest import Loader, announce, claimed, fill, put
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, PreconditionError
from dataplane_client.loader import ClaimLoader, LoadedBatch
from dataplane_client.records.tasks import TaskPolicy


def numbers(batch: LoadedBatch) -> list[int]:
    """The numbers of a batch's rows, after a check of their values and padding."""
    found = [int(sample_id.removeprefix("s")) for sample_id in batch.meta.sample_ids]
    lengths = [1 + number % 5 for number in found]
    width = max(lengths)
    padded = [[number] * length + [-1] * (width - length) for number, length in zip(found, lengths, strict=True)]
    assert batch.data["number"].tolist() == found
    assert batch.data["tokens"].tolist() == padded
    assert batch.data["text"].tolist() == [{"number": number} for number in found]
    assert batch.meta.sequence_lengths == lengths
    return found


def patiently(rows: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
    """The batches of a loop that waits for moments only. On a busy machine these are over before a batch is read."""
    while True:
        with suppress(ClaimTimeoutError):
            for batch in rows:  # noqa: UP028  # `yield from` would close the loop with this generator
                yield batch
            return


def has_waiting_claim(client: DataPlaneClient) -> bool:
    """Whether a claim waits on the server."""
    return client.partition("p").task("train").waiting_claims > 0


def test_each_of_10000_rows_comes_once_with_its_values(loader: Loader, client: DataPlaneClient) -> None:
    fill(client, 10_000)
    batches = list(loader(64, pad_value_dict={"tokens": -1}))
    seen = Counter(number for batch in batches for number in numbers(batch))
    assert seen == Counter(range(10_000))
    assert {delivery for batch in batches for delivery in batch.deliveries} == {1}
    assert len({batch.fence for batch in batches}) == len(batches)
    assert client.check_consumption_status("p", ["train"])


def test_a_batch_is_not_cut_short_while_announced_rows_are_missing(client: DataPlaneClient, loader: Loader) -> None:
    announce(client, 10)
    put(client, range(6))
    rows = iter(loader(4, idle_timeout_s=0.3))
    assert next(patiently(rows)).meta.size == 4
    with pytest.raises(ClaimTimeoutError, match=r"10 .* 6 .* 2 "):
        next(rows)
    put(client, range(6, 10))
    assert [batch.meta.size for batch in patiently(rows)] == [4, 2]


def test_a_loop_waits_for_the_rows_of_a_group_that_was_rolled_back(client: DataPlaneClient, loader: Loader) -> None:
    announce(client, 2)
    client.reserve_group("p", "g", ["s0", "s1"]).abort()
    assert not client.check_consumption_status("p", ["train"])
    rows = iter(loader(2, idle_timeout_s=0.3))
    with pytest.raises(ClaimTimeoutError):
        next(rows)
    put(client, range(2))
    assert [batch.meta.size for batch in patiently(rows)] == [2]
    assert client.check_consumption_status("p", ["train"])


def test_the_last_rows_are_not_split_while_enough_of_them_may_become_ready(
    loader: Loader, client: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    announce(client, 4)
    put(client, range(4))
    client.put_samples(["s0", "s1"], "p", {"advantage": torch.zeros(2)})
    sizes = threads.submit(lambda: [batch.meta.size for batch in loader(4, required_fields=["advantage"])])
    eventually(lambda: has_waiting_claim(client))
    eventually(lambda: not has_waiting_claim(client))  # the claim for a full batch has timed out
    eventually(lambda: has_waiting_claim(client))
    client.put_samples(["s2", "s3"], "p", {"advantage": torch.zeros(2)})
    assert sizes.result(200) == [4]


def test_ready_rows_come_in_a_small_batch_when_the_missing_ones_never_become_ready(
    loader: Loader, client: DataPlaneClient
) -> None:
    announce(client, 4)
    put(client, range(4))
    client.put_samples(["s0", "s1"], "p", {"advantage": torch.zeros(2)})
    rows = iter(loader(4, required_fields=["advantage"], idle_timeout_s=0.5))
    assert next(patiently(rows)).meta.sample_ids == ["s0", "s1"]
    with pytest.raises(ClaimTimeoutError, match=r"2 .* 0 .* 2 "):
        next(rows)


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_the_loop_goes_on_until_rows_that_others_hold_are_consumed(
    loader: Loader, client: DataPlaneClient, threads: ThreadPoolExecutor, closed: bool
) -> None:
    fill(client, 8)
    if closed:
        client.close_partition("p")
    other = client.claim("p", "train", [], 2)
    rows = iter(loader(3, until_consumed=not closed))
    seen = [*next(rows).meta.sample_ids, *next(rows).meta.sample_ids]
    last = threads.submit(next, rows, None)
    assert not last.done()
    other.release()
    batch = last.result(200)
    assert batch is not None
    assert next(rows, None) is None
    assert Counter([*seen, *batch.meta.sample_ids]) == Counter(f"s{number}" for number in range(8))


def test_without_until_consumed_a_loop_waits_for_more_rows(client: DataPlaneClient, loader: Loader) -> None:
    fill(client, 4)
    rows = iter(loader(4, until_consumed=False, idle_timeout_s=0.3))
    assert next(patiently(rows)).meta.size == 4
    with pytest.raises(ClaimTimeoutError, match=r"0\.3 s; a batch needs 4 rows"):
        next(rows)
    with pytest.raises(ClaimTimeoutError, match="a batch needs 9 groups"):
        next(iter(loader(9, until_consumed=False, idle_timeout_s=0.3, whole_groups=True)))
    put(client, range(4, 8))
    assert next(patiently(rows)).meta.size == 4


@pytest.mark.parametrize("until_consumed", [True, False])
def test_a_loop_ends_with_the_rest_when_its_partition_is_closed(
    loader: Loader, client: DataPlaneClient, until_consumed: bool
) -> None:
    announce(client, 100)
    put(client, range(6))
    rows = iter(loader(4, until_consumed=until_consumed))
    assert next(rows).meta.size == 4
    client.close_partition("p")
    assert [batch.meta.size for batch in rows] == [2]
    assert client.check_consumption_status("p", ["train"])


def test_max_batches_ends_the_loop_with_its_batches_committed_and_nothing_else_claimed(
    loader: Loader, client: DataPlaneClient
) -> None:
    fill(client, 100)
    assert len(list(loader(8, max_batches=3))) == 3
    status = client.partition("p").task("train")
    assert (status.consumed_rows, status.claimed_rows, status.untaken_rows) == (24, 0, 76)


@pytest.mark.parametrize("layout", ["padded", "jagged"])
def test_rows_come_in_the_layout_that_was_asked_for(client: DataPlaneClient, loader: Loader, layout: str) -> None:
    fill(client, 6)
    (batch,) = loader(6, layout=layout, pad_to_seqlen=9)
    tokens = batch.data["tokens"]
    assert tokens.is_nested == (layout == "jagged")
    assert layout == "jagged" or tokens.shape == (6, 9)
    assert sorted(int(row[0]) for row in tokens.unbind()) == list(range(6))


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tensors_come_on_the_device_that_was_asked_for(client: DataPlaneClient, loader: Loader, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    fill(client, 4)
    (batch,) = loader(4, device=device, pad_value_dict={"tokens": -1})
    assert (batch.data["tokens"].device.type, tuple(batch.data["tokens"].shape)) == (device, (4, 4))
    assert batch.data["text"].tolist() == [{"number": number} for number in range(4)]
    if device == "cuda":
        assert numbers(batch) == [0, 1, 2, 3]


def test_a_loaders_gpu_is_that_of_the_thread_that_iterates(
    client: DataPlaneClient, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread, such as the loader's, begins on GPU 0."""
    here, chosen = threading.get_ident(), list[torch.device]()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 99 if threading.get_ident() == here else 0)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    fill(client, 4)
    with pytest.raises(PreconditionError, match="'cuda:99'"):
        next(iter(loader(4, device="cuda")))
    assert chosen == [torch.device("cuda", 99)]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"pad_value_dict": {"tokens": 0.5}}, ValueError, "tokens"),
        ({"required_fields": ["advantage", "no such"]}, ValueError, "no such"),
    ],
    ids=["a pad value that does not fit", "a field that is not declared"],
)
def test_an_error_reaches_the_loop_and_its_rows_are_released(
    client: DataPlaneClient, loader: Loader, settings: dict[str, object], error: type[Exception], message: str
) -> None:
    fill(client, 4)
    rows = iter(loader(2, **settings))
    for _ in range(2):  # the error is raised again
        with pytest.raises(error, match=message):
            next(rows)
    rows.close()
    assert claimed(client) == 0


@pytest.mark.parametrize("size", [{"batch_size": 1}, {"batch_size": 4, "unit": "rows"}], ids=["groups", "rows"])
def test_whole_groups_come_together_and_say_which_weights_made_them(
    client: DataPlaneClient, loader: Loader, size: dict[str, Any]
) -> None:
    client.register_partition("p", ["tokens", "number", "text"], 6, ["train"], 3)
    columns = {name: torch.zeros(3) for name in ("tokens", "number", "text")}
    for group in ("g", "h"):
        ids = [f"{group}{number}" for number in range(3)]
        with client.reserve_group("p", group, ids, weight_version=7) as reserved:
            reserved.put(ids, columns)
            reserved.commit(weight_version=8)
    groups = [
        (group.group_id, group.rows, group.start_weight_version, group.end_weight_version, batch.meta.sample_ids)
        for batch in loader(**size, whole_groups=True)
        for group in batch.groups
    ]
    assert sorted(groups) == [(group, 3, 7, 8, [f"{group}{number}" for number in range(3)]) for group in ("g", "h")]


def test_worker_processes_are_refused_with_what_to_use_instead(loader: Loader) -> None:
    with pytest.raises(ValueError, match="num_workers"):
        loader(4, num_workers=2)


def test_a_loader_takes_rows_in_its_order_that_fit_and_does_not_wait_for_others(client: DataPlaneClient) -> None:
    client.register_partition("p", ["x"], 4, ["train", "score"])
    client.put_samples(["s0", "s1", "s2", "s3"], "p", {"x": torch.arange(4)}, [{"std": std} for std in range(4)])
    client.set_policies("p", {"train": TaskPolicy(where="std > 0"), "score": TaskPolicy(where="std > 0")})
    order = {"order": "highest_tag", "order_tag": "std"}
    with ClaimLoader(client.target, "p", "train", ["x"], 2, **order) as loader:  # type: ignore[arg-type]
        assert [batch.meta.sample_ids for batch in loader] == [["s3", "s2"], ["s1"]]
    with ClaimLoader(client.target, "p", "score", ["x"], 1, where="std > 1", max_batches=2) as loader:
        assert [batch.meta.sample_ids for batch in loader] == [["s2"], ["s3"]]
