"""TransferQueue, as it is installed, and our module give the same answers to the same calls.

Tuples are compared as lists, which TransferQueue makes of them. Where it answers with fewer rows or no column, or
writes although it refuses, ours raises ValueError and writes nothing: `test_kv.py` has that.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

import dataplane_transfer_queue as ours
from dataplane_server.testing import running_server


def is_installed() -> bool:
    """Whether the real package is: a distribution of ours may have its module's name."""
    try:
        return importlib.metadata.distribution("TransferQueue") is not None
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not is_installed(), reason="TransferQueue is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of Ray, ZeroMQ and nested tensors
    pytest.mark.timeout(1800),
]

CONF = {"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}}


def columns(rows: int, **fields: object) -> TensorDict:
    return TensorDict(fields, batch_size=[rows])


def jagged(*lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(length) for length in lengths], layout=torch.jagged)


def plain(value: object) -> object:
    """A result as values that can be compared."""
    if isinstance(value, TensorDict):
        return list(value.batch_size), {name: plain(value.get(name)) for name in sorted(map(str, value.keys()))}
    if isinstance(value, torch.Tensor):
        rows = [plain(row) for row in value.unbind()] if value.is_nested else value.tolist()
        return str(value.layout), str(value.dtype), rows
    if isinstance(value, NonTensorStack):
        return [plain(row.data) for row in value.unbind(0)]
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: plain(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(held) for held in value]
    if type(value).__name__ == "KVBatchMeta":
        names = ("keys", "tags", "partition_id", "fields", "extra_info")
        return {name: getattr(value, name) for name in names} | {"size": value.size}  # type: ignore[attr-defined]
    return value


