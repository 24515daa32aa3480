"""A worker process of a loader: claims and materializes ahead, and hands over.

A claim is the worker's until the loader says that it has taken it over. What has not been taken when the loader closes
the connection, or dies, is given back as if it had never been delivered. What a worker that is killed holds goes to
others when its session's grace is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import asdict

import msgpack
import torch

from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.loader import _parcel, _wire
from dataplane_client.loader._feed import RowFeed
from dataplane_client.loader._giving_back import give_back
from dataplane_client.loader._settings import LoaderSettings


class Worker:
    """The work of one process, until the loader wants no more."""

    def __init__(self, loader: socket.socket, client: DataPlaneClient, settings: LoaderSettings) -> None:
        self._loader = loader
        self._client = client
        self._settings = settings
        self._permits = 0
        self._held: dict[str, Claim] = {}  # handed over, and not yet taken
        self._is_unwanted = False

    def work(self) -> None:
        """Returns when there are no more rows, or nobody wants them; raises what a claim or read raises."""
        feed = RowFeed(self._client, self._settings, waits_for_others=True)
        try:
            while self._has_permit():
                claim = feed.next(self._has_no_loader)
                if claim is None:
                    break
                self._held[claim.claim_id] = claim
                self._hand_over(claim, feed)
            if not self._is_unwanted:
                _wire.send(self._loader, _wire.END)
        finally:
            give_back(self._held.values())

    def _has_permit(self) -> bool:
        """Wait for a permit and take it; False when the loader wants no more."""
        while not self._permits and not self._is_unwanted:
            self._hear(0)
        self._permits -= 1
        return not self._has_no_loader()

    def _has_no_loader(self) -> bool:
        """Read what the loader has said; whether it wants no more."""
        with contextlib.suppress(BlockingIOError):
            while not self._is_unwanted:
                self._hear(socket.MSG_DONTWAIT)
        return self._is_unwanted

    def _hear(self, flags: int) -> None:
        message = _wire.receive(self._loader, flags)
        if message is None:
            self._is_unwanted = True
        elif message[0] == _wire.PERMIT:
            self._permits += msgpack.unpackb(message[1])
        else:
            self._held.pop(message[1].decode(), None)

    def _hand_over(self, claim: Claim, feed: RowFeed) -> None:
        try:
            batch = feed.read(claim, "cpu")
            groups = [asdict(group) for group in claim.groups]
            head = {**asdict(claim.meta), "claim_id": claim.claim_id, "deliveries": claim.deliveries, "groups": groups}
            fd = _parcel.pack(head, batch)
        except Exception as error:
            give_back([claim], type(error).__name__)
            raise
        try:
            _wire.send(self._loader, _wire.BATCH, fd=fd)
        finally:
            os.close(fd)


def run(fd: int) -> None:
    """The life of a worker whose loader is at the other end of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to all processes of the terminal; the loader's end is ours
    torch.set_num_threads(1)
    with socket.socket(fileno=fd) as loader, contextlib.suppress(BrokenPipeError):
        _wire.send(loader, _wire.HELLO, msgpack.packb(os.getpid()))
        message = _wire.receive(loader)
        if message is None:
            return
        try:
            settings = LoaderSettings.of_message(msgpack.unpackb(message[1]))
            with connect(settings.address, **settings.client_options) as client:
                Worker(loader, client, settings).work()
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001  # it is raised again where the batches are wanted
            _wire.send(loader, _wire.FAILED, _wire.error_message(error))
