"""Lists and arrays as columns: put as what they plainly are, by every call that puts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
from tensordict import NonTensorData
from tests.tensors import objects
from torch.nested import nested_tensor

from dataplane_client import kv_first_write, pack_jagged_fields, write_columns
from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import InvalidArgumentError, PreconditionError
from dataplane_server.testing import running_server

IDS = ["a", "b", "c"]
GRID = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)


@pytest.fixture(scope="module")
def shared_client() -> Iterator[DataPlaneClient]:
    with running_server() as address, connect(address) as client:
        yield client


@pytest.fixture
def client(shared_client: DataPlaneClient) -> DataPlaneClient:
    """A client with the empty partition p; its field `tokens` is per-token."""
    shared_client.drop_partition("p")
    shared_client.register_partition("p", ["x", "tokens", "note"], 3, ["train"], per_token_fields=["tokens"])
    return shared_client


COLUMNS: dict[str, tuple[object, str, str, tuple[int, ...], object]] = {
    "floats": ([0.5, 1.0, 2.0], "dense", "float32", (), [0.5, 1.0, 2.0]),
    "floats and ints": ([0, 0.5, 1], "dense", "float32", (), [0.0, 0.5, 1.0]),
    "ints": ((1, 2, 3), "dense", "int64", (), [1, 2, 3]),
    "bools": ([True, False, True], "dense", "bool", (), [True, False, True]),
    "NumPy scalars": ([np.float64(1), np.float64(2), np.float64(3)], "dense", "float64", (), [1.0, 2.0, 3.0]),
    "integers beyond int64": (np.array([1 << 63, 1, 0], np.uint64), "dense", "uint64", (), [1 << 63, 1, 0]),
    "0-d tensors": ([torch.tensor(1)] * 3, "dense", "int64", (), [1, 1, 1]),
    "an array": (GRID, "dense", "uint8", (2, 2), GRID.tolist()),
    "a read-only array": (np.broadcast_to(np.int16(7), (3, 2)), "dense", "int16", (2,), [[7, 7]] * 3),
    "an array of foreign byte order": (np.arange(3, dtype=">i4"), "dense", "int32", (), [0, 1, 2]),
    "tensors": ([torch.arange(2), torch.arange(0), torch.arange(1)], "jagged", "int64", (), [[0, 1], [], [0]]),
    "tensors of one length": ([torch.arange(2)] * 3, "jagged", "int64", (), [[0, 1]] * 3),
    "tensors of two dimensions": (
        [torch.ones(1, 2), torch.ones(2, 2), torch.ones(0, 2)], "jagged", "float32", (2,), [[[1, 1]], [[1, 1]] * 2, []],
    ),
    "arrays": ([np.ones(2, np.float16), np.ones(1, np.float16), np.ones(0, np.float16)], "jagged", "float16", (),
               [[1, 1], [1], []]),
    "reversed arrays": ([np.arange(2)[::-1], np.arange(1)[::-1], np.arange(0)[::-1]], "jagged", "int64", (),
                        [[1, 0], [0], []]),
    "lists": ([[1, 2], [], [3]], "jagged", "int64", (), [[1, 2], [], [3]]),
    "lists of one length": ([[1, 2], [3, 4], [5, 6]], "jagged", "int64", (), [[1, 2], [3, 4], [5, 6]]),
    "lists of floats and ints": ([[1, 0.5], [2], [3]], "jagged", "float32", (), [[1.0, 0.5], [2.0], [3.0]]),
    "lists of lists": ([[[1, 2], [3, 4]], [], [[5, 6]]], "jagged", "int64", (2,), [[[1, 2], [3, 4]], [], [[5, 6]]]),
    "text": (["a", "", "c"], "object", "", (), ["a", "", "c"]),
    "an array of text": (np.array(["a", "bc", "d"]), "object", "", (), ["a", "bc", "d"]),
    "dicts": ([{"a": 1}, {}, None], "object", "", (), [{"a": 1}, {}, None]),
    "lists of dicts": ([[{"role": "user"}], [], [{}]], "object", "", (), [[{"role": "user"}], [], [{}]]),
    "lists of text": ([["a"], [], ["b", "c"]], "object", "", (), [["a"], [], ["b", "c"]]),
    "tuples of numbers and text": ([(1, "a"), (2, None), ()], "object", "", (), [(1, "a"), (2, None), ()]),
    "an object array of numbers": (objects(1, 2, 3), "object", "", (), [1, 2, 3]),
    "an object array of lists": (objects([1], [2], [3]), "object", "", (), [[1], [2], [3]]),
    "an object array of arrays": (objects(np.arange(2), np.arange(1), torch.arange(2)), "object", "", (),
                                  [[0, 1], [0], [0, 1]]),
    "images of other widths": ([torch.ones(1, 2), np.ones((1, 3), np.float32), torch.ones(1, 2)], "object", "", (),
                               [[[1, 1]], [[1, 1, 1]], [[1, 1]]]),
    "arrays of text": ([np.array(["a", "b"]), np.array(["c"]), None], "object", "", (), [["a", "b"], ["c"], None]),
    "numbers beside a dict": ([3, (1, 2), {"a": b""}], "object", "", (), [3, (1, 2), {"a": b""}]),
    "text beside a NonTensorData": ([NonTensorData([1]), "a", 2], "object", "", (), [[1], "a", 2]),
    "an object array of an array and None": (objects(None, (1,), None), "object", "", (), [None, (1,), None]),
}  # fmt: skip
"""What is put; the kind, the element type and the shape of the field; the values of the rows."""


@pytest.mark.parametrize(("column", "kind", "dtype", "row_shape", "values"), COLUMNS.values(), ids=COLUMNS)
def test_a_column_is_put_as_what_it_plainly_is(
    client: DataPlaneClient, column: object, kind: str, dtype: str, row_shape: tuple[int, ...], values: object
) -> None:
    client.put_samples(IDS, "p", {"x": column})
    field = client.partition("p").fields[0]
    assert (field.kind, field.dtype or "", field.row_shape) == (kind, dtype, row_shape)
    assert rows_of(client, "x") == values


def rows_of(client: DataPlaneClient, field: str) -> list[object]:
    stored = client.get_samples(IDS, "p", [field]).get(field)
    rows = stored.unbind() if getattr(stored, "is_nested", False) else stored.tolist()
    return [row.tolist() if isinstance(row, (torch.Tensor, np.ndarray)) else row for row in rows]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_strided_nested_tensor_is_a_jagged_column(client: DataPlaneClient) -> None:
    client.put_samples(IDS, "p", {"x": nested_tensor([torch.arange(2), torch.arange(1), torch.arange(3)])})
    assert rows_of(client, "x") == [[0, 1], [0], [0, 1, 2]]


PLAIN: Mapping[str, object] = {"tokens": [[1, 2], [3], [4, 5, 6]], "x": [0.5, 1.0, 1.5], "note": ["a", "b", "c"]}


def in_group(client: DataPlaneClient, fields: Mapping[str, object]) -> None:
    with client.reserve_group("p", "g", IDS) as group:
        group.put(IDS, fields)


def in_parts(client: DataPlaneClient, fields: Mapping[str, object]) -> None:
    with client.reserve_group("p", "g", IDS) as group:
        for row, sample_id in enumerate(IDS):
            group.put([sample_id], {name: column[row : row + 1] for name, column in fields.items()})  # type: ignore[index]


def claimed(client: DataPlaneClient) -> Claim:
    client.put_samples(IDS, "p")
    return client.claim("p", "train", [], 3)


WAYS: dict[str, Callable[[DataPlaneClient, Mapping[str, object]], object]] = {
    "put_samples": lambda client, fields: client.put_samples(IDS, "p", fields),
    "group.put": in_group,
    "group.put of one row": in_parts,
    "claim.write": lambda client, fields: claimed(client).write(fields),
    "claim.commit": lambda client, fields: claimed(client).commit(fields),
    "write_columns": lambda client, fields: write_columns(client, claimed(client).meta, fields),
    "pack_jagged_fields": lambda client, fields: client.put_samples(
        IDS, "p", pack_jagged_fields(fields, lengths=[2, 1, 3], token_aligned_fields={"tokens"})
    ),
}


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
def test_lists_are_taken_by_every_call_that_puts(
    client: DataPlaneClient, put: Callable[[DataPlaneClient, Mapping[str, object]], object]
) -> None:
    put(client, PLAIN)
    assert {name: rows_of(client, name) for name in PLAIN} == PLAIN


HELD: dict[str, tuple[object, tuple[object, ...], tuple[str, str, tuple[int, ...]]]] = {
    "objects": ([[{"a": 1}]], ([], (), []), ("object", "", ())),
    "lists of boxes": ([[[1, 2, 3, 4]]], ([], [], []), ("jagged", "int64", (4,))),
    "arrays of one shape": (np.ones((1, 2, 3), np.float16), ([], [], []), ("jagged", "float16", (3,))),
}
"""What the field x holds; rows that are empty lists, as they come back; the field after their put."""


@pytest.mark.parametrize(("held", "rows", "field"), HELD.values(), ids=HELD)
@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
def test_empty_lists_are_what_the_field_holds(
    client: DataPlaneClient,
    put: Callable[[DataPlaneClient, Mapping[str, object]], object],
    held: object,
    rows: tuple[object, ...],
    field: tuple[str, str, tuple[int, ...]],
) -> None:
    client.put_samples(["z"], "p", {"x": held})
    client.clear_samples(["z"], "p")
    put(client, {**PLAIN, "x": rows})
    described = client.partition("p").fields[0]
    assert (described.kind, described.dtype, described.row_shape) == field
    assert (rows_of(client, "x"), rows_of(client, "tokens")) == (list(rows), PLAIN["tokens"])


def test_empty_lists_are_appended_and_shared_as_what_the_field_holds(client: DataPlaneClient) -> None:
    client.put_samples(["z"], "p", {"note": [["an image"]]})
    with client.reserve_group("p", "g", IDS) as group:
        group.put(IDS, {"tokens": [[1], [2], [3]]})
        group.append_tokens(IDS, {"tokens": [[], [], []]})
        group.put_shared({"note": [[]]})
    assert (rows_of(client, "tokens"), rows_of(client, "note")) == ([[1], [2], [3]], [[]] * 3)


def test_entries_without_numbers_are_counted_or_refused(client: DataPlaneClient) -> None:
    client.put_samples(["a"], "p", {"x": [torch.zeros(1, 0)], "tokens": [[1]]})
    client.put_samples(["b", "c"], "p", {"x": [[[], []], []]})
    assert rows_of(client, "x") == [[[]], [[], []], []]
    with pytest.raises(InvalidArgumentError, match=r"'tokens'.*sample 'b'.*no numbers"):
        client.put_samples(["a", "b"], "p", {"tokens": [[], [[]]]})


def test_a_group_shares_a_value_given_as_a_list(client: DataPlaneClient) -> None:
    with client.reserve_group("p", "g", IDS) as group:
        group.put(IDS, {"tokens": [[1]] * 3})
        group.put_shared({"x": [[1.5, 2.5]], "note": ["shared"]})
    assert (rows_of(client, "x"), rows_of(client, "note")) == ([[1.5, 2.5]] * 3, ["shared"] * 3)


@pytest.mark.parametrize("tokens", [[[1, 2, 0], [3, 0, 0], [4, 5, 6]], PLAIN["tokens"]], ids=["padded", "not padded"])
def test_a_first_write_takes_lists(client: DataPlaneClient, tokens: object) -> None:
    client.register_partition("p", [*PLAIN, "input_lengths", "sample_mask"], 3, ["train"], per_token_fields=["tokens"])
    batch = {**PLAIN, "tokens": tokens, "input_lengths": [2, 1, 3], "sample_mask": np.ones(3)}
    meta = kv_first_write(batch, sample_ids=IDS, dp_client=client, partition_id="p")
    assert (rows_of(client, "tokens"), meta.sequence_lengths) == (PLAIN["tokens"], [2, 1, 3])


def test_tokens_of_one_sample_without_a_row_dimension_are_refused_with_what_to_give(client: DataPlaneClient) -> None:
    hint = r"'tokens' has 5 rows, but the call names 1 sample; .* a list with one tensor, or shape \(1, 5\) and seq"
    with pytest.raises(ValueError, match=hint):
        client.put_samples(["a"], "p", {"tokens": torch.arange(5)})
    client.put_samples(["a"], "p", {"tokens": [torch.arange(5)]})
    client.put_samples(["b"], "p", {"tokens": torch.arange(5)[None]}, sequence_lengths=[5])
    assert [len(row) for row in client.get_samples(["a", "b"], "p", ["tokens"])["tokens"].unbind()] == [5, 5]


# -- the types of fields -----------------------------------------------------------------------------------------------


def test_a_field_has_the_type_that_was_declared_whatever_is_put_first(client: DataPlaneClient) -> None:
    dtypes: dict[str, str | torch.dtype] = {"r": "float32", "t": torch.int64, "meta": "object"}
    described = client.register_partition("typed", list(dtypes), 0, ["train"], dtypes=dtypes)
    assert described.dtypes == {"r": "float32", "t": "int64", "meta": "object"}
    for wrong, words in (({"r": [None]}, "object"), ({"r": np.array([0.5])}, "float64"), ({"meta": [1]}, "int64")):
        with pytest.raises(InvalidArgumentError, match=f"'typed', .*{words}"):
            client.put_samples(["a"], "typed", wrong)
    client.put_samples(["a"], "typed", {"r": [0.5], "t": [1], "meta": [None]})
    with pytest.raises(PreconditionError, match=r"'r' .*float32 .*float64"):
        client.register_partition("typed", ["r"], 0, ["train"], dtypes={"r": "float64"})
    client.extend_partition("typed", fields=["more"])
    assert client.register_partition("typed", ["r"], 0, ["train"], dtypes={"r": "float32"}).outcome == "unchanged"
    with pytest.raises(PreconditionError, match=r"'t'.*int32"):
        client.register_partition("typed", [*dtypes, "more"], 0, ["train"], dtypes={"t": "int32"}, replace=True)
    client.drop_partition("typed")


@pytest.mark.parametrize(
    ("dtypes", "words"),
    [
        ({"r": "float"}, "'r'.*'float'.*float32"),
        ({"q": "int8"}, "'q'"),
    ],
)
def test_an_unknown_type_or_field_is_refused(client: DataPlaneClient, dtypes: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        client.register_partition("typed", ["r"], 0, ["train"], dtypes=dtypes)


def test_the_type_of_a_field_that_was_not_declared_goes_with_its_last_value(client: DataPlaneClient) -> None:
    client.put_samples(["a"], "p", {"x": [None]})
    with pytest.raises(InvalidArgumentError, match=r"object .*1 rows"):
        client.put_samples(["b"], "p", {"x": [0.5]})
    client.clear_samples(None, "p")
    with client.reserve_group("p", "g") as group:
        group.put_shared({"x": ["text"]})
        with pytest.raises(InvalidArgumentError, match="object"):
            client.put_samples(["b"], "p", {"x": [0.5]})
        group.abort()
    client.put_samples(["b"], "p", {"x": [0.5]})
    assert client.get_samples(["b"], "p", ["x"])["x"].tolist() == [0.5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_integers_go_into_a_field_of_floats_that_holds_them_exactly(client: DataPlaneClient, dtype: str) -> None:
    names = {"r": dtype, "v": dtype, "t": dtype}
    client.register_partition("typed", [*names], 0, ["train"], dtypes=names, per_token_fields=["t"], replace=True)
    lowest = -(1 << 63)  # the padding, which these floats do not hold
    given = {"r": [0, 1, -3], "v": [[1, 2], [], [3]], "t": torch.tensor([[1, 2], [lowest, lowest], [3, lowest]])}
    client.put_samples(IDS, "typed", given, sequence_lengths=[2, 0, 1])
    got = client.get_samples(IDS, "typed", [*names])
    assert got["r"].tolist() == [0, 1, -3]
    assert [row.tolist() for name in ("v", "t") for row in got[name].unbind()] == [[1, 2], [], [3]] * 2
    assert str(got["r"].dtype) == str(got["v"].dtype) == f"torch.{dtype}"
    for inexact in ((1 << 53) + 1, lowest):
        with pytest.raises(InvalidArgumentError, match=f"int64.* {dtype}"):
            client.put_samples(["d"], "typed", {"r": [inexact]})
    client.drop_partition("typed")
