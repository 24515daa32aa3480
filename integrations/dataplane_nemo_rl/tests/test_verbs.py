"""Each verb of NeMo-RL's client, with what their callers rely on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tests.integration.failpoints.lives import Lives

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import EndOfDataError, PreconditionError
from dataplane_nemo_rl import DataPlaneAdapter, KVBatchMeta

SIGNATURES = {
    "register_partition": "partition_id, fields, num_samples, consumer_tasks, grpo_group_size=None, enums=None",
    "claim_meta": "partition_id, task_name, required_fields, batch_size, dp_rank=None, blocking=True, timeout_s=60.0",
    "get_data": "meta, select_fields=None",
    "check_consumption_status": "partition_id, task_names",
    "put_samples": "sample_ids, partition_id, fields=None, tags=None",
    "get_samples": "sample_ids, partition_id, select_fields",
    "list_sample_ids": "partition_id",
    "clear_samples": "sample_ids, partition_id",
    "save_checkpoint": "checkpoint_dir, *, metadata=None",
    "load_checkpoint": "checkpoint_dir",
    "close": "",
}


@pytest.mark.parametrize("verb", SIGNATURES)
def test_a_verb_has_their_order_of_arguments(verb: str) -> None:
    parameters = list(inspect.signature(getattr(DataPlaneAdapter, verb)).parameters.values())[1:]
    bare = inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters])
    assert str(bare) == f"({SIGNATURES[verb]})"


def ragged(*lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(length) for length in lengths], layout=torch.jagged)


def columns(rows: int, **fields: object) -> TensorDict:
    return TensorDict(fields, batch_size=[rows])


def put(adapter: DataPlaneAdapter, *ids: str, partition: str = "train") -> KVBatchMeta:
    return adapter.put_samples(list(ids), partition, columns(len(ids), x=torch.arange(len(ids))))


# -- register_partition ------------------------------------------------------------------------------------------------


def test_registering_again_leaves_rows_and_cursors_of_other_steps(
    adapter: DataPlaneAdapter, client: DataPlaneClient
) -> None:
    enums = {"kind": ["math", "code"]}
    adapter.register_partition("train", ["x"], 2, ["logprob"], 8, enums)
    put(adapter, "0-a", "0-b")
    assert adapter.claim_meta("train", "logprob", ["x"], 1).sample_ids == ["0-a"]
    adapter.register_partition("train", ["x", "y"], 4, ["logprob", "train"], 8, enums)
    put(adapter, "1-a")
    assert adapter.claim_meta("train", "logprob", ["x"], 2).sample_ids == ["0-b", "1-a"]
    described = client.partition("train")
    assert (described.num_samples, described.grpo_group_size) == (4, 8)
    assert described.enums == {"kind": ("math", "code")}
    assert [field.name for field in described.fields if field.per_token] == []


# -- claim_meta --------------------------------------------------------------------------------------------------------


@pytest.fixture
def registered(adapter: DataPlaneAdapter) -> DataPlaneAdapter:
    """Partition "train" with two rows."""
    adapter.register_partition("train", ["x"], 2, ["logprob", "train"])
    put(adapter, "a", "b")
    return adapter


def test_each_task_and_rank_gets_other_rows_once(registered: DataPlaneAdapter) -> None:
    first, second = (registered.claim_meta("train", "train", ["x"], 1, dp_rank=rank) for rank in (0, 1))
    assert [(meta.sample_ids, meta.extra_info) for meta in (first, second)] == [
        (["a"], {"dp_rank": 0}),
        (["b"], {"dp_rank": 1}),
    ]
    assert (first.partition_id, first.task_name, first.fields) == ("train", "train", ["x"])
    assert registered.claim_meta("train", "logprob", ["x"], 2).extra_info == {}


@pytest.mark.parametrize("blocking", [True, False])
def test_a_claim_takes_fewer_rows_if_no_more_are_there_in_time(registered: DataPlaneAdapter, blocking: bool) -> None:
    meta = registered.claim_meta("train", "train", ["x"], 3, 1, blocking, 0.05)
    assert (meta.sample_ids, meta.extra_info) == (["a", "b"], {"dp_rank": 1})
    assert registered.check_consumption_status("train", ["train"])


@pytest.mark.parametrize("blocking", [True, False])
def test_a_claim_takes_the_rest_of_a_closed_partition_and_then_says_that_it_is_the_end(
    registered: DataPlaneAdapter, client: DataPlaneClient, blocking: bool
) -> None:
    client.close_partition("train")
    with client.claim("train", "train", ["x"], 2) as held:
        if not blocking:
            assert registered.claim_meta("train", "train", ["x"], 3, blocking=False).sample_ids == []
        held.release()
    assert registered.claim_meta("train", "train", ["x"], 3, blocking=blocking).sample_ids == ["a", "b"]
    with pytest.raises(EndOfDataError):
        registered.claim_meta("train", "train", ["x"], 3, blocking=blocking)


def test_a_claim_waits_for_all_of_its_rows(registered: DataPlaneAdapter, client: DataPlaneClient) -> None:
    with ThreadPoolExecutor(1) as threads:
        claimed = threads.submit(registered.claim_meta, "train", "train", ["x"], 3)
        while not client.claims("train").waiting:
            pass
        put(registered, "c")
        assert claimed.result(200).sample_ids == ["a", "b", "c"]


def test_a_claim_without_any_row_times_out_or_is_empty(registered: DataPlaneAdapter) -> None:
    with pytest.raises(TimeoutError, match="'y'"):
        registered.claim_meta("train", "train", ["y"], 1, timeout_s=0.01)
    empty = registered.claim_meta("train", "train", ["y"], 1, blocking=False)
    assert (empty.sample_ids, empty.task_name, empty.fields) == ([], "train", ["y"])


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("place", [("train", "unknown"), ("unknown", "train")])
def test_a_claim_for_an_unknown_task_or_partition_is_a_key_error(
    registered: DataPlaneAdapter, place: tuple[str, str], blocking: bool
) -> None:
    with pytest.raises(KeyError, match="unknown"):
        registered.claim_meta(*place, ["x"], 1, blocking=blocking)


LENGTHS: dict[str, tuple[TensorDict | None, list[dict[str, Any]] | None, list[int] | None]] = {
    "the rows of the tokens field": (columns(2, input_ids=ragged(3, 5)), None, [3, 5]),
    "a rectangle of tokens": (columns(2, input_ids=torch.zeros(2, 4)), None, [4, 4]),
    "the column input_lengths": (
        columns(2, input_ids=torch.zeros(2, 4), input_lengths=torch.tensor([1, 2])),
        None,
        [1, 2],
    ),
    "the tags input_lengths": (
        columns(2, input_ids=torch.zeros(2, 4)),
        [{"input_lengths": n} for n in (1, np.int32(2))],
        [1, 2],
    ),
    "nothing": (columns(2, input_ids=torch.zeros(2)), [{"input_lengths": 1}, {}], None),
    "no column": (None, [{}, {}], None),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_claimed_metas_have_the_tokens_that_the_put_tells(adapter: DataPlaneAdapter, case: str) -> None:
    fields, tags, lengths = LENGTHS[case]
    adapter.register_partition("train", [], 2, ["train"])
    put(adapter, "a", "b")
    assert adapter.put_samples(["a", "b"], "train", fields, tags).sequence_lengths == lengths
    assert adapter.put_samples(["a", "b"], "train", columns(2, y=torch.zeros(2, 9))).sequence_lengths is None
    assert adapter.claim_meta("train", "train", ["x"], 2).sequence_lengths == lengths


# -- put_samples, get_samples, get_data --------------------------------------------------------------------------------


def test_a_put_writes_columns_and_leaves_others(adapter: DataPlaneAdapter) -> None:
    put(adapter, "a", "b")
    meta = adapter.put_samples(["a", "b"], "train", columns(2, y=torch.ones(2)), [{"std": 0.5}, {}])
    assert meta == KVBatchMeta("train", None, ["a", "b"], ["y"], tags=[{"std": 0.5}, {}])
    adapter.put_samples(["b"], "train", columns(1, y=torch.zeros(1)))
    read = adapter.get_samples(["b", "a"], "train", ["y", "x"])
    assert (read["y"].tolist(), read["x"].tolist()) == ([0.0, 1.0], [1, 0])


@pytest.mark.parametrize("fields", [None, columns(0, x=torch.zeros(0))], ids=["tags", "columns"])
def test_a_put_of_no_rows_gives_an_empty_meta(adapter: DataPlaneAdapter, fields: TensorDict | None) -> None:
    names = None if fields is None else ["x"]
    assert adapter.put_samples([], "train", fields) == KVBatchMeta("train", None, [], names)
    assert adapter.put_samples([], "train", fields, []) == KVBatchMeta("train", None, [], names, tags=[])
    assert adapter.list_sample_ids("train") == []
    with pytest.raises(ValueError, match="no sample ids"):
        adapter.put_samples([], "train", columns(2, x=torch.zeros(2)))
    with pytest.raises(ValueError, match="no sample ids"):
        adapter.put_samples([], "train", fields, [{}])


def test_leaves_of_every_kind_come_back(adapter: DataPlaneAdapter) -> None:
    objects = [{"role": "user"}, None]
    fields = columns(
        2,
        dense=torch.arange(6).view(2, 3),
        jagged=ragged(2, 3),
        array=np.array(objects, dtype=object),
        stack=NonTensorStack(*objects),
    )
    adapter.put_samples(["a", "b"], "train", fields)
    read = adapter.get_samples(["b", "a"], "train", ["dense", "jagged", "array", "stack"])
    assert read.batch_size == (2,)
    assert read["dense"].tolist() == [[3, 4, 5], [0, 1, 2]]
    assert [row.tolist() for row in read["jagged"].unbind()] == [[0, 1, 2], [0, 1]]
    for name in ("array", "stack"):
        assert isinstance(read.get(name), NonTensorStack)
        assert read.get(name).tolist() == [None, {"role": "user"}]


def test_ragged_rows_of_one_length_come_back_dense(adapter: DataPlaneAdapter) -> None:
    adapter.put_samples(["a", "b", "c"], "train", columns(3, x=ragged(2, 3, 3)))
    dense = adapter.get_samples(["b", "c"], "train", ["x"])["x"]
    assert not dense.is_nested
    assert dense.shape == (2, 3)
    assert adapter.get_samples(["a", "b"], "train", ["x"])["x"].is_nested


def test_a_meta_reads_its_own_fields_or_those_that_are_named(adapter: DataPlaneAdapter) -> None:
    meta = put(adapter, "a", "b")
    adapter.put_samples(["a", "b"], "train", columns(2, y=torch.ones(2)))
    assert list(adapter.get_data(meta).keys()) == ["x"]
    assert list(adapter.get_data(meta, ["y"]).keys()) == ["y"]
    for nothing in (KVBatchMeta("train", None, ["a"]), KVBatchMeta("train", None, ["a"], [])):
        with pytest.raises(ValueError, match="neither select_fields nor"):
            adapter.get_data(nothing)


def test_a_read_of_no_rows_is_an_empty_tensordict(adapter: DataPlaneAdapter) -> None:
    for read in (adapter.get_samples([], "train", ["x"]), adapter.get_data(KVBatchMeta("train", None, [], ["x"]))):
        assert read.batch_size == (0,)
        assert list(read.keys()) == []


@pytest.mark.parametrize(("ids", "field"), [(["a", "z"], "x"), (["a"], "y"), (["a", "b"], "late")])
def test_a_missing_row_or_field_is_a_key_error(adapter: DataPlaneAdapter, ids: Sequence[str], field: str) -> None:
    put(adapter, "a", "b")
    adapter.put_samples(["b"], "train", columns(1, late=torch.ones(1)))
    with pytest.raises(KeyError):
        adapter.get_samples(ids, "train", [field])


# -- check_consumption_status, list_sample_ids, clear_samples ----------------------------------------------------------


def test_tasks_are_done_when_they_have_consumed_the_rows_that_are_there(registered: DataPlaneAdapter) -> None:
    registered.register_partition("train", ["x"], 100, ["train"])
    assert not registered.check_consumption_status("train", ["train"])
    registered.claim_meta("train", "train", ["x"], 2)
    assert registered.check_consumption_status("train", ["train"])
    assert not registered.check_consumption_status("train", ["train", "logprob"])
    assert not registered.check_consumption_status("train", ["train", "unknown"])
    assert not registered.check_consumption_status("unknown", ["train"])
    put(registered, "late")
    assert not registered.check_consumption_status("train", ["train"])
    registered.clear_samples(["a", "b", "late"], "train")
    assert registered.check_consumption_status("train", ["train"])


def test_ids_are_listed_over_several_pages(adapter: DataPlaneAdapter) -> None:
    ids = [f"{number:05}" for number in range(70_000)]
    for begin in (35_000, 0):
        some = ids[begin : begin + 35_000]
        adapter.put_samples(some, "train", columns(len(some), x=torch.zeros(len(some), dtype=torch.uint8)))
    assert adapter.list_sample_ids("train") == ids


def test_rows_are_cleared_by_id_or_with_their_partition(registered: DataPlaneAdapter, client: DataPlaneClient) -> None:
    registered.clear_samples(["a", "unknown"], "train")
    assert registered.list_sample_ids("train") == ["b"]
    registered.clear_samples([], "train")
    registered.clear_samples(["a"], "unknown")
    for _ in range(2):
        registered.clear_samples(None, "train")
        assert client.partitions() == []
    with pytest.raises(KeyError):
        registered.get_samples(["b"], "train", ["x"])


# -- checkpoints, close ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["shm"])
def test_a_checkpoint_has_rows_and_cursors_and_is_loaded_by_a_fresh_client(
    durable: Lives, tmp_path: Path, way: str
) -> None:
    trainer, successor = (DataPlaneAdapter(durable.address, transport=way, timeout_s=600.0) for _ in range(2))
    trainer.register_partition("train", ["x"], 3, ["train"])
    put(trainer, "a", "b", "c")
    trainer.claim_meta("train", "train", ["x"], 1)
    trainer.save_checkpoint(tmp_path / "step_3", metadata={"step": 3})
    trainer.save_checkpoint(str(tmp_path / "again"))
    trainer.clear_samples(None, "train")
    put(trainer, "of the time after it")
    with pytest.raises(PreconditionError, match="load the checkpoint first"):
        trainer.load_checkpoint(tmp_path / "step_3")
    with pytest.raises(FileNotFoundError):
        successor.load_checkpoint(tmp_path)
    assert successor.load_checkpoint(tmp_path / "step_3") == {"step": 3}
    successor.register_partition("train", ["x"], 3, ["train"])
    assert successor.list_sample_ids("train") == ["a", "b", "c"]
    assert successor.claim_meta("train", "train", ["x"], 2).sample_ids == ["b", "c"]
    for adapter in (trainer, successor):
        adapter.close()


@pytest.mark.parametrize("way", ["shm"])
def test_a_claim_that_does_not_wait_for_rows_waits_for_the_next_life_of_a_durable_server(
    durable: Lives, way: str
) -> None:
    adapter = DataPlaneAdapter(durable.address, transport=way, timeout_s=600.0)
    adapter.register_partition("train", ["x"], 2, ["train"])
    put(adapter, "a", "b")
    durable.end()
    with ThreadPoolExecutor(1) as threads:
        claimed = threads.submit(adapter.claim_meta, "train", "train", ["x"], 3, blocking=False)
        assert durable.begin() is None, durable.log
        assert claimed.result(200.0).sample_ids == ["a", "b"]
    adapter.close()


def test_closing_is_idempotent_and_leaves_other_adapters_of_the_process(
    new_adapter: Callable[..., DataPlaneAdapter],
) -> None:
    first, second = new_adapter(), new_adapter()
    put(first, "a")
    assert second.list_sample_ids("train") == ["a"]
    for _ in range(2):
        first.close()
    assert second.list_sample_ids("train") == ["a"]
    assert first.list_sample_ids("train") == ["a"]


def test_the_last_adapter_of_a_process_that_closes_ends_its_session(
    registered: DataPlaneAdapter, client: DataPlaneClient
) -> None:
    registered.claim_meta("train", "train", ["x"], 3, blocking=False)
    assert client.server_status().sessions == 1
    registered.close()
    while client.server_status().sessions:
        pass


def test_an_adapter_needs_an_address_and_settings_that_connect_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPLANE_SERVER", raising=False)
    with pytest.raises(ValueError, match="DATAPLANE_SERVER"):
        DataPlaneAdapter()
    with pytest.raises(ValueError, match="is not an address"):
        DataPlaneAdapter("somewhere")
    with pytest.raises(TypeError, match="did you mean 'timeout_s'"):
        DataPlaneAdapter("unix:///nowhere", timeout=3)
    monkeypatch.setenv("DATAPLANE_SERVER", "unix:///nowhere")
    assert DataPlaneAdapter().address == "unix:///nowhere"
