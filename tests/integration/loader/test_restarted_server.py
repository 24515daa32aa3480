"""Loops that wait for rows while their server is away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError, UnavailableError
from dataplane_client.loader import ClaimIterator, ClaimLoader, LoadedBatch
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

AWAY_S = 1.5
"""Longer than a loader's claims wait."""


class Place:
    """A server that can be stopped, and begun again with the same rows."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/a.sock"
        limits = Limits(memory_bytes=64 << 20)
        self._config = ServerConfig((self.address,), limits=limits, data_dir=folder / "data")
        self._server: ServerThread | None = None
        self.begin()

    def begin(self) -> None:
        self._server = ServerThread(self._config)

    def end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop(0.0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()


@pytest.fixture
def client(place: Place) -> Iterator[DataPlaneClient]:
    with connect(place.address, timeout_s=200.0) as client:
        client.register_partition("p", ["x"], 2, ["train"])
        client.put_samples(["a"], "p", {"x": [1]})
        yield client


def next_when_reached(batches: ClaimIterator) -> LoadedBatch:
    """The next batch. A loop may take longer than AWAY_S until it has reached the server, and pause before it tries to
    reach it again.
    """
    while True:
        with contextlib.suppress(ClaimTimeoutError, UnavailableError):
            return next(batches)


def test_a_loop_that_waits_for_rows_goes_on_when_the_server_has_started_again(
    place: Place, client: DataPlaneClient
) -> None:
    with ClaimLoader(place.address, "p", "train", ["x"], 1) as loader, ThreadPoolExecutor(1) as pool:
        batches = iter(loader)
        assert next(batches).meta.sample_ids == ["a"]
        waiting = pool.submit(next, batches)
        time.sleep(0.2)
        place.end()
        time.sleep(AWAY_S)
        place.begin()
        client.put_samples(["b"], "p", {"x": [2]})
        assert waiting.result(300).meta.sample_ids == ["b"]
        assert list(batches) == []
    assert client.check_consumption_status("p", ["train"])


def test_a_loop_is_told_that_the_server_stays_away_and_can_ask_again(place: Place, client: DataPlaneClient) -> None:
    with ClaimLoader(place.address, "p", "train", ["x"], 1, idle_timeout_s=AWAY_S) as loader:
        batches = iter(loader)
        assert next_when_reached(batches).meta.sample_ids == ["a"]
        with pytest.raises(ClaimTimeoutError):
            next(batches)
        place.end()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="no socket file"):
                next(batches)
            assert AWAY_S <= time.monotonic() - began < AWAY_S + 60.0
        place.begin()
        client.put_samples(["b"], "p", {"x": [2]})
        assert next_when_reached(batches).meta.sample_ids == ["b"]


def test_a_commit_that_was_not_answered_is_made_by_the_next_step(place: Place, client: DataPlaneClient) -> None:
    client.put_samples(["b"], "p", {"x": [2]})
    options = {"timeout_s": 5.0, "session_grace_s": 200.0}
    with ClaimLoader(place.address, "p", "train", ["x"], 1, client_options=options) as loader:
        batches = iter(loader)
        assert next(batches).meta.sample_ids == ["a"]
        eventually(lambda: " 1 batches prefetched" in repr(batches))
        place.end()
        with pytest.raises(UnavailableError):
            next(batches)
        place.begin()
        assert next_when_reached(batches).meta.sample_ids == ["b"]
        assert client.partition("p").task("train").consumed_rows == 1
    assert client.check_consumption_status("p", ["train"])
