"""Trains on rated rollouts: each step claims the samples of two prompts."""

from __future__ import annotations

import argparse
import time

from dataplane_client import ClaimTimeoutError, EndOfDataError, connect
from pipeline import PARTITION, register

FIELDS = ["input_ids", "reward", "advantage"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="unix:///tmp/dataplane.sock")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a step")
    parser.add_argument(
        "--grace", type=float, default=10.0, help="seconds after which a dead trainer's rows come again"
    )
    options = parser.parse_args()
    with connect(options.server, client_name="trainer", session_grace_s=options.grace) as client:
        register(client)
        while True:
            try:
                claim = client.claim(PARTITION, "train", FIELDS, batch_size=2, min_size=1, whole_groups=True)
            except ClaimTimeoutError:
                continue  # none came for a minute
            except EndOfDataError:
                break
            with claim:
                batch = client.read_columns(claim.meta, FIELDS)  # right-padded to the longest row
                names = ", ".join(group.group_id for group in claim.groups)
                print(f"{names}: {tuple(batch['input_ids'].shape)}", flush=True)
                time.sleep(options.seconds)  # your forward and backward pass, and the optimizer's step
            print("  committed", flush=True)


if __name__ == "__main__":
    main()
