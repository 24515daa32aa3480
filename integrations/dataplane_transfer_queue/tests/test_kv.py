"""The face by keys: each verb, with what its callers rely on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

import dataplane_transfer_queue as tq
from dataplane_client import connect, observe
from dataplane_client.client import DataPlaneClient
from dataplane_transfer_queue.tests.conftest import parameters_of

pytestmark = pytest.mark.usefixtures("started")

Columns = Callable[..., TensorDict]
Plain = Callable[[TensorDict], dict[str, object]]

SIGNATURES = {
    "init": "conf=None",
    "close": "",
    "get_metrics_endpoint": "",
    "get_client": "",
    "kv_put": "key, partition_id, fields=None, tag=None, data_parser=None",
    "kv_batch_put": "keys, partition_id, fields=None, tags=None, data_parser=None",
    "kv_batch_get": "keys, partition_id, select_fields=None",
    "kv_batch_get_by_meta": "meta, select_fields=None",
    "kv_list": "partition_id=None",
    "kv_clear": "keys, partition_id",
    "save_checkpoint": "checkpoint_dir, *, include_storage=True, metadata=None",
    "load_checkpoint": "checkpoint_dir",
}


@pytest.mark.parametrize("verb", SIGNATURES)
def test_a_verb_and_its_async_twin_have_their_order_of_arguments(verb: str) -> None:
    for name in (verb, f"async_{verb}") if verb.startswith("kv_") else (verb,):
        assert parameters_of(getattr(tq, name)) == SIGNATURES[verb]
        assert inspect.iscoroutinefunction(getattr(tq, name)) is (name != verb)


def test_the_version_is_at_least_what_frameworks_ask_for() -> None:
    assert [int(part) for part in tq.__version__.split(".")] >= [0, 1, 9]


# -- puts --------------------------------------------------------------------------------------------------------------


def test_a_put_makes_partition_and_rows_and_tells_all_tags_and_the_fields_that_all_rows_hold(columns: Columns) -> None:
    meta = tq.kv_batch_put(["a", "b"], "p", columns(2, x=torch.ones(2, 2), r=torch.ones(2)), [{"s": 1}, {"s": 2}])
    assert meta == tq.KVBatchMeta(["a", "b"], [{"s": 1}, {"s": 2}], "p", ["r", "x"])
    meta = tq.kv_batch_put(["b"], "p", columns(1, y=torch.ones(1)), [{"s": 3, "t": None}])
    assert meta == tq.KVBatchMeta(["b"], [{"s": 3, "t": None}], "p", ["r", "x", "y"])
    assert tq.kv_batch_put(["a", "b"], "p", tags=[{"u": True}, {}]).fields == ["r", "x"]
    assert tq.kv_batch_put(["c"], "p", tags=[{"u": 0.5}]) == tq.KVBatchMeta(["c"], [{"u": 0.5}], "p", [])
    assert tq.kv_list() == {"p": {"a": {"s": 1, "u": True}, "b": {"s": 3, "t": None}, "c": {"u": 0.5}}}


def test_kv_put_takes_the_value_of_one_row(columns: Columns, plain: Plain) -> None:
    values = {"t": torch.tensor([1, 2]), "n": 3, "l": [1, 2], "d": {"a": (1, None)}}
    assert tq.kv_put("k", "p", values, {"s": 1}) == tq.KVBatchMeta(["k"], [{"s": 1}], "p", ["d", "l", "n", "t"])
    assert plain(tq.kv_batch_get("k", "p")) == {
        "t": ("jagged", [[1, 2]]),
        "n": ("objects", [3]),
        "l": ("objects", [[1, 2]]),
        "d": ("objects", [{"a": (1, None)}]),
    }
    tq.kv_put("l", "q", columns(1, x=torch.ones(1, 2)))
    tq.kv_put("m", "q", TensorDict({"x": torch.ones(3)}, batch_size=[]))
    assert plain(tq.kv_batch_get(["l", "m"], "q")) == {"x": ("jagged", [[1.0] * 2, [1.0] * 3])}


def one_nested_row() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)


WRONG_PUTS: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (ValueError, "fields, tags or both", lambda: tq.kv_batch_put(["a"], "p")),
    (ValueError, "fields, tags or both", lambda: tq.kv_put("a", "p")),
    (ValueError, "2 keys, but tags for 1", lambda: tq.kv_batch_put(["a", "b"], "p", tags=[{}])),
    (ValueError, "batch size", lambda: tq.kv_batch_put(["a"], "p", TensorDict({"x": torch.ones(2)}, batch_size=[2]))),
    (ValueError, "empty list", lambda: tq.kv_batch_put([], "p", tags=[])),
    (ValueError, "duplicate", lambda: tq.kv_batch_put(["a", "a"], "p", tags=[{}, {}])),
    (TypeError, "list of str", lambda: tq.kv_batch_put(("a",), "p", tags=[{}])),
    (TypeError, "list of str", lambda: tq.kv_batch_put([1], "p", tags=[{}])),  # type: ignore[list-item]
    (TypeError, "tag 'l' of row 0 .* is list", lambda: tq.kv_put("a", "p", tag={"l": [1]})),
    (TypeError, "unsupported type set", lambda: tq.kv_put("a", "p", {"x": {1}})),
    (ValueError, "kv_batch_put", lambda: tq.kv_put("a", "p", {"x": one_nested_row()})),
    (ValueError, "reserved", lambda: tq.kv_put("a", "p", {"x[shape]": torch.ones(2)})),
    (ValueError, "float32", lambda: tq.kv_put("a", "p", {"x": torch.ones(2, dtype=torch.float64)})),
    (ValueError, "more than one dimension, .* at most", lambda: tq.kv_put("a", "p", {"x": torch.ones(2, 3)})),
    (ValueError, "at most one dimension, .* more than", lambda: tq.kv_put("a", "p", {"y": torch.ones(2)})),
    (ValueError, "data_parser", lambda: tq.kv_put("a", "p", {"z": 1}, data_parser=lambda _: {})),
]


@pytest.mark.parametrize(("error", "message", "call"), WRONG_PUTS, ids=[message for _, message, _ in WRONG_PUTS])
def test_a_wrong_put_is_refused_and_writes_nothing(
    error: type[Exception], message: str, call: Callable[[], object]
) -> None:
    tq.kv_put("there", "p", {"x": torch.ones(2), "y": torch.ones(2, 2)})
    with pytest.raises(error, match=message):
        call()
    assert list(tq.kv_list("p")["p"]) == ["there"]


def test_a_parser_changes_the_columns_before_they_are_put(columns: Columns, plain: Plain) -> None:
    def fetch(found: dict[str, object]) -> dict[str, object]:
        assert found["url"] == ["u", "v"]
        ragged = found["ragged"]
        assert isinstance(ragged, list)
        return {"url": ["U", "V"], "ragged": [row * 2 for row in ragged], "dense": torch.zeros(2)}

    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    fields = columns(2, url=NonTensorStack("u", "v"), ragged=ragged, dense=torch.ones(2))
    tq.kv_batch_put(["a", "b"], "p", fields, data_parser=fetch)
    assert plain(tq.kv_batch_get(["a", "b"], "p")) == {
        "url": ("objects", ["U", "V"]),
        "ragged": ("jagged", [[2.0], [2.0, 2.0]]),
        "dense": ("dense", [0.0, 0.0]),
    }


def test_a_partition_that_another_process_dropped_is_made_again(client: DataPlaneClient) -> None:
    tq.kv_put("a", "p", {"x": 1})
    client.drop_partition("p")
    assert tq.kv_put("b", "p", {"x": torch.ones(2)}).fields == ["x"]


def test_a_partition_that_was_registered_by_another_client_is_used_as_it_is(client: DataPlaneClient) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    assert tq.kv_put("a", "p", {"x": torch.ones(2)}).fields == ["x"]
    with pytest.raises(ValueError, match="does not declare field 'y'"):
        tq.kv_put("a", "p", {"y": 1})


# -- reads -------------------------------------------------------------------------------------------------------------


def test_reads_follow_the_keys_also_twice_and_take_the_fields_that_all_rows_hold(
    columns: Columns, plain: Plain
) -> None:
    words = NonTensorStack("u", "v", "w")
    ragged = torch.nested.nested_tensor([torch.arange(n) for n in (1, 2, 1)], layout=torch.jagged)
    tq.kv_batch_put(["a", "b", "c"], "p", columns(3, n=torch.arange(3), words=words, ragged=ragged))
    tq.kv_put("c", "p", {"late": 1})
    twice = {"n": ("dense", [2, 0, 2]), "words": ("objects", ["w", "u", "w"]), "ragged": ("jagged", [[0], [0], [0]])}
    assert plain(tq.kv_batch_get(["c", "a", "c"], "p")) == twice
    assert plain(tq.kv_batch_get(["c"], "p", "late")) == {"late": ("objects", [1])}
    assert plain(tq.kv_batch_get("b", "p", ["ragged", "n", "n"])) == {
        "ragged": ("jagged", [[0, 1]]),
        "n": ("dense", [1]),
    }


def test_a_meta_reads_its_rows(columns: Columns, plain: Plain) -> None:
    meta = tq.kv_batch_put(["a", "b"], "p", columns(2, x=torch.arange(2), y=torch.arange(2)))
    assert plain(tq.kv_batch_get_by_meta(meta, "y")) == {"y": ("dense", [0, 1])}
    assert set(tq.kv_batch_get_by_meta(meta).keys()) == {"x", "y"}
    unknown = tq.KVBatchMeta(["a"], [{}], "p", None)
    assert set(tq.kv_batch_get_by_meta(unknown).keys()) == {"x", "y"}


WRONG_READS: list[tuple[str, Callable[[], object]]] = [
    ("no sample 'z'", lambda: tq.kv_batch_get(["a", "z"], "p", "x")),
    ("no row has produced field 'z'", lambda: tq.kv_batch_get(["a"], "p", "z")),
    ("sample 'b' has not produced field 'x'", lambda: tq.kv_batch_get(["a", "b"], "p", "x")),
    ("not found: .*no partition 'q'", lambda: tq.kv_batch_get(["a"], "q")),
    ("no field that all of these rows hold", lambda: tq.kv_batch_get(["a", "b"], "p")),
    ("no field that all of these rows hold", lambda: tq.kv_batch_get(["a"], "p", [])),
    ("no sample 'z'", lambda: tq.kv_batch_get(["z"], "p")),
    ("empty list", lambda: tq.kv_batch_get([], "p")),
    ("'y'.* not found", lambda: tq.kv_batch_get_by_meta(tq.KVBatchMeta(["a"], [{}], "p", ["x"]), "y")),
    ("names no partition", lambda: tq.kv_batch_get_by_meta(tq.KVBatchMeta(["a"], [{}]))),
]


@pytest.mark.parametrize(("message", "call"), WRONG_READS, ids=[message for message, _ in WRONG_READS])
def test_a_read_of_what_is_not_there_is_refused(message: str, call: Callable[[], object]) -> None:
    tq.kv_put("a", "p", {"x": 1})
    tq.kv_put("b", "p", tag={})
    with pytest.raises(ValueError, match=message):
        call()


# -- lists, clears, twins ----------------------------------------------------------------------------------------------


def test_rows_are_listed_by_partition_and_cleared_by_key() -> None:
    for key, partition in (("a", "p"), ("b", "p"), ("c", "q")):
        tq.kv_put(key, partition, tag={"k": key})
    assert tq.kv_list("p") == {"p": {"a": {"k": "a"}, "b": {"k": "b"}}}
    tq.kv_clear(["a", "unknown"], "p")
    tq.kv_clear("c", "q")
    tq.kv_clear("a", "unknown")
    assert tq.kv_list() == {"p": {"b": {"k": "b"}}, "q": {}}
    assert tq.kv_list("unknown") == {}
    with pytest.raises(ValueError, match="empty list"):
        tq.kv_clear([], "p")


def test_a_partition_that_is_dropped_while_all_are_listed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in "pq":
        tq.kv_put("a", partition, tag={"k": 1})
    with connect() as client:
        seen = client.partitions()
        client.drop_partition("q")
    monkeypatch.setattr(DataPlaneClient, "partitions", lambda _: seen)
    assert tq.kv_list() == {"p": {"a": {"k": 1}}}


async def use_all_twins(partition: str) -> list[object]:
    meta = await tq.async_kv_put("a", partition, {"x": torch.ones(1)}, {"s": 1})
    both = TensorDict({"x": torch.ones(2, 1)}, batch_size=[2])
    meta = tq.KVBatchMeta.concat([meta, await tq.async_kv_batch_put(["b", "c"], partition, both)])
    reads = [tq.async_kv_batch_get_by_meta(meta), *(tq.async_kv_batch_get(key, partition) for key in "abc")]
    sizes: list[object] = [batch.batch_size[0] for batch in await asyncio.gather(*reads)]
    await tq.async_kv_clear(["a", "b"], partition)
    return [*sizes, await tq.async_kv_list(partition)]


def test_twins_work_in_any_event_loop_of_any_thread() -> None:
    def use_twice(partition: str) -> list[list[object]]:
        return [asyncio.run(use_all_twins(partition)) for _ in range(2)]  # a new loop each time

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(use_twice, ["p0", "p1", "p2"]))
    assert found == [[[3, 1, 1, 1, {f"p{number}": {"c": {}}}]] * 2 for number in range(3)]


def test_a_put_whose_row_another_process_clears_at_once_returns_what_it_wrote(
    client: DataPlaneClient, columns: Columns
) -> None:
    tq.kv_put("b", "p", columns(1, y=torch.ones(1)))

    class Clears(observe.Observer):
        def ended(self, call: observe.Call) -> None:
            if call.verb == "PutSamples":
                client.clear_samples(["a"], "p")

    observer = Clears()
    observe.add(observer)
    try:
        meta = tq.kv_put("a", "p", columns(1, x=torch.ones(1)), {"status": "finished"})
    finally:
        observe.remove(observer)
    assert (meta.keys, meta.fields) == (["a"], ["x"])
    assert tq.kv_list("p")["p"].keys() == {"b"}
