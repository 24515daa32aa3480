"""How long the processes of a run wait: for the driver, and for one another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dataplane_client import DataPlaneClient, FlowPolicy, connect
from dataplane_client.errors import EndOfDataError, NotFoundError
from dataplane_server.testing import running_server
from flow import while_driver_lives

_HANG_S = 100.0


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (lambda client: client.put_samples(["a"], "p", {"x": torch.zeros(1)}), None),
        (lambda client: client.close_partition("p"), EndOfDataError),
        (lambda client: client.drop_partition("p"), NotFoundError),
    ],
    ids=["rows come", "end of data", "the partition is dropped"],
)
def test_a_process_waits_for_rows_again_and_again_until_its_driver_lets_it_go_on(
    ends: Callable[[DataPlaneClient], object], error: type[Exception] | None
) -> None:
    repeated, tries = threading.Event(), []

    def claim() -> list[str]:
        tries.append(1)
        if len(tries) > 2:
            repeated.set()
        with client.claim("p", "train", ["x"], 1, timeout_s=0.05) as claim:
            return claim.meta.sample_ids

    with running_server() as address, connect(address) as client, ThreadPoolExecutor(1) as threads:
        client.register_partition("p", ["x"], 0, ["train"])
        waiting = threads.submit(while_driver_lives, claim)
        try:
            assert repeated.wait(_HANG_S)
        finally:
            ends(client)
        if error is None:
            assert waiting.result(_HANG_S) == ["a"]
        else:
            with pytest.raises(error):
                waiting.result(_HANG_S)


def test_a_process_waits_for_room_again_and_again() -> None:
    repeated, tries = threading.Event(), []

    def reserve() -> str:
        tries.append(1)
        if len(tries) > 2:
            repeated.set()
        with client.reserve_group("p", "g2", ["b"], timeout_s=0.05) as group:
            group.abort()
        return group.group_id

    with running_server() as address, connect(address) as client, ThreadPoolExecutor(1) as threads:
        client.register_partition("p", ["x"], 0, ["train"])
        client.set_policies("p", flow=FlowPolicy(max_rows=1))
        client.put_samples(["a"], "p", {"x": torch.zeros(1)})
        waiting = threads.submit(while_driver_lives, reserve)
        try:
            assert repeated.wait(_HANG_S)
        finally:
            client.clear_samples(["a"], "p")
        assert waiting.result(_HANG_S) == "g2"
