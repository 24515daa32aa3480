"""Weights from rank 0 of the trainers to engines on any devices: broadcasts of groups of concatenated weights.

Trainers have the first ranks, engines the following ones. A transfer has three parts, and every rank takes part in all:

    agree       rank 0 sends the size of groups and a digest of names, shapes and dtypes; all ranks compare, and make
                their buffers
    groups      two buffers in turn, so that one is filled or read while the other is in transit
    verdict     whether every rank succeeded

A rank that fails in between (gathering fails, an engine refuses a weight) continues to take part with the old contents
of its buffers, and reports the failure in the verdict. So no rank is left waiting, the group stays in step for the next
transfer, and no rank keeps weights that failed elsewhere. Trainer ranks other than 0 iterate over the weights too,
because gathering sharded weights is a collective, and drop them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import torch
from torch import Tensor

from dataplane_client.codec import dtype_name
from trainer_adapter.refit._deadline_group import DeadlineGroup
from trainer_adapter.refit._generation_parameters import RefitInfo
from trainer_adapter.refit._weight_groups import (
    Place,
    default_buffer_bytes,
    expect_end,
    fill,
    largest_group,
    plan_groups,
    skip,
)

_SIZE_BYTES = 8


class WeightCollective:
    """One rank of the group. All ranks call together, any number of times: trainers `broadcast`, engines `receive`."""

    def __init__(
        self,
        ip: str,
        port: int,
        world_size: int,
        rank: int,
        device: torch.device,
        timeout_s: float = 300.0,
        group_bytes: int | None = None,
    ) -> None:
        """Returns when all world_size ranks have joined.

        timeout_s: for the ranks to join, and for each step of a transfer.
        group_bytes: size of each of the two buffers, which are as large as the largest weight at least; rank 0's value
        is used (None: 2 % of the GPU's memory, at most 5 GB; on the CPU 256 MiB).

        Raises TimeoutError if ranks do not join in time.
        """
        self._limit = default_buffer_bytes(device) if group_bytes is None else group_bytes
        self._group = DeadlineGroup(ip, port, world_size, rank, device, timeout_s)

    def broadcast(self, info: RefitInfo, parameters: Iterator[tuple[str, Tensor]]) -> None:
        """Send all weights; returns when every engine has loaded them. A collective call of all trainer ranks.

        Raises ValueError if parameters or rank 0's info differ from this rank's info, any error of parameters,
        RuntimeError if another rank failed, ConnectionError if one is gone or late. After a ConnectionError the
        collective is closed: make a new one. An interrupt closes it, too.
        """
        with self._in_step():
            transfer = self._agree(info)
            error: Exception | None = None
            for index, group in enumerate(transfer.groups):
                buffer = transfer.free_buffer(index)
                if self._group.rank > 0 or error is not None:
                    failed = _catch_error(skip, group.places, parameters)
                else:
                    failed = _catch_error(fill, buffer, group, parameters)
                error = error or failed
                transfer.start(index, buffer)
            transfer.finish()
            self._conclude(error or _catch_error(expect_end, parameters))

    @contextmanager
    def receive(self, info: RefitInfo) -> Iterator[Iterator[tuple[str, Tensor]]]:
        """Yield names and weights, in the order of info, on this rank's device.

            with collective.receive(info) as weights:
                load_weights(model, info, weights)

        A weight is valid until the next one is requested: copy it to keep it. An exception that leaves the block ends
        the transfer with an error on all ranks; leaving the block before the last weight counts as one. After any error
        the engine's weights are partly new.

        Raises ValueError if rank 0's info differs, RuntimeError if another rank failed, ConnectionError if one is gone
        or late. After a ConnectionError the collective is closed: make a new one. An interrupt closes it, too.
        """
        with self._in_step():
            incoming = self._agree(info).incoming()
            error: Exception | None = None
            try:
                # A separate generator: it may end early, but `incoming` goes on for the other ranks.
                yield ((place.name, place.weight_in(buffer)) for place, buffer in incoming)
            except Exception as failed:  # noqa: BLE001  # raised below, after the verdict
                error = failed
            try:
                left = sum(1 for _ in incoming)
            except ConnectionError as lost:
                raise lost from error
            if left and error is None:
                error = ValueError(f"the engine stopped before the last {left} weights")
            self._conclude(error)

    def close(self) -> None:
        """Close the group; can be called again."""
        self._group.close()

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """A transfer. If it is interrupted, the group is closed: this rank would be out of step with the others."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.close()
            raise

    def _agree(self, info: RefitInfo) -> _Transfer:
        digest = _digest(info)
        own = list(self._limit.to_bytes(_SIZE_BYTES, "little") + digest)
        first = torch.tensor(own, dtype=torch.uint8, device=self._group.device)
        self._group.wait(self._group.start_broadcast(first))
        sent = bytes(first.tolist())
        try:
            if sent[_SIZE_BYTES:] != digest:
                raise ValueError("the weights of rank 0 have other names, shapes or dtypes than this rank's")
            transfer = _Transfer(self._group, info, int.from_bytes(sent[:_SIZE_BYTES], "little"))
        except Exception as error:
            self._conclude(error)
            raise
        self._conclude(None)
        return transfer

    def _conclude(self, error: Exception | None) -> None:
        if self._group.closed and error is not None:
            raise error
        another_failed = self._group.any_failed(error is not None)
        if error is not None:
            raise error
        if another_failed:
            raise RuntimeError("another rank of the group for weights failed; see that rank's error")


class _Transfer:
    """The groups of one transfer and their two buffers."""

    def __init__(self, group: DeadlineGroup, info: RefitInfo, limit_bytes: int) -> None:
        self._group = group
        self.groups = plan_groups(info, limit_bytes, alignment=1)
        size = largest_group(self.groups)
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=group.device) for _ in self.groups[:2]]
        self._pending: dict[int, tuple[int, Tensor]] = {}

    def free_buffer(self, index: int) -> Tensor:
        """Return a buffer of the size of group `index`; waits until its previous contents are no longer needed."""
        self._finish_turn(index % 2)
        return self._buffers[index % 2][: self.groups[index].size_bytes]

    def start(self, index: int, buffer: Tensor) -> None:
        self._pending[index % 2] = (self._group.start_broadcast(buffer), buffer)

    def finish(self) -> None:
        for turn in list(self._pending):
            self._finish_turn(turn)

    def incoming(self) -> Iterator[tuple[Place, Tensor]]:
        """The place of each weight, and the buffer that it is in."""
        self._ask_for(0)
        for index, group in enumerate(self.groups):
            self._ask_for(index + 1)
            buffer = self._pending[index % 2][1]
            self._finish_turn(index % 2)
            yield from ((place, buffer) for place in group.places)

    def _ask_for(self, index: int) -> None:
        if index < len(self.groups):
            self.start(index, self.free_buffer(index))

    def _finish_turn(self, turn: int) -> None:
        if turn in self._pending:
            self._group.wait(self._pending.pop(turn)[0])


def _digest(info: RefitInfo) -> bytes:
    described = [[name, dtype_name(dtype), list(shape)] for name, (shape, dtype) in info.items()]
    return hashlib.sha256(msgpack.packb(described)).digest()


def _catch_error(step: Any, *arguments: Any) -> Exception | None:
    try:
        step(*arguments)
    except Exception as error:  # noqa: BLE001  # raised after the verdict
        return error
    return None
