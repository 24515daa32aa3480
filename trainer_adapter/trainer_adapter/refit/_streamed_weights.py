"""The engine's side of a weight stream: checks of the messages, and answers; see _weight_stream.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dataplane_client.codec import torch_dtype
from trainer_adapter.refit._channels import AnswerChannel
from trainer_adapter.refit._generation_parameters import RefitInfo
from trainer_adapter.refit._shared_buffers import open_buffer
from trainer_adapter.refit._weight_groups import Group, Place


@contextmanager
def receive_streamed_weights(
    endpoint: str, info: RefitInfo, device: torch.device, timeout_s: float = 120.0
) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Yield names and weights as the trainer sends them, on `device`: each of info exactly once.

        with receive_streamed_weights(endpoint, info, device) as weights:
            load_weights(model, info, weights)

    Entering waits for the trainer's first message. A weight is in the trainer's memory and is valid until the next one
    is requested: copy it to keep it. An exception that leaves the block is sent to the trainer, which raises it as
    RuntimeError; leaving the block before the last weight counts as one. After any error the engine's weights are
    partly new.

    Raises TimeoutError if the trainer sends nothing for timeout_s, ValueError if it sends weights that differ from
    info, ConnectionError if it reports a failure or its memory is not reachable.
    """
    channel = AnswerChannel(endpoint, timeout_s)
    try:
        stream = _IncomingStream(channel, channel.receive(), info, device)
        yield stream.weights()
        stream.finish()
    except BaseException as error:
        if channel.has_unanswered:
            channel.answer(f"{type(error).__name__}: {error}")
        raise
    finally:
        channel.close()


class _IncomingStream:
    def __init__(self, channel: AnswerChannel, first: dict[str, Any], info: RefitInfo, device: torch.device) -> None:
        self._channel, self._message, self._device = channel, first, device
        self._stream, self._index = first.get("stream"), 0
        self._missing = dict(info)
        self._known_buffers: dict[int, Tensor] = {}
        self._complete = False

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        self._check_message()
        while not self._message.get("complete"):
            yield from self._read_group()
            self._accept()
            self._message = self._channel.receive()
            self._index += 1
            self._check_message()
        if self._missing:
            raise ValueError(f"the trainer did not send {_join_names(self._missing)}")
        self._complete = True

    def finish(self) -> None:
        """Close the trainer's memory and answer the last message, after all weights are in place."""
        if not self._complete:
            raise ValueError("the engine stopped before the last weight")
        self._known_buffers.clear()  # copies from it ended before the answer to the last group
        self._accept()

    def _accept(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # copies must finish before the trainer writes there again
        self._channel.answer(None)

    def _check_message(self) -> None:
        if "failed" in self._message:
            raise ConnectionError(f"the trainer failed: {self._message['failed']}")
        found = (self._message.get("stream"), self._message.get("index"))
        if found != (self._stream, self._index):
            raise ValueError(
                f"expected message {self._index} of this stream of weights, got message {found[1]} of another one"
            )

    def _read_group(self) -> Iterator[tuple[str, Tensor]]:
        group = Group(tuple(self._check_place(weight) for weight in self._message["weights"]))
        used = self._buffer()[: self._message["used_bytes"]]
        for place in group.places:
            if not 0 <= place.start <= place.end <= used.numel():
                raise ValueError(f"weight {place.name!r} is outside the {used.numel()} bytes used")
        return group.weights_in(used)

    def _check_place(self, weight: list[Any]) -> Place:
        name, dtype, shape, start = weight
        place = Place(name, torch.Size(shape), torch_dtype(dtype), start)
        expected = self._missing.pop(name, None)
        if expected is None:
            raise ValueError(f"weight {name!r} was not announced, or was sent before")
        if expected != (place.shape, place.dtype):
            announced = f"{tuple(expected[0])} {expected[1]}"
            raise ValueError(f"weight {name!r} is {tuple(place.shape)} {place.dtype}, but {announced} was announced")
        return place

    def _buffer(self) -> Tensor:
        """Open the message's buffer; each of the two is opened once."""
        turn = self._index % 2
        if turn not in self._known_buffers:
            self._known_buffers[turn] = open_buffer(self._message["handle"], self._device)
        return self._known_buffers[turn]


def _join_names(names: dict[str, Any]) -> str:
    shown = ", ".join(list(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
