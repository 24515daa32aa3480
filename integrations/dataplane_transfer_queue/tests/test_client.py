"""The native face: rows by number, claimed by tasks."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import TensorDict
from tests.waiting import soon

import dataplane_transfer_queue as tq
from dataplane_client import connect, observe
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import NotFoundError
from dataplane_transfer_queue import _client
from dataplane_transfer_queue.tests.conftest import parameters_of

Columns = Callable[..., TensorDict]
Plain = Callable[[TensorDict], dict[str, tuple[str, list[object]]]]

SIGNATURES = {
    "get_meta": "data_fields, batch_size, partition_id, mode='fetch', task_name=None, sampling_config=None",
    "put": "data, metadata=None, partition_id=None, data_parser=None",
    "get_data": "metadata",
    "set_custom_meta": "metadata",
    "clear_partition": "partition_id",
    "clear_samples": "metadata",
    "get_consumption_status": "task_name, partition_id",
    "check_consumption_status": "task_name, partition_id",
    "check_production_status": "data_fields, partition_id",
    "reset_consumption": "partition_id, task_name=None",
    "get_partition_list": "",
    "kv_retrieve_meta": "keys, partition_id, create=False",
    "kv_retrieve_keys": "global_indexes, partition_id",
    "kv_list": "partition_id=None",
}


@pytest.mark.parametrize("verb", SIGNATURES)
def test_a_verb_and_its_async_twin_have_their_order_of_arguments(verb: str) -> None:
    for name in (verb, f"async_{verb}"):
        assert parameters_of(getattr(tq.TransferQueueClient, name)) == f"self, {SIGNATURES[verb]}".removesuffix(", ")
        assert inspect.iscoroutinefunction(getattr(tq.TransferQueueClient, name)) is (name != verb)


# -- rows --------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_fetch_takes_no_rows_that_come_later(
    address: str, native: tq.TransferQueueClient, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_client, "_FETCH_S", 200.0)
    native.put(columns(1, y=torch.zeros(1)), partition_id="p")
    fetching = asyncio.ensure_future(native.async_get_meta(["x"], 2, "p", task_name="score"))
    with connect(address) as client:
        await soon(lambda: client.server_status().waiting_claims == 1)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    made = native.put(columns(2, x=torch.arange(2)), partition_id="p")
    assert native.get_meta(["x"], 2, "p", task_name="score").global_indexes == made.global_indexes


async def test_however_many_fetches_wait_the_put_that_they_wait_for_is_made(
    native: tq.TransferQueueClient, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_client, "_FETCH_S", 200.0)
    native.put(columns(1, y=torch.zeros(1)), partition_id="p")
    fetches = [native.async_get_meta(["x"], 1, "p", task_name=f"task-{number}") for number in range(40)]
    waiting = [asyncio.ensure_future(fetch) for fetch in fetches]
    await asyncio.sleep(0)
    await native.async_put(columns(1, x=torch.arange(1)), partition_id="p")
    assert [len(meta) for meta in await asyncio.gather(*waiting)] == [1] * 40


def test_tasks_fetch_rows_each_once_and_write_back(
    native: tq.TransferQueueClient, columns: Columns, plain: Plain
) -> None:
    made = native.put(columns(4, x=torch.arange(4)), partition_id="p")
    assert (made.size, made.field_names, made.is_ready, made.partition_ids) == (4, ["x"], True, ["p"] * 4)
    first = native.get_meta(["x"], 3, "p", task_name="score")
    rest = native.get_meta(["x"], 1, "p", task_name="score")
    assert first.global_indexes + rest.global_indexes == made.global_indexes
    assert native.get_meta(["x"], 4, "p", task_name="other").global_indexes == made.global_indexes
    first.update_custom_meta([{"seen": True}, {}, {}])
    scored = native.put(columns(3, score=torch.arange(3) / 2), first)
    assert (scored.global_indexes, scored.field_names) == (first.global_indexes, ["score", "x"])
    ready = native.get_meta(["x", "score"], 3, "p", task_name="train")
    assert ready.custom_meta == [{"seen": True}, {}, {}]
    assert plain(native.get_data(ready)) == {"x": ("dense", [0, 1, 2]), "score": ("dense", [0.0, 0.5, 1.0])}


def test_a_fetch_waits_for_a_producer(native: tq.TransferQueueClient, columns: Columns) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(native.get_meta, ["x"], 2, "p", task_name="train")
        while not native.get_partition_list():
            pass
        made = native.put(columns(2, x=torch.ones(2, 3, 2)), partition_id="p")
        assert waiting.result().global_indexes == made.global_indexes


@pytest.mark.parametrize("way", ["shm"], indirect=True)
def test_a_fetch_of_more_than_there_is_ends_after_five_seconds(native: tq.TransferQueueClient) -> None:
    tq.kv_put("a", "p", {"x": 1})
    with pytest.raises(RuntimeError, match="Timeout while waiting for sufficient data for task train"):
        native.get_meta(["x"], 2, "p", task_name="train")


def test_in_polling_mode_a_fetch_of_more_than_there_is_returns_no_row(address: str, columns: Columns) -> None:
    tq.init({"controller": {"polling_mode": True}, "backend": {"RLDataPlane": {"address": address}}})
    native = tq.get_client()
    tq.kv_put("a", "p", {"x": 1})
    found = native.get_meta(["x"], 2, "p", task_name="train")
    assert (found.size, found.field_names) == (0, [])
    assert native.get_meta(["x"], 1, "p", task_name="train").size == 1


def test_a_fetch_from_a_partition_that_another_process_cleared_finds_no_row(address: str) -> None:
    tq.init({"controller": {"polling_mode": True}, "backend": {"RLDataPlane": {"address": address}}})
    tq.kv_put("a", "p", {"x": 1})
    with connect(address) as other:
        other.drop_partition("p")
    assert tq.get_client().get_meta(["x"], 1, "p", task_name="train").size == 0


def test_all_rows_are_named_whatever_they_hold_and_taken_or_not(native: tq.TransferQueueClient) -> None:
    tq.kv_put("a", "p", {"x": 1, "y": 1}, {"s": 1})
    native.get_meta(["x"], 1, "p", task_name="train")
    found = native.get_meta(["x", "y", "z"], 0, "p", mode="force_fetch")
    assert (found.keys, found.field_names, found.is_ready, found.custom_meta) == (["a"], ["x", "y"], True, [{"s": 1}])
    tq.kv_put("b", "p", {"x": 1})
    assert not native.get_meta(["x", "y"], 0, "p", mode="force_fetch").is_ready
    assert native.get_meta(["x"], 0, "p", mode="force_fetch").is_ready
    assert not native.get_meta([], 0, "p", mode="force_fetch").is_ready
    with pytest.raises(NotFoundError):
        native.get_meta(["x"], 0, "unknown", mode="force_fetch")


def test_rows_can_be_made_before_they_have_values(
    native: tq.TransferQueueClient, columns: Columns, plain: Plain
) -> None:
    meta = native.get_meta(["x"], 2, "p", mode="insert")
    assert (meta.size, meta.field_names, meta.is_ready) == (2, ["x"], False)
    assert native.put(columns(2, x=torch.arange(2)), meta).is_ready
    assert plain(native.get_data(native.get_meta(["x"], 2, "p", task_name="t"))) == {"x": ("dense", [0, 1])}


def test_tags_of_rows_are_merged(native: tq.TransferQueueClient, columns: Columns) -> None:
    meta = native.put(columns(2, x=torch.arange(2)), partition_id="p")
    meta.update_custom_meta([{"a": 1}, {"b": 2}])
    native.set_custom_meta(meta)
    meta.custom_meta = [{"c": 3}, {}]
    native.set_custom_meta(meta)
    assert list(native.kv_list("p")["p"].values()) == [{"a": 1, "c": 3}, {"b": 2}]


def test_a_meta_that_is_kept_across_a_clear_neither_reads_nor_writes_the_next_row(
    native: tq.TransferQueueClient, columns: Columns, plain: Plain
) -> None:
    tq.kv_put("a", "p", {"x": torch.ones(1)})
    former = native.kv_retrieve_meta("a", "p")
    tq.kv_clear("a", "p")
    tq.kv_put("a", "p", {"x": torch.zeros(1)})
    with pytest.raises(KeyError, match="put again"):
        native.get_data(former)
    with pytest.raises(KeyError, match="put again"):
        native.put(columns(1, x=torch.ones(1, 1)), former)
    with pytest.raises(KeyError, match="put again"):
        native.get_data(tq.BatchMeta.concat([native.kv_retrieve_meta("a", "p"), former]))
    native.clear_samples(former)
    assert plain(native.get_data(native.kv_retrieve_meta("a", "p"))) == {"x": ("jagged", [[0.0]])}


def test_rows_are_cleared_by_meta_in_any_partition(native: tq.TransferQueueClient) -> None:
    for key, partition in (("a", "p"), ("b", "p"), ("c", "q")):
        tq.kv_put(key, partition, tag={})
    native.clear_samples(tq.BatchMeta.concat([native.kv_retrieve_meta("a", "p"), native.kv_retrieve_meta("c", "q")]))
    native.clear_samples(tq.BatchMeta.empty())
    assert native.kv_list() == {"p": {"b": {}}, "q": {}}


def test_a_meta_that_a_caller_made_of_numbers_is_enough(native: tq.TransferQueueClient, columns: Columns) -> None:
    numbers = native.put(columns(2, x=torch.arange(2)), partition_id="p").global_indexes
    meta = tq.BatchMeta(numbers[::-1] + numbers[:1], ["p"] * 3, ["x"])
    assert native.get_data(meta)["x"].tolist() == [1, 0, 0]


def test_nothing_is_read_of_no_rows(native: tq.TransferQueueClient) -> None:
    assert native.get_data(tq.BatchMeta.empty()).batch_size == torch.Size([0])


def test_a_parser_changes_what_is_put(native: tq.TransferQueueClient, columns: Columns) -> None:
    meta = native.put(columns(2, x=torch.ones(2)), partition_id="p", data_parser=lambda found: {"x": found["x"] * 3})
    assert native.get_data(meta)["x"].tolist() == [3.0, 3.0]


def wrong_calls(native: tq.TransferQueueClient) -> dict[str, Callable[[], object]]:
    one = TensorDict({"x": torch.ones(1)}, batch_size=[1])
    meta = native.put(one, partition_id="p")
    both = tq.BatchMeta.concat([meta, native.put(one, partition_id="q")])
    return {
        "sampling_config": lambda: native.get_meta(
            ["x"], 1, "p", task_name="t", sampling_config={"n": 2, "dp_rank": 0}
        ),
        "needs a task_name": lambda: native.get_meta(["x"], 1, "p"),
        "mode must be": lambda: native.get_meta(["x"], 1, "p", mode="take"),  # type: ignore[arg-type]
        "needs a partition_id": lambda: native.put(one),
        "put: the meta must be of one partition": lambda: native.put(one, tq.BatchMeta.empty()),
        "0 rows of data, but a meta of 1": lambda: native.put(one[0], meta),
        "1 rows of data, but a meta of 2": lambda: native.put(one, meta.select_samples([0, 0])),
        "get_data: the meta must be of one partition": lambda: native.get_data(both),
        "names no field": lambda: native.get_data(meta.select_fields([])),
    }


def test_a_wrong_call_is_refused(native: tq.TransferQueueClient) -> None:
    for message, call in wrong_calls(native).items():
        with pytest.raises(ValueError, match=message):
            call()


# -- partitions and tasks ----------------------------------------------------------------------------------------------


def test_consumption_is_told_by_row_and_reset(native: tq.TransferQueueClient, columns: Columns) -> None:
    made = native.put(columns(3, x=torch.arange(3)), partition_id="p").global_indexes
    native.get_meta(["x"], 2, "p", task_name="t")
    for task, expected in (("t", [1, 1, 0]), ("unknown", [0, 0, 0])):
        numbers, consumed = native.get_consumption_status(task, "p")
        assert numbers is not None
        assert consumed is not None
        assert (numbers.tolist(), consumed.tolist(), consumed.dtype) == (made, expected, torch.int8)
        assert not native.check_consumption_status(task, "p")
    native.get_meta(["x"], 1, "p", task_name="t")
    assert native.check_consumption_status("t", "p")
    native.get_meta(["x"], 3, "p", task_name="u")
    assert [native.reset_consumption("p", task) for task in ("unknown", "t")] == [True, True]
    assert [native.check_consumption_status(task, "p") for task in ("t", "u")] == [False, True]
    assert native.reset_consumption("p")
    assert native.get_meta(["x"], 3, "p", task_name="u").global_indexes == made


def test_production_is_whether_all_rows_hold_the_fields(native: tq.TransferQueueClient) -> None:
    tq.kv_put("a", "p", {"x": 1, "y": 1})
    tq.kv_put("b", "p", {"x": 1})
    asked = [["x"], ["x", "y"], ["z"], []]
    assert [native.check_production_status(fields, "p") for fields in asked] == [True, False, False, False]


def test_an_unknown_partition_is_no_error_for_questions(native: tq.TransferQueueClient) -> None:
    assert native.get_consumption_status("t", "unknown") == (None, None)
    assert not native.check_consumption_status("t", "unknown")
    assert not native.check_production_status(["x"], "unknown")
    assert native.reset_consumption("unknown")
    native.clear_partition("unknown")
    assert native.get_partition_list() == []


def test_a_cleared_partition_begins_anew(native: tq.TransferQueueClient, columns: Columns) -> None:
    former = native.put(columns(1, x=torch.ones(1)), partition_id="p")
    native.clear_partition("p")
    assert (native.get_partition_list(), native.kv_list()) == ([], {})
    for call in (lambda: native.put(columns(1, x=torch.ones(1)), former), lambda: native.set_custom_meta(former)):
        with pytest.raises(KeyError, match="no partition 'p'"):
            call()
    assert native.get_partition_list() == []
    later = native.put(columns(1, x=torch.ones(1, dtype=torch.int64)), partition_id="p")
    assert later.global_indexes[0] > former.global_indexes[0]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_metas_by_key_have_fields_tags_and_numbers(native: tq.TransferQueueClient, columns: Columns) -> None:
    tq.kv_batch_put(["a", "b"], "p", columns(2, x=torch.ones(2)), [{"s": 1}, {}])
    meta = native.kv_retrieve_meta(["b", "a"], "p")
    assert (meta.keys, meta.field_names, meta.custom_meta) == (["b", "a"], ["x"], [{}, {"s": 1}])
    assert meta.is_ready
    assert native.kv_retrieve_keys(meta.global_indexes, "p") == ["b", "a"]
    assert native.kv_retrieve_keys(meta.global_indexes[0], "p") == ["b"]
    assert native.kv_retrieve_keys([], "p") == []


def test_unknown_keys_are_left_out_or_made(native: tq.TransferQueueClient) -> None:
    tq.kv_put("a", "p", {"x": 1}, {"s": 1})
    assert native.kv_retrieve_meta(["z", "a"], "p").keys == ["a"]
    assert [native.kv_retrieve_meta("z", partition).size for partition in ("p", "unknown")] == [0, 0]
    assert list(native.kv_list("p")["p"]) == ["a"]
    made = native.kv_retrieve_meta(["z", "a"], "p", create=True)
    assert (made.keys, made.field_names, made.is_ready, made.custom_meta) == (["z", "a"], [], False, [{}, {"s": 1}])
    assert native.kv_retrieve_meta(["q"], "new", create=True).keys == ["q"]


@pytest.mark.parametrize(("cleared", "left"), [(["a"], ["b"]), (["a", "b"], []), (None, [])])
def test_keys_whose_rows_another_process_clears_at_once_are_left_out(
    native: tq.TransferQueueClient, client: DataPlaneClient, cleared: list[str] | None, left: list[str]
) -> None:
    for key in "ab":
        tq.kv_put(key, "p", {"x": 1})

    class Clears(observe.Observer):
        def ended(self, call: observe.Call) -> None:
            if call.verb == "PutSamples" and cleared is None:
                client.drop_partition("p")
            elif call.verb == "PutSamples":
                client.clear_samples(cleared, "p")

    observer = Clears()
    observe.add(observer)
    try:
        meta = native.kv_retrieve_meta(["a", "b"], "p")
    finally:
        observe.remove(observer)
    assert (meta.keys or [], meta.field_names) == (left, ["x"] if left else [])


def test_numbers_without_a_row_are_refused(native: tq.TransferQueueClient) -> None:
    with pytest.raises(RuntimeError, match="no rows \\[7\\]"):
        native.kv_retrieve_keys([7], "unknown")
    with pytest.raises(TypeError, match="list of int"):
        native.kv_retrieve_keys(["a"], "p")  # type: ignore[list-item]


# -- where it is used --------------------------------------------------------------------------------------------------


def test_a_worker_method_reads_and_writes_by_metas_in_a_loop_of_its_own_with_a_client_that_was_sent_there(
    native: tq.TransferQueueClient, columns: Columns, plain: Plain
) -> None:
    tq.kv_batch_put(["a", "b"], "p", columns(2, x=torch.arange(2)))
    sent: tq.TransferQueueClient = pickle.loads(pickle.dumps(native))  # noqa: S301 - our own

    async def method() -> list[str]:
        meta = await sent.async_kv_retrieve_meta(["a", "b"], "p")
        batch = await sent.async_get_data(meta)
        written = await sent.async_put(columns(2, y=batch["x"] + 1), meta)
        keys: list[str] = await sent.async_kv_retrieve_keys(written.global_indexes, "p")
        return keys

    with ThreadPoolExecutor(1) as thread:
        assert [thread.submit(asyncio.run, method()).result() for _ in range(2)] == [["a", "b"]] * 2
    assert plain(tq.kv_batch_get(["a", "b"], "p", "y")) == {"y": ("dense", [1, 2])}
