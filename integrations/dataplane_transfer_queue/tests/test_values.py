"""Which columns can be put, and as what they come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

import dataplane_transfer_queue as tq
from dataplane_client.client import DataPlaneClient
from dataplane_transfer_queue._rows import Rows
from dataplane_transfer_queue._values import stored_columns

pytestmark = [
    pytest.mark.usefixtures("started"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

Plain = Callable[[TensorDict], dict[str, tuple[str, list[object]]]]


def jagged(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def strided(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.strided)


def narrowed(rectangle: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Rows that are a part of a rectangle, with holes between them."""
    return torch.nested.narrow(rectangle, 1, 0, torch.tensor(lengths), layout=torch.jagged)


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


COLUMNS: dict[str, tuple[Callable[[], Any], str]] = {
    "one number a row": (lambda: numbers(2), "dense"),
    "rows of one length": (lambda: numbers(2, 3), "jagged"),
    "rows of one entry": (lambda: numbers(2, 1), "jagged"),
    "jagged rows": (lambda: jagged(numbers(3), numbers(0)), "jagged"),
    "jagged rows without entries": (lambda: jagged(numbers(0), numbers(0)), "jagged"),
    "strided rows": (lambda: strided(numbers(3), numbers(2)), "jagged"),
    "rows of three dimensions": (lambda: numbers(2, 3, 2, 2), "jagged"),
    "rows without entries": (lambda: numbers(2, 0, 3), "jagged"),
    "rows of entries without entries": (lambda: numbers(2, 3, 0), "jagged"),
    "routed experts": (lambda: jagged(numbers(3, 4, 2), numbers(1, 4, 2)), "jagged"),
    "a part of routed experts": (lambda: narrowed(numbers(2, 5, 4, 2), [3, 1]), "jagged"),
    "entries of jagged rows without entries": (lambda: jagged(numbers(3, 0), numbers(1, 0)), "jagged"),
    "position ids": (lambda: strided(numbers(4, 3), numbers(4, 2)), "jagged"),
    "images": (lambda: strided(numbers(3, 1), numbers(2, 2)), "strided"),
    "objects that are tensors of one dimension": (lambda: NonTensorStack(numbers(2), numbers(3)), "jagged"),
    "objects that are images": (lambda: NonTensorStack(numbers(2, 2), numbers(3, 1)), "strided"),
    "objects that are numbers in tensors": (lambda: NonTensorStack(numbers(1)[0], numbers(1)[0]), "dense"),
    "part of a larger tensor": (lambda: numbers(3, 2).t(), "jagged"),
}


@pytest.mark.parametrize("what", COLUMNS)
def test_a_tensor_comes_back_nested_unless_its_rows_are_numbers(what: str, plain: Plain) -> None:
    make, kind = COLUMNS[what]
    column = make()
    rows = [row.data if isinstance(column, NonTensorStack) else row for row in column.unbind(0)]
    tq.kv_batch_put(["a", "b"], "p", TensorDict({"x": column}, batch_size=[2]))
    found = tq.kv_batch_get(["a", "b"], "p")
    assert plain(found) == {"x": (kind, [row.tolist() for row in rows])}
    assert [row.shape for row in found.get("x").unbind()] == [row.shape for row in rows]
    assert plain(tq.kv_batch_get(["b", "a"], "p"))["x"][1] == [row.tolist() for row in rows[::-1]]


def test_rows_of_a_field_may_differ_in_every_dimension_from_put_to_put(plain: Plain) -> None:
    for key, shape in (("a", (4, 2)), ("b", (4, 3)), ("c", (2, 3)), ("d", (2, 3, 1))):
        tq.kv_put(key, "p", {"x": numbers(*shape)})
    assert tq.kv_batch_get(["a", "b"], "p").get("x").layout is torch.jagged
    assert tq.kv_batch_get(["b", "c"], "p").get("x").layout is torch.jagged
    assert tq.kv_batch_get(["a", "c"], "p").get("x").layout is torch.strided
    kind, rows = plain(tq.kv_batch_get(["c", "d"], "p"))["x"]
    assert (kind, [tuple(row.shape) for row in rows]) == ("objects", [(2, 3), (2, 3, 1)])  # type: ignore[attr-defined]


def test_shapes_are_on_the_device_of_their_rows() -> None:
    values, offsets = torch.empty(5, 4, device="meta"), torch.tensor([0, 2, 5], device="meta")
    columns: dict[str, Any] = stored_columns({"x": torch.nested.nested_tensor_from_jagged(values, offsets)}, 2)
    assert {name: column.device.type for name, column in columns.items()} == {"x": "meta", "x[shape]": "meta"}


def test_one_object_may_be_the_value_of_every_row_and_tensors_of_two_types_are_objects(plain: Plain) -> None:
    mixed = NonTensorStack(torch.ones(1), torch.ones(1, dtype=torch.int64))
    same = NonTensorData("same", batch_size=[2])
    tq.kv_batch_put(["a", "b"], "p", TensorDict({"mixed": mixed, "same": same}, batch_size=[2]))
    found = plain(tq.kv_batch_get(["a", "b"], "p"))
    assert found["same"] == ("objects", ["same", "same"])
    assert found["mixed"] == ("objects", [torch.ones(1), torch.ones(1, dtype=torch.int64)])


def test_a_dense_rectangle_is_stored_as_it_is(client: DataPlaneClient) -> None:
    tq.kv_batch_put(["a", "b"], "p", TensorDict({"x": numbers(2, 3), "y": numbers(2, 3, 2)}, batch_size=[2]))
    fields = {field.name: (field.kind, field.row_shape) for field in client.partition("p").fields if field.kind}
    assert fields == {"x": ("dense", (3,)), "y": ("dense", (6, 1)), "y[shape]": ("dense", (2,))}


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(("before", "after"), [((3,), (3, 4)), ((3, 4), (3,))])
def test_a_partition_that_another_process_made_anew_may_hold_rows_of_other_dimensions(
    client: DataPlaneClient, plain: Plain, before: tuple[int, ...], after: tuple[int, ...], reads: bool
) -> None:
    tq.kv_put("a", "p", {"x": numbers(*before)})
    client.drop_partition("p")
    Rows(client).put(["b"], "p", {"x": numbers(1, *after)})
    if reads:
        assert plain(tq.kv_batch_get("b", "p", "x")) == {"x": ("jagged", [numbers(*after).tolist()])}
    with pytest.raises(ValueError, match="'x'"):
        tq.kv_put("c", "p", {"x": numbers(*before)})
    tq.kv_put("c", "p", {"x": numbers(*after)})
    assert plain(tq.kv_batch_get(["b", "c"], "p", "x")) == {"x": ("jagged", [numbers(*after).tolist()] * 2)}


def test_rows_that_another_client_put_come_back_in_the_same_way(client: DataPlaneClient, plain: Plain) -> None:
    client.register_partition("p", ["x", "y"], 0, ["train"])
    client.put_samples(["a", "b"], "p", {"x": numbers(2, 2, 2), "y": jagged(numbers(1, 2), numbers(2, 2))})
    found = plain(tq.kv_batch_get(["a", "b"], "p"))
    assert found == {"x": ("jagged", numbers(2, 2, 2).tolist()), "y": ("jagged", [[[0, 1]], [[0, 1], [2, 3]]])}
