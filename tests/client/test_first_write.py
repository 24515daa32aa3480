"""The first put of a rollout batch: what is stored ragged, what the receipt says, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dataplane_client._requests.first_write import PAD_TARGET_KEY, FirstWrite
from dataplane_client._values.columns_layout import WireColumn, join_values
from dataplane_client._values.wire_columns import decode_columns, encode_columns
from dataplane_client.errors import DataPlaneError, UnsupportedTypeError
from dataplane_client.meta import KVBatchMeta

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


def test_tensors_as_wide_as_the_longest_row_or_the_multiple_are_stored_by_their_lengths() -> None:
    names = np.array(["x", "y", "z"], object)
    packed = stored(first_write(batch(name=names, embedding=torch.zeros(3, 6), pair=torch.zeros(3, 2))))
    assert [row.tolist() for row in packed["input_ids"].unbind()] == [[0, 1], [4, 5, 6, 7], [8, 9, 10]]
    assert [row.shape[0] for row in stored(first_write(batch(8), 8))["input_ids"].unbind()] == [2, 4, 3]
    assert [packed[name].shape for name in ("sample_mask", "embedding", "pair")] == [(3,), (3, 6), (3, 2)]
    assert packed["name"] == ["x", "y", "z"]


@pytest.mark.parametrize(("multiple", "target"), [(1, 4), (3, 6), (4, 4), (64, 64)])
def test_the_pad_target_is_the_longest_row_rounded_up(multiple: int, target: int) -> None:
    assert first_write(batch(), multiple).pad_target == target


def test_the_receipt_names_task_pad_target_and_the_callers_info() -> None:
    put = KVBatchMeta("p", None, IDS, fields=["input_ids"], sequence_lengths=[2, 4, 3])
    receipt = first_write(batch()).receipt(put, "prev_lp", {"step": 7, PAD_TARGET_KEY: 0})
    assert (receipt.task_name, receipt.sample_ids) == ("prev_lp", IDS)
    assert receipt.extra_info == {"step": 7, PAD_TARGET_KEY: 4}
    assert put.task_name is None


def without(name: str) -> dict[str, object]:
    return {key: column for key, column in batch().items() if key != name}


def lengths(dtype: torch.dtype) -> dict[str, object]:
    return batch(input_lengths=torch.ones(3, dtype=dtype))


NO_INTS, SHAPE = "input_lengths .* torch", r"input_lengths .*\(N,\)"
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no mask": (lambda: first_write(without("sample_mask")), ValueError, "'sample_mask'"),
    "no lengths": (lambda: first_write(without("input_lengths")), ValueError, "'input_lengths'"),
    "2-d lengths": (lambda: first_write(batch(input_lengths=torch.ones(3, 1))), ValueError, SHAPE),
    "float lengths": (lambda: first_write(lengths(torch.float32)), UnsupportedTypeError, f"{NO_INTS}.float32"),
    "bool lengths": (lambda: first_write(lengths(torch.bool)), UnsupportedTypeError, f"{NO_INTS}.bool"),
    "ids": (lambda: FirstWrite(batch(), IDS[:2], None, 1), ValueError, "2 sample_ids .* 3"),
    "tags": (lambda: FirstWrite(batch(), IDS, [{}] * 4, 1), ValueError, "4 tags .* 3"),
    "multiple 0": (lambda: first_write(batch(), 0), ValueError, "pad_to_multiple .* 0"),
    "multiple -8": (lambda: first_write(batch(), -8), ValueError, "pad_to_multiple .* -8"),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        call()
    assert isinstance(refused.value, DataPlaneError)
