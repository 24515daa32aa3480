"""Round trips TensorDict -> columns -> TensorDict of dense and jagged fields, bit for bit.

`tests/integration/test_round_trip.py` has those of every element type, through a server.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, lazy_stack
from tests.tensors import jagged, raw, some
from torch.nested import nested_tensor_from_jagged, to_padded_tensor

from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.wire_columns import decode_columns, encode_columns
from dataplane_client.codec import WIRE_DTYPES

NAMES = [entry.name for entry in WIRE_DTYPES]


def received(columns: Sequence[WireColumn]) -> list[WireColumn]:
    """The columns as a transport hands them over: the same bytes in writable buffers of its own."""
    return [
        WireColumn(c.name, c.kind, c.dtype, c.row_shape, c.lengths, memoryview(bytearray(c.values))) for c in columns
    ]


def round_trip(td: TensorDict | Mapping[str, object], n_rows: int) -> TensorDict:
    return decode_columns(received(encode_columns(td)), n_rows)


def assert_same_rows(got: torch.Tensor, sent: torch.Tensor) -> None:
    assert got.dtype == sent.dtype
    assert [tuple(row.shape) for row in got.unbind()] == [tuple(row.shape) for row in sent.unbind()]
    assert [raw(row) for row in got.unbind()] == [raw(row) for row in sent.unbind()]


@given(
    lengths=st.lists(st.integers(0, 7), max_size=9),
    trailing=st.lists(st.integers(0, 3), max_size=3),
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 9),
)
def test_any_ragged_and_dense_shapes_come_back_bit_for_bit(
    lengths: Sequence[int], trailing: tuple[int, ...], name: str, seed: int
) -> None:
    n_rows = len(lengths)
    sent = {
        "j": jagged(some(name, sum(lengths), *trailing, seed=seed), lengths),
        "d": some(name, n_rows, *trailing, seed=seed),
    }
    got = round_trip(TensorDict(sent, [n_rows]), n_rows)
    assert_same_rows(got["j"], sent["j"])
    assert_same_rows(got["d"], sent["d"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.tensor([1 + 2j, 3 - 4j]).conj(), [1 - 2j, 3 + 4j]),
        (torch.tensor([1 + 2j, 3 - 4j]).conj().imag, [-2.0, 4.0]),
        (torch.tensor([1.5, 2.5], requires_grad=True), [1.5, 2.5]),
    ],
    ids=["conjugated", "negated", "requires grad"],
)
def test_pending_operations_and_gradients_are_resolved(values: torch.Tensor, expected: list[object]) -> None:
    got = round_trip({"d": values, "j": jagged(values, (2, 0))}, 2)
    assert got["d"].tolist() == expected
    assert got["j"].values().tolist() == expected
    assert not got["d"].requires_grad


@pytest.mark.parametrize(
    ("offsets", "lengths", "sent"),
    [([2, 3, 5], None, [2, 3, 4]), ([0, 3, 6, 10], [1, 3, 2], [0, 3, 4, 5, 6, 7])],
    ids=["a window on larger values", "holes between rows"],
)
def test_values_beside_the_rows_are_not_sent(offsets: list[int], lengths: list[int] | None, sent: list[int]) -> None:
    holes = None if lengths is None else torch.tensor(lengths)
    nested = nested_tensor_from_jagged(torch.arange(10), torch.tensor(offsets), holes, min_seqlen=1, max_seqlen=3)
    assert round_trip({"j": nested}, len(offsets) - 1)["j"].values().tolist() == sent


def test_rows_of_a_lazy_stack_may_differ_in_length() -> None:
    rows = [TensorDict({"tokens": torch.arange(size), "box": torch.ones(2)}, []) for size in (2, 3)]
    columns = {column.name: column for column in encode_columns(lazy_stack(rows))}
    assert {name: column.kind for name, column in columns.items()} == {"tokens": "jagged", "box": "dense"}
    tokens = decode_columns(received([columns["tokens"]]), 2)["tokens"]
    assert [row.tolist() for row in tokens.unbind()] == [[0, 1], [0, 1, 2]]


def test_contiguous_tensors_are_encoded_without_a_copy() -> None:
    dense, values = torch.arange(6.0).reshape(2, 3), torch.arange(5)
    columns = encode_columns(TensorDict({"d": dense, "j": jagged(values, (1, 4))}, [2]))
    addresses = [np.frombuffer(column.values, np.uint8).ctypes.data for column in columns]
    assert addresses == [dense.data_ptr(), values.data_ptr()]


def test_column_is_read_only_and_keeps_the_tensor_alive() -> None:
    columns = encode_columns({"d": torch.arange(100_000)})
    gc.collect()
    torch.full((100_000,), -1)
    assert columns[0].values.readonly
    assert np.array_equal(np.frombuffer(columns[0].values, np.int64), np.arange(100_000))


def test_decoded_tensors_live_in_the_buffer() -> None:
    buffer = bytearray(48)
    dense = WireColumn("d", "dense", "int64", (), None, memoryview(buffer)[:16])
    ragged = WireColumn("j", "jagged", "int64", (), np.array([1, 3]), memoryview(buffer)[16:])
    numpys = WireColumn("f", "dense", "float32", (2,), None, np.arange(4, dtype=np.float32).reshape(2, 2).data)
    td = decode_columns([dense, ragged, numpys], 2)
    assert td["f"].tolist() == [[0, 1], [2, 3]]
    td["d"][1] = 7
    td["j"].values()[3] = 9
    assert np.frombuffer(buffer, np.int64).tolist() == [0, 7, 0, 0, 0, 9]


@pytest.mark.parametrize(
    "values",
    [memoryview(np.arange(2).tobytes()), memoryview(bytearray(b"." + np.arange(2).tobytes()))[1:]],
    ids=["read-only", "misaligned"],
)
def test_buffer_torch_cannot_use_is_copied(values: memoryview) -> None:
    td = decode_columns([WireColumn("d", "dense", "int64", (), None, values)], 2)
    td["d"][0] = 5
    assert td["d"].tolist() == [5, 1]
    assert bytes(values) == np.arange(2).tobytes()


def test_jagged_fields_with_equal_lengths_can_be_combined() -> None:
    sent = {"a": jagged(torch.ones(3), (1, 2)), "b": jagged(torch.ones(3), (1, 2)), "c": jagged(torch.ones(3), (2, 1))}
    got = round_trip(sent, 2)
    assert got["a"].offsets() is got["b"].offsets()
    assert (got["a"] + got["b"]).values().tolist() == [2, 2, 2]
    assert got["c"].offsets().tolist() == [0, 2, 3]
    assert to_padded_tensor(got["a"], 0.0).shape == (2, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_tensors_are_sent_from_a_copy_on_the_host() -> None:
    offsets = torch.tensor([0, 1, 3], device="cuda")
    nested = nested_tensor_from_jagged(torch.arange(3).cuda(), offsets, min_seqlen=1, max_seqlen=2)
    got = round_trip({"d": torch.tensor([1.0, 2.0]).cuda(), "j": nested}, 2)
    assert got["d"].tolist() == [1, 2]
    assert [row.tolist() for row in got["j"].unbind()] == [[0], [1, 2]]
