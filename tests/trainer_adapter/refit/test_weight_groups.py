"""Which weights share a buffer, and the place of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from trainer_adapter.refit._weight_groups import AlternateBuffers, Place, fill, plan_groups

SIZES = [3, 100, 5000, 0, 7, 512, 1, 2000, 2000, 30]
INFO = {f"w{index}": (torch.Size([size]), torch.bfloat16) for index, size in enumerate(SIZES)}


def test_groups_are_as_full_as_order_alignment_and_limit_allow() -> None:
    for limit, alignment in itertools.product([0, 1, 1000, 4608, 100_000], [1, 512]):
        groups = plan_groups(INFO, limit, alignment)
        assert [place.name for group in groups for place in group.places] == list(INFO)
        for group in groups:
            assert group.size_bytes <= limit or len(group.places) == 1
            end = 0
            for place in group.places:
                assert place.start == -(-end // alignment) * alignment
                end = place.start + 2 * int(place.shape[0])
                assert place.end == end
        for group, after in itertools.pairwise(groups):
            padded = -(-group.size_bytes // alignment) * alignment
            assert padded + after.places[0].end > limit


def test_weights_come_out_of_a_buffer_as_they_went_in() -> None:
    dtypes, shapes = [torch.bfloat16, torch.float64, torch.bool], [(), (3, 2), (0, 4)]
    for start, dtype, shape in itertools.product([0, 1, 2, 7], dtypes, shapes):
        place = Place("w", torch.Size(shape), dtype, start)
        weight = (torch.arange(place.shape.numel()).reshape(shape) % 2).to(dtype)
        buffer = torch.full((place.end + 3,), 99, dtype=torch.uint8)
        group = plan_groups({"w": (place.shape, dtype)}, 0, 1)[0]
        fill(buffer[start:], group, iter([("w", weight)]))
        assert torch.equal(place.weight_in(buffer), weight), place
        assert buffer[place.end :].tolist() == [99] * 3, place


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (None, r"is missing, but 'w0' \(3,\) torch.bfloat16 was announced"),
        (("w1", torch.zeros(3, dtype=torch.bfloat16)), "next weight is 'w1'"),
        (("w0", torch.zeros(4, dtype=torch.bfloat16)), r"next weight is 'w0' \(4,\)"),
        (("w0", torch.zeros(3)), "next weight is 'w0' .* torch.float32"),
    ],
)
def test_a_weight_that_was_not_announced_so_is_refused(item: tuple[str, Tensor] | None, text: str) -> None:
    """The rest of its group is taken, too."""
    given = [item, ("w1", torch.zeros(100)), ("w2", torch.zeros(5000))] if item else []
    parameters: Iterator[tuple[str, Tensor]] = iter(given)
    with pytest.raises(ValueError, match=text):
        fill(torch.zeros(10_000, dtype=torch.uint8), plan_groups(INFO, 1000, 1)[0], parameters)
    assert [name for name, _ in parameters] == ["w2"] * bool(item)


def test_two_buffers_serve_in_turn_and_are_made_again_only_if_they_are_too_small() -> None:
    made: list[int] = []

    def make(size_bytes: int) -> list[int]:
        made.append(size_bytes)
        return [size_bytes]

    buffers = AlternateBuffers(make)
    given = [buffers.of(index, 10) for index in range(5)]
    assert given[0] is given[2] is given[4] is not given[1] is given[3]
    assert [buffers.of(0, 7), buffers.of(1, 20), buffers.of(1, 20)] == [[10], [20], [20]]
    assert made == [10, 10, 20]
