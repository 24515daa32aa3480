"""What the client's container does with the server beside it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from tests.integration.sidecar.containers import ADDRESS

from dataplane_client.client import connect
from dataplane_client.options import TransportChoice

SIZE = 1 << 20


@dataclass(frozen=True)
class Work:
    """How a client's work went: by which way, whether all values were right, and what it logged."""

    transport: TransportChoice
    right: bool
    log: list[str] = field(default_factory=list, compare=False)


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def work(partition: str, transport: TransportChoice = "auto", connect_timeout_s: float = 20.0) -> Work:
    """Put rows, claim, read and commit them."""
    log, logger = _Lines(), logging.getLogger("dataplane_client")
    logger.setLevel(logging.INFO)
    logger.addHandler(log)
    sent = torch.randint(0, 256, (2, SIZE), dtype=torch.uint8)
    with connect(ADDRESS, timeout_s=200.0, connect_timeout_s=connect_timeout_s, transport=transport) as client:
        client.register_partition(partition, ["x", "y"], 2, ["train"])
        client.put_samples(["a", "b"], partition, {"x": sent})
        with client.claim(partition, "train", ["x"], batch_size=2) as claim:
            got = client.read_columns(claim.meta, ["x"])["x"]
            claim.commit({"y": sent.flip(1)})
        written = client.get_samples(["a", "b"], partition, ["y"])["y"]
        consumed = client.partition(partition).tasks[0].consumed_rows
        right = torch.equal(got, sent) and torch.equal(written, sent.flip(1)) and consumed == 2
        return Work(client.transport, right=right, log=log.lines)
