"""The first put of a rollout batch: what is stored ragged, what the receipt says, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dataplane_client.columns_layout import WireColumn, join_values
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.first_write import PAD_TARGET_KEY, FirstWrite
from dataplane_client.meta import KVBatchMeta
from dataplane_client.wire_columns import decode_columns, encode_columns

IDS = ["a", "b", "c"]


def batch(width: int = 4, **more: object) -> dict[str, object]:
    """Three rows of 2, 4 and 3 tokens."""
    return {
        "input_ids": torch.arange(3 * width).reshape(3, width),
        "input_lengths": torch.tensor([2, 4, 3]),
        "sample_mask": torch.ones(3),
        **more,
    }


def first_write(columns: dict[str, object], pad_to_multiple: int = 1) -> FirstWrite:
    return FirstWrite(columns, IDS, None, pad_to_multiple)


def stored(write: FirstWrite) -> TensorDict:
    """What a reader gets of the fields."""
    columns = [
        WireColumn(c.name, c.kind, c.dtype, c.row_shape, c.lengths, memoryview(bytearray(join_values([c]))))
        for c in encode_columns(write.fields)
    ]
    return decode_columns(columns, len(IDS))


def test_tensors_as_wide_as_the_longest_row_are_stored_by_their_lengths() -> None:
    packed = stored(first_write(batch()))
    assert [row.tolist() for row in packed["input_ids"].unbind()] == [[0, 1], [4, 5, 6, 7], [8, 9, 10]]
    assert not packed["sample_mask"].is_nested


def test_tensors_padded_to_the_multiple_are_stored_by_their_lengths() -> None:
    write = first_write(batch(8), 8)
    assert [row.shape[0] for row in stored(write)["input_ids"].unbind()] == [2, 4, 3]
    assert write.pad_target == 8


def test_tensors_of_another_width_are_stored_as_they_are() -> None:
    packed = stored(first_write(batch(embedding=torch.zeros(3, 6), pair=torch.zeros(3, 2))))
    assert packed["embedding"].shape == (3, 6)
    assert packed["pair"].shape == (3, 2)


def test_objects_stay_objects() -> None:
    names = np.array(["x", "y", "z"], object)
    assert stored(first_write(batch(name=names)))["name"] == ["x", "y", "z"]


@pytest.mark.parametrize(("multiple", "target"), [(1, 4), (3, 6), (4, 4), (64, 64)])
def test_the_pad_target_is_the_longest_row_rounded_up(multiple: int, target: int) -> None:
    assert first_write(batch(), multiple).pad_target == target


def test_the_receipt_names_task_pad_target_and_the_callers_info() -> None:
    put = KVBatchMeta("p", None, IDS, fields=["input_ids"], sequence_lengths=[2, 4, 3])
    receipt = first_write(batch()).receipt(put, "prev_lp", {"step": 7, PAD_TARGET_KEY: 0})
    assert (receipt.task_name, receipt.sample_ids) == ("prev_lp", IDS)
    assert receipt.extra_info == {"step": 7, PAD_TARGET_KEY: 4}
    assert put.task_name is None


@pytest.mark.parametrize("missing", ["sample_mask", "input_lengths"])
def test_a_batch_without_a_needed_field_is_refused_by_its_name(missing: str) -> None:
    columns = batch()
    del columns[missing]
    with pytest.raises(InvalidArgumentError, match=f"must hold the tensor '{missing}'"):
        first_write(columns)


def test_lengths_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"input_lengths must have shape \(N,\)"):
        first_write(batch(input_lengths=torch.ones(3, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_lengths_are_not_rounded(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"input_lengths must be integers, got {dtype}"):
        first_write(batch(input_lengths=torch.ones(3, dtype=dtype)))


@pytest.mark.parametrize(
    ("ids", "tags", "message"),
    [(IDS[:2], None, "2 sample_ids must match batch size 3"), (IDS, [{}] * 4, "4 tags must match batch size 3")],
    ids=["ids", "tags"],
)
def test_another_number_of_ids_or_tags_is_refused(
    ids: list[str], tags: list[dict[str, int]] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FirstWrite(batch(), ids, tags, 1)


@pytest.mark.parametrize("multiple", [0, -8])
def test_a_multiple_below_one_is_refused(multiple: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"pad_to_multiple must be at least 1, got {multiple}"):
        first_write(batch(), multiple)
