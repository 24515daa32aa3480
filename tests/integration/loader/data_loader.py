"""A torch DataLoader over a loader, in a process that has no gRPC of its own.

`python data_loader.py ADDRESS WORKERS BATCH_SIZE PREFETCH_FACTOR [--last-worker-first] [--kill-worker]`. Prints, as
JSON, the loaded rows, the sum of their numbers, and the error of a commit in this process, or of the killed worker.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable

from torch.utils.data import DataLoader

from dataplane_client.client import connect
from dataplane_client.errors import PreconditionError
from dataplane_client.loader import ClaimLoader, LoadedBatch


class Consumer:
    """Takes batches, and records what was loaded."""

    def __init__(self, kills_worker: bool) -> None:
        self.sample_ids: list[str] = []
        self.total = 0
        self.error = ""
        self._kills_worker = kills_worker

    def consume(self, batches: Iterable[LoadedBatch]) -> None:
        """Take all batches. With kills_worker, kill a worker at the third one, which ends the DataLoader."""
        for number, batch in enumerate(batches):
            self.sample_ids += batch.meta.sample_ids
            self.total += int(batch.data["number"].sum())
            if self._kills_worker and number == 2:
                os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
                time.sleep(60)  # the DataLoader's handler of SIGCHLD raises here
            try:
                batch.commit()
            except PreconditionError as error:
                self.error = str(error)


def main(arguments: argparse.Namespace) -> None:
    """Load everything; after the death of a worker, load the rest in a plain loop."""
    address = arguments.address

    def wait_for_last_worker(worker_id: int) -> None:
        """Make all workers but the last wait until no row is left to claim."""
        if worker_id + 1 < arguments.workers:
            with connect(address) as client:
                while client.partition("p").task("train").untaken_rows:
                    time.sleep(0.01)

    options = {"session_grace_s": 10.0}  # how long rows of a killed worker are missing; others live on a busy machine
    fields = ["tokens", "number", "text"]
    loader = ClaimLoader(
        address, "p", "train", fields, arguments.batch_size, idle_timeout_s=200.0, client_options=options
    )
    batches = DataLoader(
        loader,
        batch_size=None,
        num_workers=arguments.workers,
        prefetch_factor=arguments.prefetch_factor,
        multiprocessing_context="fork",
        worker_init_fn=wait_for_last_worker if arguments.last_worker_first else None,
    )
    consumer = Consumer(arguments.kill_worker)
    try:
        consumer.consume(batches)
    except RuntimeError as error:
        consumer.error = str(error)
        rest = Consumer(kills_worker=False)
        rest.consume(loader)
        consumer.sample_ids += rest.sample_ids
    sys.stdout.write(json.dumps([consumer.sample_ids, consumer.total, consumer.error]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("workers", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("prefetch_factor", type=int)
    parser.add_argument("--last-worker-first", action="store_true")
    parser.add_argument("--kill-worker", action="store_true")
    main(parser.parse_args())
