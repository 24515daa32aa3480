"""A batch that is padded where it is needed equals one that was padded on the host.

White-box: no test machine need have an accelerator, and torch tells of copies only inside the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torch.nested import nested_tensor_from_jagged
from torch.utils._python_dispatch import TorchDispatchMode

from dataplane_client._memory.placement import ReadBuffers
from dataplane_client._memory.read_batches import DeviceBatch
from dataplane_client._values.columns_layout import ColumnLayout, Layout, join_values
from dataplane_client._values.wire_columns import encode_columns
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import connect
from dataplane_client.codec import materialize
from dataplane_client.errors import InternalError
from dataplane_client.options import TransportChoice
from dataplane_server.testing import running_server

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]
OFFSETS = torch.tensor([0, 2, 2, 5])
FIELDS = TensorDict(
    {
        "tokens": nested_tensor_from_jagged(torch.arange(5), offsets=OFFSETS, min_seqlen=0, max_seqlen=3),
        "logprobs": nested_tensor_from_jagged(torch.rand(5, 2), offsets=OFFSETS, min_seqlen=0, max_seqlen=3),
        "mask": nested_tensor_from_jagged(torch.ones(5, dtype=torch.bool), offsets=OFFSETS, min_seqlen=0, max_seqlen=3),
        "reward": torch.rand(3),
        "text": NonTensorStack("a", "b", "c"),
    },
    [3],
)
NAMES = ["tokens", "logprobs", "mask", "reward", "text"]


def batch(device: str, layout: Layout, pad_values: dict[str, float], pad_to_seqlen: int) -> BatchedDataDict[Any]:
    """The batch on a device, read from the bytes that a put of the fields sends."""
    columns, made = encode_columns(FIELDS), DeviceBatch(torch.device(device), layout, pad_values, pad_to_seqlen)
    buffers = ReadBuffers(columns, 3, made.destination)
    stream = buffers.stream()
    stream.add(0, memoryview(join_values(columns)))
    stream.finish()
    return made.of(buffers.columns, 3)


def assert_same(got: BatchedDataDict[Any], expected: BatchedDataDict[Any], device: str) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert got[name].tolist() == value.tolist()
            continue
        assert got[name].device.type == device
        rows = zip(got[name].unbind(), value.unbind(), strict=True)
        assert all(torch.equal(a.cpu(), b) for a, b in rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pad_to_seqlen", [0, 7])
@pytest.mark.parametrize("pad_values", [{}, {"tokens": 9, "mask": 1}], ids=["zeros", "values"])
def test_padding_on_a_device_gives_what_padding_on_the_host_gives(
    device: str, pad_to_seqlen: int, pad_values: dict[str, float]
) -> None:
    expected = materialize(FIELDS, "padded", pad_values, pad_to_seqlen)
    assert_same(batch(device, "padded", pad_values, pad_to_seqlen), expected, device)


@pytest.mark.parametrize("layout", ["padded", "jagged"])
def test_the_host_reads_nothing_back_from_the_device(layout: Layout) -> None:
    got = batch("meta", layout, {"tokens": 9}, 7)  # a meta tensor has no values
    for name, value in materialize(FIELDS, layout, {"tokens": 9}, 7).items():
        if isinstance(value, torch.Tensor) and not value.is_nested:
            assert (got[name].shape, got[name].dtype, got[name].device.type) == (value.shape, value.dtype, "meta")


def test_objects_that_cannot_be_decoded_are_an_error_of_the_server() -> None:
    made = DeviceBatch(torch.device("meta"), "padded", {}, 0)
    buffers = ReadBuffers([ColumnLayout("text", "object", "", (), np.array([1]))], 1, made.destination)
    buffers.copy_all(b"\xc1")
    with pytest.raises(InternalError, match="'text'"):
        made.of(buffers.columns, 1)


class CopiesToMeta(TorchDispatchMode):
    """Whether the host may go on at once, for each copy to the meta device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.go_on: list[bool] = []

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if call is torch.ops.aten._to_copy.default and given.get("device") == torch.device("meta"):
            self.go_on.append(bool(given.get("non_blocking")))
        return call(*args, **given)


@pytest.mark.parametrize("layout", ["padded", "jagged", "auto"])
def test_ragged_and_dense_fields_cross_in_a_copy_each_for_which_the_host_does_not_wait(layout: Layout) -> None:
    """A copy that blocks waits for all that is queued before it, pinned copies too."""
    with CopiesToMeta() as copies:
        batch("meta", layout, {"tokens": 9}, 7)
    assert copies.go_on == [True, True]


@pytest.mark.parametrize("device", DEVICES)
def test_jagged_fields_on_a_device_can_be_combined(device: str) -> None:
    got = batch(device, "jagged", {}, 0)
    assert_same(got, materialize(FIELDS, "jagged"), device)
    assert (got["tokens"] * got["mask"]).is_nested
    assert len({got[name].offsets().data_ptr() for name in ("tokens", "logprobs", "mask")}) == 1


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_batch_from_a_device_comes_back_on_it(transport: TransportChoice) -> None:
    with running_server() as address, connect(address, transport=transport) as client:
        client.register_partition("p", NAMES, 0, ["train"])
        meta = client.put_samples(
            ["a", "b", "c"], "p", {name: FIELDS[name] for name in NAMES} | {"reward": FIELDS["reward"].cuda()}
        )
        got = client.read_columns(meta, NAMES, device="cuda")
        torch.cuda.synchronize()
        assert_same(got, materialize(FIELDS, "padded"), "cuda")
