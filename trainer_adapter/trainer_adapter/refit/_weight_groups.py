"""Weights concatenated in byte buffers: their division into groups, and the place of each.

Sender and receivers compute the same plan from the same names, shapes and dtypes. Weights keep their order. A group
ends when the next weight does not fit; a weight larger than the limit is a group by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from trainer_adapter.pad_target import rounded_up
from trainer_adapter.refit._generation_parameters import RefitInfo

MEMORY_SHARE = 0.02
"""Share of a GPU's memory for the buffers."""
MOST_BYTES = 5_000_000_000
CPU_BYTES = 256 * 1024**2

BufferT = TypeVar("BufferT")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a weight in the buffer of its group; start and end in bytes."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start: int

    @property
    def end(self) -> int:
        return self.start + self.shape.numel() * self.dtype.itemsize

    def weight_in(self, buffer: Tensor) -> Tensor:
        """A view of the buffer (uint8), or a copy if the start is not aligned for a view."""
        part = buffer[self.start : self.end]
        if self.start % self.dtype.itemsize:
            part = part.clone()
        return part.view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class Group:
    """Weights that are sent together, in order."""

    places: tuple[Place, ...]

    @property
    def size_bytes(self) -> int:
        return self.places[-1].end

    def weights_in(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        return ((place.name, place.weight_in(buffer)) for place in self.places)


def default_buffer_bytes(device: torch.device) -> int:
    """2 % of a GPU's memory and at most 5 GB, or 256 MiB on the CPU."""
    if device.type != "cuda":
        return CPU_BYTES
    return min(int(torch.cuda.get_device_properties(device).total_memory * MEMORY_SHARE), MOST_BYTES)


def plan_groups(info: RefitInfo, limit_bytes: int, alignment: int) -> list[Group]:
    """Divide into groups of at most limit_bytes (except single larger weights); weights start at multiples of
    alignment.
    """
    groups: list[Group] = []
    places: list[Place] = []
    for name, (shape, dtype) in info.items():
        end = places[-1].end if places else 0
        place = Place(name, shape, dtype, rounded_up(end, alignment))
        if places and place.end > limit_bytes:
            groups.append(Group(tuple(places)))
            places, place = [], Place(name, shape, dtype, 0)
        places.append(place)
    return [*groups, Group(tuple(places))] if places else groups


def fill(buffer: Tensor, group: Group, parameters: Iterator[tuple[str, Tensor]]) -> None:
    """Copy the group's weights, the next ones of parameters, to their places.

    Raises ValueError if the next parameters are not the planned ones. As many are taken then, too, because other ranks
    may gather them with this one.
    """
    places = iter(group.places)
    try:
        for place in places:
            item = next(parameters, None)
            expected = (place.name, place.shape, place.dtype)
            found = None if item is None else (item[0], item[1].shape, item[1].dtype)
            if item is None or found != expected:
                raise ValueError(f"the next weight is {_describe(found)}, but {_describe(expected)} was announced")
            buffer[place.start : place.end].copy_(item[1].reshape(-1).view(torch.uint8))
    except Exception:
        skip(places, parameters)
        raise


def skip(places: Iterable[Place], parameters: Iterator[tuple[str, Tensor]]) -> None:
    """Take the weights of these places from parameters, so that they are gathered, and drop them."""
    for _ in places:
        next(parameters, None)


def expect_end(parameters: Iterator[tuple[str, Tensor]]) -> None:
    surplus = next(parameters, None)
    if surplus is not None:
        raise ValueError(f"weight {surplus[0]!r} is sent but was not announced")


def _describe(weight: tuple[str, torch.Size, torch.dtype] | None) -> str:
    return "missing" if weight is None else f"{weight[0]!r} {tuple(weight[1])} {weight[2]}"


class AlternateBuffers(Generic[BufferT]):
    """Two buffers used in turn, so that one is filled while the other is sent or read.

    A buffer is made when it is first needed, and kept for later transfers.
    """

    def __init__(self, make: Callable[[int], BufferT]) -> None:
        self._make = make
        self._made: dict[int, tuple[int, BufferT]] = {}

    def of(self, index: int, size_bytes: int) -> BufferT:
        """The buffer of group `index`, of at least size_bytes. Its old contents are those of group `index` - 2 or an
        earlier one.
        """
        turn = index % 2
        if turn not in self._made or self._made[turn][0] < size_bytes:
            self._made.pop(turn, None)  # its memory is free before the next one is made
            self._made[turn] = (size_bytes, self._make(size_bytes))
        return self._made[turn][1]


def largest_group(groups: list[Group]) -> int:
    """Bytes of the largest group; 0 without any."""
    return max((group.size_bytes for group in groups), default=0)