class Recorder:
    """Makes calls, and keeps what each gave: a result, or of which kind an error was."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, object]] = []

    def __call__(self, what: str, call: Callable[..., object], *args: object, **kwargs: object) -> Any:
        try:
            result = call(*args, **kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            kinds = [kind for kind in (TypeError, ValueError, RuntimeError) if isinstance(error, kind)]
            self.answers.append((what, kinds[0].__name__))
            return None
        self.answers.append((what, plain(result)))
        return result


OBJECTS = {
    "none": None,
    "flag": True,
    "number": 3,
    "text": "hey",
    "bytes": b"xx",
    "list": [1, [2, "x"]],
    "tuple": (1, (2,)),
    "mapping": {"a": 1, 2: torch.ones(2)},
    "array": np.arange(3),
    "scalar": np.float32(2.5),
}
COLUMNS: dict[str, Callable[[], object]] = {
    "numbers": lambda: torch.tensor([1, 2]),
    "flags": lambda: torch.tensor([True, False]),
    "rows of one entry": lambda: torch.tensor([[1], [2]]),
    "rows of bfloat16": lambda: torch.zeros(2, 3, dtype=torch.bfloat16),
    "rows of three dimensions": lambda: torch.arange(24).reshape(2, 3, 2, 2),
    "jagged": lambda: jagged(3, 2),
    "jagged of one length": lambda: jagged(2, 2),
    "jagged with a row without entries": lambda: jagged(3, 0),
    "routed experts": lambda: torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(1, 2)], layout=torch.jagged),
    "strided": lambda: torch.nested.nested_tensor([torch.arange(3), torch.arange(2)]),
    "images": lambda: torch.nested.nested_tensor([torch.ones(3, 1), torch.ones(2, 2)]),
    "texts": lambda: NonTensorStack("a", "b"),
    "tensors as objects": lambda: NonTensorStack(torch.ones(2), torch.ones(3)),
    "object array": lambda: np.array(["a", None], dtype=object),
    "gradients": lambda: torch.ones(2, 2, requires_grad=True),
}


def put_and_get(tq: Any, call: Recorder) -> None:
    for what, make in COLUMNS.items():
        fields = columns(2, x=make())
        call(f"put {what}", tq.kv_batch_put, ["a", "b"], what, fields)
        call(f"get {what}", tq.kv_batch_get, ["b", "a"], what)
    call("objects", tq.kv_put, "o", "objects", OBJECTS, {"kind": "o"})
    call("get objects", tq.kv_batch_get, "o", "objects")
    for key, width in (("a", 3), ("b", 2)):
        call(f"position ids of {key}", tq.kv_put, key, "ids", {"x": torch.ones(4, width)})
    call("get position ids", tq.kv_batch_get, ["a", "b"], "ids")


def use_keys(tq: Any, call: Recorder) -> None:
    three = columns(3, x=torch.arange(6).reshape(3, 2), r=torch.tensor([1.0, 2.0, 3.0]))
    meta = call("put", lambda: tq.kv_batch_put(["a", "b", "c"], "p", three, [{"s": 1}, {"s": "x"}, {}]))
    for keys in (["a", "b", "c"], ["c", "a"], ["c", "c"], "b"):
        call(f"get {keys}", tq.kv_batch_get, keys, "p")
    call("get a field", tq.kv_batch_get, ["c", "a"], "p", "x")
    call("get fields", tq.kv_batch_get, ["c", "a"], "p", ["r", "x"])
    call("get by meta", tq.kv_batch_get_by_meta, meta)
    call("get a field by meta", tq.kv_batch_get_by_meta, meta, "r")
    call(
        "put a field", lambda: tq.kv_batch_put(["a", "b"], "p", columns(2, y=torch.ones(2)), [{"t": None}, {"s": 2.5}])
    )
    call("put tags", tq.kv_batch_put, ["a", "c"], "p", tags=[{"s": True}, {"u": 7}])
    call("get what all hold", tq.kv_batch_get, ["a", "c"], "p")
    call("put a row", tq.kv_put, "k", "p", {"x": torch.tensor([8, 9]), "r": torch.tensor(4.0)}, {"s": 9})
    call("put a row of columns", tq.kv_put, "l", "p", columns(1, x=torch.ones(1, 3, dtype=torch.int64)))
    call("get rows", tq.kv_batch_get, ["k", "l"], "p", "x")
    call("put a tag of a new row", tq.kv_put, "n", "q", tag={"is_prompt": True, "status": "pending"})
    for partition in (None, "p", "q", "unknown"):
        call(f"list {partition}", tq.kv_list, partition)
    call("clear", tq.kv_clear, ["a", "unknown"], "p")
    call("clear one", tq.kv_clear, "n", "q")
    call("clear nowhere", tq.kv_clear, "a", "unknown")
    call("list the rest", tq.kv_list)


def parse(found: dict[str, Any]) -> dict[str, Any]:
    return {"url": [text.upper() for text in found["url"]], "y": found["y"] * 2, "j": [row + 1 for row in found["j"]]}


def parse_and_refuse(tq: Any, call: Recorder) -> None:
    fields = columns(2, url=NonTensorStack("u", "v"), y=torch.ones(2, 2), j=jagged(1, 2))
    call("parse", tq.kv_batch_put, ["a", "b"], "parsed", fields, data_parser=parse)
    call("get parsed", tq.kv_batch_get, ["a", "b"], "parsed")
    two = columns(2, x=torch.ones(2))
    call("neither fields nor tags", tq.kv_batch_put, ["a"], "p")
    call("neither fields nor tag", tq.kv_put, "a", "p")
    call("fewer keys", tq.kv_batch_put, ["a"], "p", two)
    call("fewer tags", tq.kv_batch_put, ["a", "b"], "p", two, [{}])
    call("no keys", tq.kv_batch_put, [], "p", columns(0))
    call("a tuple of keys", tq.kv_batch_put, ("a", "b"), "p", two)
    call("numbers for keys", tq.kv_batch_put, [1, 2], "p", two)
    call("a nested tensor as one row", tq.kv_put, "z", "nested", {"x": jagged(2)})
    call("get of an unknown partition", tq.kv_batch_get, ["a"], "unknown")
    call("get of no keys", tq.kv_batch_get, [], "parsed")
    call("get of a row without fields", lambda: tq.kv_put("t", "tags", tag={}) and tq.kv_batch_get(["t"], "tags"))
    meta = tq.KVBatchMeta(keys=["a"], tags=[{}], partition_id="parsed", fields=["y"])
    call("get of a field that the meta lacks", tq.kv_batch_get_by_meta, meta, "url")


async def use_twins(tq: Any) -> list[object]:
    meta = await tq.async_kv_put("a", "async", {"x": torch.ones(2), "n": "text"}, {"s": 1})
    more = await tq.async_kv_batch_put(["b", "c"], "async", columns(2, x=torch.ones(2, 2)), [{"s": 2}, {}])
    read = [await tq.async_kv_batch_get_by_meta(meta), await tq.async_kv_batch_get(["c", "a"], "async", "x")]
    await tq.async_kv_clear("b", "async")
    return [meta, more, *read, await tq.async_kv_list("async")]


def use_metas(tq: Any, call: Recorder) -> None:
    def made(*keys: str) -> Any:
        return tq.KVBatchMeta([*keys], [{"k": key} for key in keys], "p", ["x"], {"e": 1})

    call("select", made("a", "b", "c").select_keys, ["c", "a"])
    call("select unknown", made("a").select_keys, ["z"])
    call("chunk", made("a", "b", "c").chunk, 2)
    call("chunk to more", made("a").chunk, 2)
    call("concat", tq.KVBatchMeta.concat, [made("a"), made("b")])
    call("concat twice", tq.KVBatchMeta.concat, [made("a"), made("a")])
    meta = made("a", "b", "c")
    call("reorder", meta.reorder, [2, 0, 1])
    call("reordered", lambda: meta)


def answers_of(tq: Any) -> list[tuple[str, object]]:
    """What all calls of the face by keys give."""
    call = Recorder()
    put_and_get(tq, call)
    use_keys(tq, call)
    parse_and_refuse(tq, call)
    use_metas(tq, call)
    call("twins", lambda: asyncio.run(use_twins(tq)))
    call("version", lambda: [int(part) for part in tq.__version__.split(".")] >= [0, 1, 9])
    call("metrics", tq.get_metrics_endpoint)
    return call.answers


@pytest.fixture(scope="module")
def theirs() -> Iterator[list[tuple[str, object]]]:
    """What TransferQueue answers, in a Ray cluster of two processors."""
    ray = importlib.import_module("ray")
    tq = importlib.import_module("transfer_queue")
    assert tq.kv_put is not ours.kv_put
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    tq.init(importlib.import_module("omegaconf").OmegaConf.create(CONF))
    yield answers_of(tq)
    tq.close()
    ray.shutdown()


@pytest.mark.parametrize("way", ["grpc", "shm"])
def test_every_call_by_key_answers_as_transfer_queue_does(
    way: str, theirs: list[tuple[str, object]], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(listen=f"unix://{tmp_path}/dataplane.sock" if way == "shm" else "127.0.0.1:0") as address:
        monkeypatch.setenv("DATAPLANE_SERVER", address)
        conf = importlib.import_module("omegaconf").OmegaConf.create(CONF)
        returned = ours.init(conf)
        assert type(returned) is type(conf)
        assert returned is not None
        assert returned["backend"]["storage_backend"] == "SimpleStorage"
        found = answers_of(ours)
        ours.close()
    assert [what for what, _ in found] == [what for what, _ in theirs]
    differ = [(what, mine, other) for (what, mine), (_, other) in zip(found, theirs, strict=True) if mine != other]
    assert differ == []
