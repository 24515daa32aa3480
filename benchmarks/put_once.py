"""Measure values that are kept once: `python benchmarks/put_once.py`.

A put of 64 images of 1 MiB, and one of 512 values of 1 KiB: as any other, with `once` where no value is there yet, and
with `once` where every value is. Milliseconds, medians; the three follow each other in every round, and nothing else is
resident. The last figure is the memory of two epochs, kept once, as a part of what they would take.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from dataplane_client import DataPlaneClient, connect
from servers import server_process

ROUNDS = 15


def main() -> None:
    with server_process("1GiB") as server:
        for transport in ("shm", "grpc"):
            with connect(server.unix, transport=transport) as client:
                client.register_partition("p", ["image"], 0, ["train"])
                for rows, size in ((64, 1 << 20), (512, 1 << 10)):
                    images = torch.randint(0, 256, (rows, size), dtype=torch.uint8)
                    plain, new, known, part = zip(*(measure(client, images) for _ in range(ROUNDS)), strict=True)
                    print(
                        f"{transport:<4} {rows:>3} x {size >> 10:>4} KiB: put {median(plain):6.2f}, once "
                        f"{median(new):6.2f} (new) {median(known):6.2f} (known), memory {median(part):.2f}"
                    )


def measure(client: DataPlaneClient, images: torch.Tensor) -> tuple[float, float, float, float]:
    """Milliseconds of the three puts, and the part of the memory that two epochs take."""
    plain = put(client, images, 0, ())
    client.clear_samples(None, "p")
    new, known = (put(client, images, epoch, ("image",)) for epoch in range(2))
    part = client.partition("p").size_bytes / (2 * images.nbytes)
    client.clear_samples(None, "p")
    return plain, new, known, part


def put(client: DataPlaneClient, images: torch.Tensor, epoch: int, once: tuple[str, ...]) -> float:
    ids = [f"{epoch}-{row}" for row in range(len(images))]
    began = time.perf_counter()
    client.put_samples(ids, "p", {"image": images}, once=once)
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
