"""Weights for generators that never stop for them.

A generator's thread puts a request that names its endpoint and the version that it has. The trainer answers with a
stream of the newest weights as soon as these are newer, from a copy, so training goes on as well. The generator takes
them over between two batches. The first value of a stream is the version.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from async_flow import WEIGHTS
from dataplane_client import DataPlaneClient
from dataplane_client.client import Claim
from dataplane_client.errors import ClaimTimeoutError, NotFoundError, UnavailableError
from dataplane_client.records.meta import Tag
from trainer_adapter.refit import RefitInfo, load_weights, receive_streamed_weights, refit_info, stream_weights

_CPU = torch.device("cpu")
_VERSION = "version"
_BUFFER_BYTES = 64 << 20
_SEND_S = 20.0
_WAIT_S = 30.0


def _announced(weights: RefitInfo) -> RefitInfo:
    return {_VERSION: (torch.Size([1]), torch.int64), **weights}


class WeightSender:
    """The trainer's side. A generator that dies delays neither the trainer nor other generators."""

    def __init__(self, client: DataPlaneClient) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._newest: tuple[int, Mapping[str, Tensor]] = -1, {}
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Offer whole weights, which do not change afterwards. Does not block."""
        with self._changed:
            self._newest = version, weights
            self._changed.notify_all()

    def join(self) -> None:
        """Serve until the partition of requests is dropped."""
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                claim = self._client.claim(WEIGHTS, "send", [], 1, timeout_s=_WAIT_S)
            except (ClaimTimeoutError, UnavailableError):
                continue
            except NotFoundError:
                return
            threading.Thread(target=self._answer, args=(claim,), daemon=True).start()

    def _answer(self, claim: Claim) -> None:
        request = claim.tags[0]
        with self._changed:
            self._changed.wait_for(lambda: self._newest[0] > int(request["has"] or 0))
            version, weights = self._newest
        with contextlib.suppress(NotFoundError), claim:  # the partition is dropped at the end
            self._stream(str(request["endpoint"]), version, weights)

    def _stream(self, endpoint: str, version: int, weights: Mapping[str, Tensor]) -> None:
        sent = {_VERSION: torch.tensor([version]), **weights}
        info = _announced({name: (value.shape, value.dtype) for name, value in weights.items()})
        try:
            stream_weights(
                endpoint, info, iter(sent.items()), device=_CPU, buffer_size_bytes=_BUFFER_BYTES, timeout_s=_SEND_S
            )
        except (TimeoutError, RuntimeError) as error:  # it was killed, or asks again
            print(f"version {version} did not arrive: {error}", flush=True)  # in the log


class WeightInbox:
    """A generator's side: keeps the newest weights beside those of the model."""

    def __init__(self, client: DataPlaneClient, model: nn.Module, folder: Path) -> None:
        """folder: of the endpoint."""
        self._client = client
        self._model = model
        self._info = refit_info(model, torch.float32)
        self._endpoint = f"ipc://{folder}/weights{os.getpid()}.sock"
        self._changed = threading.Condition()
        self._newest: tuple[int, Mapping[str, Tensor]] = -1, {}
        self._loaded = -1
        threading.Thread(target=self._receive_all, name="weights", daemon=True).start()

    def load_newest(self, least: int = 0) -> int:
        """Bring the model up to date. Returns its version. Blocks until that is at least `least`."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest[0] >= least)
            version, weights = self._newest
        if version > self._loaded:
            load_weights(self._model, self._info, weights.items())
            self._loaded = version
        return version

    def _receive_all(self) -> None:
        with contextlib.suppress(NotFoundError):  # the partition is dropped at the end
            while True:
                has = self._newest[0]
                request: dict[str, Tag] = {"endpoint": self._endpoint, "has": has}
                with contextlib.suppress(TimeoutError, ConnectionError, ValueError):  # then it asks again
                    # Not one id for all: the request before may still be held, and is removed when its claim ends.
                    self._client.put_samples([f"{os.getpid()} has {has}"], WEIGHTS, tags=[request])
                    self._receive()

    def _receive(self) -> None:
        with receive_streamed_weights(self._endpoint, _announced(self._info), _CPU, _WAIT_S) as weights:
            version = int(next(weights)[1])
            received = version, {name: value.clone() for name, value in weights}
        with self._changed:
            self._newest = received
            self._changed.notify_all()
