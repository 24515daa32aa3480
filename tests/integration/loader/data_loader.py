"""A torch DataLoader over a loader, in a process that has no gRPC of its own.

`python data_loader.py ADDRESS WORKERS BATCH_SIZE PREFETCH_FACTOR [--last-worker-first]`. Prints, as JSON, the loaded
rows, the sum of their numbers, and the error of a commit in this process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from torch.utils.data import DataLoader

from dataplane_client.client import connect
from dataplane_client.errors import PreconditionError
from dataplane_client.loader import ClaimLoader


def main(arguments: argparse.Namespace) -> None:
    """Load everything."""
    address = arguments.address

    def wait_for_last_worker(worker_id: int) -> None:
        """Make all workers but the last wait until no row is left to claim."""
        if worker_id + 1 < arguments.workers:
            with connect(address) as client:
                while client.partition("p").task("train").untaken_rows:
                    time.sleep(0.01)

    loader = ClaimLoader(address, "p", "train", ["tokens", "number", "text"], arguments.batch_size, idle_timeout_s=20.0)
    sample_ids: list[str] = []
    total, refusal = 0, ""
    for batch in DataLoader(
        loader,
        batch_size=None,
        num_workers=arguments.workers,
        prefetch_factor=arguments.prefetch_factor,
        multiprocessing_context="fork",
        worker_init_fn=wait_for_last_worker if arguments.last_worker_first else None,
    ):
        sample_ids += batch.meta.sample_ids
        total += int(batch.data["number"].sum())
        try:
            batch.commit()
        except PreconditionError as error:
            refusal = str(error)
    sys.stdout.write(json.dumps([sample_ids, total, refusal]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("workers", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("prefetch_factor", type=int)
    parser.add_argument("--last-worker-first", action="store_true")
    main(parser.parse_args())
