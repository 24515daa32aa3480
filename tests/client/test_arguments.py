"""Names and numbers that callers pass: a value that would be sent as something else is refused by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dataplane_client import DrawBand, FlowPolicy, aio, observe
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.loader import ClaimLoader
from dataplane_client.observe import Observer
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.testing import running_server

Call = Callable[[DataPlaneClient], object]


@pytest.fixture(scope="module")
def client() -> Iterator[DataPlaneClient]:
    """A client of a server with the partition p, which has the field x and the task t."""
    with running_server() as address, connect(address) as client:
        client.register_partition("p", ["x"], 0, ["t"])
        yield client


@pytest.mark.parametrize(
    "names", [["a", "b"], ("a", "b"), {"a": 1, "b": 2}, iter(["a", "b"])], ids=["list", "tuple", "mapping", "iterator"]
)
def test_names_may_be_any_iterable(client: DataPlaneClient, names: Sequence[str]) -> None:
    assert client.put_samples(names, "p", {"x": torch.zeros(2)}).sample_ids == ["a", "b"]


def test_names_that_can_be_listed_once_are_those_of_the_whole_call(client: DataPlaneClient) -> None:
    client.clear_samples(None, "p")
    client.put_samples(["without x"], "p")
    meta = client.put_samples(["once"], "p", {"x": torch.zeros(1)})
    (loaded,) = ClaimLoader(client.target, "p", "t", one("x"), 1, max_batches=1)
    assert loaded.data["x"].tolist() == [0.0]
    assert client.reset("p", "t", one("once")) == 1
    with client.claim("p", "t", one("x"), 1) as claim:
        assert client.get_data(claim.meta)["x"].tolist() == [0.0]
    assert client.read_columns(meta, one("x"), pad_value_dict={"x": 1})["x"].tolist() == [0.0]
    assert client.put_group("p", "g", one("member"), {"x": torch.zeros(1)}) == 1
    client.clear_samples(None, "p")


def one(name: str) -> Any:
    """An iterator over this name."""
    return iter([name])


META = KVBatchMeta("p", None, ["a"])
ONE_STR: dict[str, tuple[str, Callable[[aio.AsyncDataPlaneClient], object]]] = {
    "put_samples": ("sample id", lambda c: c.put_samples("x", "p")),
    "get_samples": ("sample id", lambda c: c.get_samples("x", "p", ["x"])),
    "get_samples of a field": ("field name", lambda c: c.get_samples(["a"], "p", "x")),
    "get_data": ("field name", lambda c: c.get_data(META, "x")),
    "read_columns": ("field name", lambda c: c.read_columns(META, "x")),
    "clear_samples": ("sample id", lambda c: c.clear_samples("x", "p")),
    "claim": ("field name", lambda c: c.claim("p", "t", "x", 1)),
    "claim_meta": ("field name", lambda c: c.claim_meta("p", "t", "x", 1)),
    "claim_shard": ("field name", lambda c: c.claim_shard("p", "t", "x", 1, step=0, dp_rank=0, dp_world=1)),
    "reset": ("sample id", lambda c: c.reset("p", "t", "x")),
    "reserve_group": ("sample id", lambda c: c.reserve_group("p", "g", "x")),
    "check_consumption_status": ("task name", lambda c: c.check_consumption_status("p", "x")),
    "register_partition": ("field name", lambda c: c.register_partition("q", "x", 0, ["t"])),
    "register_partition of a task": ("task name", lambda c: c.register_partition("q", ["x"], 0, "x")),
    "register_partition per token": (
        "per-token field name",
        lambda c: c.register_partition("q", ["x"], 0, ["t"], per_token_fields="x"),  # noqa: S106  # tokens of text
    ),
    "register_partition with enums": ("enum name", lambda c: c.register_partition("q", ["x"], 0, [], enums={"x": "x"})),
}
"""Calls that take a list of names, each with one name in its place: what the names are, and the call."""


@pytest.mark.parametrize(("what", "call"), ONE_STR.values(), ids=ONE_STR)
async def test_one_str_is_no_list_of_names(
    client: DataPlaneClient, what: str, call: Callable[[aio.AsyncDataPlaneClient], Awaitable[object]]
) -> None:
    refusal = f"{what}s .*'x'"
    with pytest.raises(UnsupportedTypeError, match=refusal):
        call(client)  # type: ignore[arg-type]
    async with await aio.connect(client._transport.target) as waiting:
        with pytest.raises(UnsupportedTypeError, match=refusal):
            await call(waiting)


def test_a_tag_may_be_a_numpy_scalar_or_a_0_d_tensor(client: DataPlaneClient) -> None:
    numbers = {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True), "s": np.str_("x"), "t": torch.tensor(2)}
    plain = {"i": 3, "f": 0.5, "b": True, "s": "x", "t": 2}
    put = client.put_samples(["tagged"], "p", {"x": torch.zeros(1)}, [numbers])
    stored = client.sample("p", "tagged").tags
    assert [{key: (type(value), value) for key, value in tags.items()} for tags in ((put.tags or [])[0], stored)] == [
        {key: (type(value), value) for key, value in plain.items()}
    ] * 2


def dead_letters(task: Any) -> Call:
    return lambda c: c.dead_letters("p", task)


def claim(size: Any = 5, least: Any = 1) -> Call:
    return lambda c: c.claim("p", "t", ["x"], size, min_size=least)


def put(tags: Any = None, lengths: Any = None) -> Call:
    return lambda c: c.put_samples(["a", "b"], "p", tags=tags, sequence_lengths=lengths)


def clear(generations: Any) -> Call:
    return lambda c: c.clear_samples(["a", "b"], "p", generations=generations)


def status(timeout_s: float) -> Call:
    return lambda c: c.server_status(timeout_s=timeout_s)


def register(partition_id: Any = "q", **more: Any) -> Call:
    definition = {"fields": ["x"], "num_samples": 1, "consumer_tasks": ["t"]}
    return lambda c: c.register_partition(partition_id, **{**definition, **more})


ONE_EACH = "tags|mapping.* 2 samples"
BOUNDS = "'b'.* -1 to .*, got"
GENERATION = "clear_samples in 'p'.*generation"
WRONG: dict[type[Exception], list[tuple[Call, str]]] = {
    UnsupportedTypeError: [
        *((put(tags), ONE_EACH) for tags in ({"x": 1}, "x", 3)),
        *((dead_letters(x), f"task name .* str, got {type(x).__name__}") for x in (1, None, b"a", ["a"])),
        *((claim(x), f"batch_size .* int, got {type(x).__name__}") for x in (3.0, "3", None, np.float64(3))),
        *((put(lengths=x), "'p': sequence_lengths") for x in ([1.0, 2], ["1", 2], [None, 1])),
        (put(lengths=torch.tensor([1.5, 2.0])), "'p': sequence_lengths"),
        (clear([1, 2.0]), "clear_samples in 'p': generations"),
        (clear(5), "clear_samples in 'p': generations"),
        (lambda c: c.get_data(replace(META, generations=[1.5]), ["x"]), "get_data from 'p': generations"),  # type: ignore[list-item]
        (lambda c: c.get_data(META, ["x"], token_ranges=5), "get_data from 'p': token_ranges .* 5"),  # type: ignore[arg-type]
        (lambda c: c.set_policies("p", ["t"]), r"'p': tasks must be a mapping, got \['t'\]"),  # type: ignore[arg-type]
        *((register(**{mapping: ["x"]}), f"'q': {mapping} must be a mapping") for mapping in ("enums", "dtypes")),
        *(
            (lambda _, x=x: FlowPolicy(band=DrawBand(x, 0.0, 9.0)), "samples_per_insert must be a number")
            for x in (None, "1")
        ),
        *(
            (register(dtypes={"x": x}), "register_partition 'q'.* 'x'.*dtype")
            for x in (np.float32, np.dtype("int8"), torch.qint8)
        ),
        (lambda c: c.put_samples(["a"], "p", read_on=5), "'p': a node id must be a str"),  # type: ignore[arg-type]
        (lambda c: c.put_samples("p", ["a"]), "sample ids come first"),  # type: ignore[arg-type]
        (lambda c: c.batching().put_later("p", ["a"]), "sample ids come first"),  # type: ignore[arg-type]
        (lambda c: c.create_snapshot(5), "create_snapshot: a snapshot name must be a str, got int"),  # type: ignore[arg-type]
        (lambda c: c.restore_snapshot(5), "restore_snapshot: a snapshot name must be a str, got int"),  # type: ignore[arg-type]
        (lambda c: c.claim("p", "t", ["x"], 1, whole_groups=8), "whole_groups .* 8"),  # type: ignore[arg-type]
        (lambda c: c.read_columns(META, ["x"], pad_value_dict="x"), "pad_value_dict .* 'x'"),  # type: ignore[arg-type]
        (lambda c: c.read_columns(META, ["x"], pad_to_seqlen="8"), "pad_to_seqlen must be an int, got str"),  # type: ignore[arg-type]
        (register(None), "partition id .*NoneType"),
        (register(replace="yes"), "'q': replace .*'yes'"),
        (register(enums={"x": [1]}), "'q'.* enum name .*int"),
    ],
    InvalidArgumentError: [
        *((register(**{number: -1}), f"'q'.*{number} .*-1") for number in ("num_samples", "grpo_group_size")),
        (lambda c: c.set_policies("p", {"t": {"max_staleness": 1}}), "'t': .*TaskPolicy"),  # type: ignore[dict-item]
        (lambda c: c.get_samples(["a"], "p", []), "'p'.*select_fields"),
        (lambda c: c.get_data(replace(META, fields=None)), r"select_fields .*meta\.fields"),
        (lambda c: c.get_data(replace(META, fields=[])), r"select_fields .*meta\.fields"),
        (lambda c: c.get_samples(["a"], "p", ["x"], layout="square"), "layout .*'square'"),  # type: ignore[arg-type]
        (lambda c: c.get_data(META, ["x"], layout="square"), "layout .*'square'"),  # type: ignore[arg-type]
        (lambda c: c.read_columns(META, ["x"], layout="square"), "layout .*'square'"),  # type: ignore[arg-type]
        (
            lambda c: c.claim_shard("p", "t", [], 2, step=0, dp_rank=0, dp_world=1, balance="fair"),  # type: ignore[arg-type]
            "balance .*'fair'",
        ),
        (dead_letters("a\udfff"), "task name .*UTF-8"),
        (register(dtypes={"x": "\udfff"}), "'q': dtype .*UTF-8"),
        *((claim(x), f"batch_size must be 1 to 65536, got {x}") for x in (0, 65_537, 1 << 70)),
        *((claim(least=x), f"min_size .* 1 to 5, got {x}") for x in (0, 6, -1, 1 << 70)),
        *((put(lengths=[1, x]), f"{BOUNDS} {x}") for x in (-2, 1 << 31, 1 << 70)),
        (lambda c: c.put_samples(["a", "b"], "p", TensorDict({}, [5])), "'p': the TensorDict has 5 rows, .* 2 samples"),
        (clear([1]), "clear_samples in 'p': 1 .* 2 samples"),
        (clear([1, -1]), GENERATION),
        (clear([1, 1 << 63]), GENERATION),
        *((status(x), "timeout_s .* 0 to 1000000000") for x in (-1, float("nan"), float("inf"), 2e9)),
    ],
}


@pytest.mark.parametrize(
    ("error", "call", "message"), [(error, *rule) for error, rules in WRONG.items() for rule in rules]
)
def test_a_value_that_would_be_sent_as_something_else_is_refused(
    client: DataPlaneClient, error: type[Exception], call: Call, message: str
) -> None:
    with pytest.raises(error, match=message):
        call(client)


class Verbs(Observer):
    def __init__(self) -> None:
        self.verbs: list[str] = []

    def ended(self, call: observe.Call) -> None:
        self.verbs.append(call.verb)


def test_the_longest_timeout_has_its_margin_too(client: DataPlaneClient) -> None:
    client._transport._forget_local(client._transport._local)  # so that a call attaches
    client.put_samples(["long"], "p", {"x": torch.zeros(1)}, timeout_s=1e9)
    assert client.transport == "shm"
    assert client.get_samples(["long"], "p", ["x"], timeout_s=1e9)["x"].tolist() == [0.0]
    client.claim("p", "t", ["x"], 1, timeout_s=1e9).commit()
    assert client.put_group("p", "long", ["member"], {"x": torch.zeros(1)}, timeout_s=1e9) == 1
    observe.add(observer := Verbs())
    with pytest.raises(InvalidArgumentError, match="'y'"):
        client.put_group("p", "wrong", ["other"], {"y": torch.zeros(1)}, timeout_s=1e9)
    observe.remove(observer)
    assert observer.verbs[-1] == "AbortGroup"
    client.clear_samples(None, "p")


def test_a_delay_is_finite_and_not_negative_and_a_claim_is_no_meta(client: DataPlaneClient) -> None:
    client.put_samples(["delayed"], "p", {"x": torch.zeros(1)})
    claim = client.claim("p", "t", ["x"], 1)
    with pytest.raises(UnsupportedTypeError, match="Claim"):
        client.read_columns(claim, ["x"])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTypeError, match=r"get_data: .*Claim; pass its \.meta"):
        client.get_data(claim, ["x"])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTypeError, match=r"adopt_claim: .*Claim; pass its \.meta"):
        client.adopt_claim(claim.claim_id, claim)  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match=r"delay_s .* 0 to 1e\+09"):
            claim.release(delay_s=seconds)
    claim.release()
