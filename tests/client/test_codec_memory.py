"""Packing and padding of large fields, whose results lie in memory that was written before."""

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDict

from dataplane_client._values.warm_buffers import SMALLEST, warm_buffers
from dataplane_client.codec import materialize, pack_jagged_fields, to_nested_by_length

LENGTHS = torch.tensor([30_000, 1, 0, 29_999, 40_960, 17, 0])
WIDTH = 50_000
PADS = {"tokens": -7, "logprobs": -1.5, "mask": 1, "pairs": 0}


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    warm_buffers.drop_idle()
    yield
    warm_buffers.drop_idle()


def rectangles() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 2**40, (len(LENGTHS), WIDTH), generator=generator)
    return {
        "tokens": numbers,
        "logprobs": numbers.to(torch.float64),
        "mask": numbers % 2 == 0,
        "pairs": torch.stack([numbers, -numbers], dim=2).to(torch.complex64),
    }


def expected(name: str, padded: torch.Tensor) -> torch.Tensor:
    """Row by row, in memory of torch's own."""
    wide = torch.full((len(LENGTHS), WIDTH, *padded.shape[2:]), PADS[name], dtype=padded.dtype)
    for row, length in enumerate(LENGTHS.tolist()):
        wide[row, :length] = padded[row, :length]
    return wide


def test_every_byte_of_a_result_is_written_whatever_its_memory_held_before() -> None:
    fields = rectangles()
    for _ in range(2):
        packed = pack_jagged_fields(fields, lengths=LENGTHS, token_aligned_fields=set(fields))
        batch = materialize(packed, pad_value_dict=PADS, pad_to_seqlen=WIDTH)
        for name, padded in fields.items():
            assert torch.equal(batch[name], expected(name, padded)), name
            batch[name].view(torch.uint8).fill_(0xEE)
            packed[name].values().view(torch.uint8).fill_(0xDD)


def test_a_large_batch_that_is_gone_lends_its_memory_to_the_next() -> None:
    nested = to_nested_by_length(rectangles()["tokens"], LENGTHS)
    batch = materialize(TensorDict({"tokens": nested}, [7]))
    assert batch["tokens"].nbytes >= SMALLEST
    address = batch["tokens"].data_ptr()
    row = batch["tokens"][3]
    del batch
    assert materialize(TensorDict({"tokens": nested}, [7]))["tokens"].data_ptr() != address
    del row
    assert materialize(TensorDict({"tokens": nested}, [7]))["tokens"].data_ptr() == address
