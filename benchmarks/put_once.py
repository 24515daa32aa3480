"""Values that are kept once.

A put of 64 images of 1 MiB, and one of 512 values of 1 KiB: as any other, with `once` where no value is there yet, and
with `once` where every value is. The three follow each other in every round, and nothing else is resident. The last
figure is the memory of two epochs, kept once, as a part of what they would take.
"""

from __future__ import annotations

import torch

from dataplane_client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from report import Session, compare
from servers import server_process
from timing import Series, timed

TRANSPORTS: tuple[TransportChoice, ...] = ("shm", "grpc")


def measure(session: Session) -> None:
    with server_process("1GiB") as server:
        for transport in TRANSPORTS:
            with connect(server.unix, transport=transport) as client:
                client.register_partition("p", ["image"], 0, ["train"])
                for rows, size in ((64, 1 << 20), (512, 1 << 10)):
                    images = torch.randint(0, 256, (rows, size), dtype=torch.uint8)
                    *times, parts = zip(*(puts(client, images) for _ in range(session.rounds(15))), strict=True)
                    names = ("plain", "once, new", "once, known")
                    found = {name: {"put": Series(each)} for name, each in zip(names, times, strict=True)}
                    compare(session.console, f"{transport}, {rows} x {size >> 10} KiB; memory {min(parts):.2f}", found)


def puts(client: DataPlaneClient, images: torch.Tensor) -> tuple[float, float, float, float]:
    """Seconds of the three puts, and the part of the memory that two epochs take."""
    plain = put(client, images, 0, ())
    client.clear_samples(None, "p")
    new, known = (put(client, images, epoch, ("image",)) for epoch in range(2))
    part = client.partition("p").size_bytes / (2 * images.nbytes)
    client.clear_samples(None, "p")
    return plain, new, known, part


def put(client: DataPlaneClient, images: torch.Tensor, epoch: int, once: tuple[str, ...]) -> float:
    ids = [f"{epoch}-{row}" for row in range(len(images))]
    return timed(put=lambda: client.put_samples(ids, "p", {"image": images}, once=once))["put"]
