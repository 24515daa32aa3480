"""Values that are put once: equal values of a field are kept, counted and freed as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from tests.core.caller import BYTES, Caller, int64
from tests.semantics.conftest import ON_ONE_WAY
from torch import Tensor

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_server.core.calls.answers import PutResult, Reservation
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead

X, Y = b"x" * 100, b"y" * 100
IDS = ["s1", "s2", "s3"]
WRONG = Reason.INVALID_REQUEST


def size(caller: Caller) -> tuple[int, int, int]:
    """Rows that hold field a, the bytes of their values, and the bytes in use."""
    info = caller.plane.partition_info("p")
    return info.fields[0].rows, info.fields[0].size_bytes, caller.used


@pytest.fixture
def three(caller: Caller) -> Caller:
    """Rows s1 to s3 with the value X: two of one put, then one of another."""
    caller.put_once({"s1": X, "s2": X})
    assert caller.put_once({"s3": X}) == PutResult(1, 100)
    return caller


@pytest.mark.parametrize("order", list(itertools.permutations(IDS)))
def test_cleared_one_by_one_the_last_row_frees_the_bytes(three: Caller, order: tuple[str, ...]) -> None:
    freed = [three.clear([sample_id]).size_bytes for sample_id in order]
    assert (freed, size(three)) == ([0, 0, 100], (0, 0, 0))


@pytest.mark.parametrize(
    ("put", "used"),
    [
        pytest.param(lambda c: c.put_once({"t": Y}), 200, id="other bytes"),
        pytest.param(lambda c: c.put_once({"t": X[:99]}), 199, id="another length"),
        pytest.param(lambda c: c.put_once({"t": X}, "b"), 200, id="another field"),
        pytest.param(lambda c: c.put_once({"t": X}, partition_id="q"), 200, id="another partition"),
        pytest.param(lambda c: c.put_rows(["t"], "a", size=100), 200, id="a put of every value"),
        pytest.param(lambda c: c.put_once({"t": X, "s1": Y}), 200, id="as a row has that gets another one"),
        pytest.param(lambda c: c.put_once({"s1": X, "s2": X, "s3": X}), 100, id="the same again"),
        pytest.param(lambda c: c.put_once({"s1": Y, "s2": Y, "s3": Y}), 100, id="another one for all"),
        pytest.param(lambda c: c.put_rows(IDS, "a", size=7), 21, id="a put of every value for all"),
        pytest.param(lambda c: c.put_once({"t": b""}), 100, id="no bytes"),
    ],
)
def test_only_equal_values_of_the_field_become_one(three: Caller, put: Callable[[Caller], object], used: int) -> None:
    three.register(partition_id="q")
    put(three)
    assert three.used == used


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_reader_keeps_what_its_row_had_and_the_next_equal_value_is_kept_anew(three: Caller) -> None:
    plan = three.read(["s2"], "a")
    three.clear()
    assert size(three) == (0, 0, 100)
    three.put_once({"t": X})
    assert size(three) == (1, 100, 200)
    three.apply(EndRead(plan.ticket))
    assert size(three) == (1, 100, 100)
    three.put_once({"u": X})
    assert size(three) == (2, 100, 100)


def test_a_field_of_another_type_does_not_get_what_a_reader_still_has(caller: Caller) -> None:
    caller.put_once({"s1": X})
    caller.read(["s1"], "a")
    caller.clear()
    caller.register(("b",))
    caller.register(("a", "b"))
    column = ColumnSpec("a", Shape("jagged", "float32", ()), int64([25]))
    begun = caller.begin(caller.put_call(["s1"], columns=[column], once=["a"]))
    caller.finish(begun.ticket, b"d" * 16)
    assert caller.used == 200


# -- ends --------------------------------------------------------------------------------------------------------------


def test_a_put_without_all_its_digests_is_an_error_and_changes_nothing() -> None:
    caller = Caller(Limits())
    caller.register()
    begun = caller.begin(caller.put_call(["s1", "s2"], {"a": [9, 9]}, once=["a"]))
    with pytest.raises(ValueError, match=r"32 bytes .*16"):
        caller.finish(begun.ticket, b"d" * 16)
    assert size(caller) == (0, 0, 0)


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_a_put_counts_whole_while_it_is_under_way_and_what_is_kept_afterwards(three: Caller) -> None:
    three.set_flow(max_bytes=250, when_full="reject")
    begun = three.begin(three.put_call(["t"], {"a": [100]}, once=["a"]))
    assert three.used == 200
    with three.refuses(Reason.PARTITION_FULL):
        three.put_once({"u": X})
    three.finish(begun.ticket, b"other bytes, Y. ")
    assert size(three) == (4, 200, 200)
    three.clear(["t"])
    three.put_once({"u": X})
    assert size(three) == (4, 100, 100)


# -- what cannot be put once -------------------------------------------------------------------------------------------


def test_what_a_put_did_not_need_goes_to_those_that_wait(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=256)
    caller.register()
    caller.put_once({"s1": X})
    second = caller.apply(caller.put_call(["s2"], {"a": [100]}, once=["a"]))
    waiting = caller.apply(caller.put_call(["s3"], {"a": [100]}))
    assert isinstance(second, Reservation)
    assert not isinstance(waiting, Reservation)
    (known,) = caller.plane.partitions["p"].rows.payloads
    assert known.key is not None
    caller.finish(second.ticket, known.key[2])
    (admitted,) = caller.plane.take_effects()
    caller.finish(admitted.ticket)
    assert caller.used == 200


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        pytest.param({"once": ["b"]}, WRONG, ("'p'", "'b'", "per-token"), id="a per-token field"),
        pytest.param({"once": ["z"]}, WRONG, ("'p'", "'z'", "no column"), id="no column"),
        pytest.param({"once": ["a", "a"]}, Reason.DUPLICATE, ("'a'",), id="a field twice"),
        pytest.param({"once": ["b"], "append": True}, WRONG, ("'b'", "per-token"), id="an append"),
    ],
)
def test_what_cannot_be_kept_once_is_refused(
    caller: Caller, more: dict[str, object], reason: Reason, words: tuple[str, ...]
) -> None:
    caller.register(per_token_fields=frozenset("b"))
    columns = [ColumnSpec(name, BYTES, int64([3])) for name in ("b" if "append" in more else "ab")]
    with caller.refuses(reason, *words):
        caller.apply(caller.put_call(["s1"], columns=columns, **more))  # type: ignore[arg-type]


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with the fields image, boxes, and input_ids, which is per-token."""
    client.register_partition("p", ["image", "boxes", "input_ids"], 0, ["train"], per_token_fields=["input_ids"])
    return client


