"""Processes on the nodes of a cluster, and outside: each runs clients of a campaign in threads."""

from __future__ import annotations

import threading
import time

import torch
from tests.integration.histories.recorder import Pulse, Recorder
from tests.integration.histories.settings import STOP_FILE, Settings
from tests.integration.histories.zygote import live

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError

_PING_S = 0.02
_PING = -4  # a slot


class Host:
    """An actor that runs clients of a campaign in threads, from `begin` on."""

    def begin(self, settings: str, name: str, slots: list[int], until: float) -> None:
        """Run the clients of these slots, and one that pings. name: what the names of their processes begin with."""
        chosen = Settings.of_json(settings)
        self._threads = {
            slot: threading.Thread(target=live, args=(chosen, slot, f"{name}-{slot}", until), daemon=True)
            for slot in slots
        }
        self._threads[_PING] = threading.Thread(target=ping, args=(chosen, f"{name}-ping", until), daemon=True)
        for thread in self._threads.values():
            thread.start()

    def wait(self, *, producers: bool = False) -> None:
        """Until its clients have ended, or those that end at a time."""
        for slot, thread in self._threads.items():
            if slot % 4 == 0 or not producers:
                thread.join()


def ping(settings: Settings, process: str, until: float) -> None:
    """Put, claim, read, commit and clear a row again and again, in a partition of its own. Every row that was put must
    come back once, with its value, and every commit must count.
    """
    record = Recorder(settings.folder, process)
    Pulse(record, settings.grace_s)
    options = settings.options(0, process)
    with connect(settings.address, **options) as client:
        client.register_partition(process, ["x"], 0, ["ping"])
        number = 0
        while time.monotonic() < until and not (settings.folder / STOP_FILE).exists():
            number += 1
            try:
                with record.call("ping"):
                    found = _ping(client, process, number)
            except DataPlaneError as error:
                record.note("complaint", text=f"ping {number}: {type(error).__name__}: {error}")
                continue
            if found != [[f"{number}"], [number], 1]:
                record.note("complaint", text=f"ping {number} came back as {found}")
            time.sleep(_PING_S)
        described = client.partition(process)
        counted = [described.rows_put_total, described.tasks[0].delivered_rows_total]
        if counted != [number, number]:
            record.note("complaint", text=f"{number} pings were put and delivered {counted} times")


def _ping(client: DataPlaneClient, partition: str, number: int) -> list[object]:
    client.put_samples([f"{number}"], partition, {"x": torch.tensor([number])})
    claim = client.claim(partition, "ping", ["x"], 1, timeout_s=200.0)
    value = client.get_data(claim.meta, ["x"])["x"].tolist()
    rows = claim.commit()
    client.clear_samples(claim.meta.sample_ids, partition)
    return [claim.meta.sample_ids, value, rows]
