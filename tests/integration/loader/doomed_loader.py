"""Loads until it is killed: `python doomed_loader.py ADDRESS NUM_WORKERS`. Prints the pids of its workers, and the rows
that it has at hand, as JSON in one line.
"""

from __future__ import annotations

import json
import sys
import time

from dataplane_client.loader import ClaimLoader


def main(address: str, num_workers: int) -> None:
    """Take one batch and hold it."""
    options = {"session_grace_s": 1.0}
    rows = iter(ClaimLoader(address, "p", "train", ["number"], 4, num_workers=num_workers, client_options=options))
    batch = next(rows)
    while len(rows.worker_pids) < num_workers:
        batch.commit()
        batch = next(rows)
    sys.stdout.write(json.dumps([rows.worker_pids, batch.meta.sample_ids]) + "\n")
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