def images(count: int, pixels: int) -> Tensor:
    return torch.arange(count * pixels, dtype=torch.int32).view(torch.uint8).view(count, -1)


def used(client: DataPlaneClient) -> int:
    return client.server_status().memory_used_bytes


@pytest.mark.parametrize("pixels", [100, 1 << 19], ids=["at once", "hashed in a thread"])
def test_images_put_again_in_every_epoch_take_their_memory_once(flow: DataPlaneClient, pixels: int) -> None:
    pictures = images(4, pixels)
    for epoch in range(3):
        ids = [f"{epoch}-{row}" for row in range(8)]
        flow.put_samples(
            ids, "p", {"image": pictures.repeat(2, 1), "boxes": [[row] for row in range(8)]}, once=["image"]
        )
        flow.clear_samples([f"{epoch - 1}-{row}" for row in range(8)], "p")
        assert used(flow) == flow.partition("p").size_bytes == pictures.nbytes + 8 * 8
        assert torch.equal(flow.get_samples(ids, "p", ["image"])["image"], pictures.repeat(2, 1))
    assert flow.partition("p").deduplicated_bytes_total == 5 * pictures.nbytes
    flow.clear_samples(["2-0", "2-1", "2-2", "2-3"], "p")
    assert used(flow) == pictures.nbytes + 4 * 8
    flow.clear_samples(None, "p")
    assert used(flow) == 0


@ON_ONE_WAY
def test_what_cannot_be_kept_once_is_refused_to_a_client_by_name(flow: DataPlaneClient) -> None:
    with pytest.raises(InvalidArgumentError, match="'input_ids'"):
        flow.put_samples(["a"], "p", {"input_ids": [[1, 2]]}, once=["input_ids"])
    with pytest.raises(UnsupportedTypeError, match="'boxes'"):
        flow.put_samples(["a"], "p", {"boxes": [[3]]}, once="boxes")
