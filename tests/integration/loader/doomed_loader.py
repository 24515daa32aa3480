"""Loads one batch and holds it until the process is killed: `python doomed_loader.py ADDRESS`.

Prints the batch's sample ids as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

from dataplane_client.loader import ClaimLoader


def main(address: str) -> None:
    """Take one batch and hold it."""
    iterator = iter(ClaimLoader(address, "p", "train", ["number"], 4, client_options={"session_grace_s": 1.0}))
    batch = next(iterator)
    sys.stdout.write(json.dumps(batch.meta.sample_ids) + "\n")
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
