"""Rates rollouts: claims the samples of one prompt at a time, and adds their rewards and advantages."""

from __future__ import annotations

import argparse

import torch

from dataplane_client import ClaimTimeoutError, EndOfDataError, connect
from pipeline import PARTITION, register


def rate(tokens: torch.Tensor) -> float:
    """Your reward. This one is the share of even tokens."""
    return (tokens % 2 == 0).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="unix:///tmp/dataplane.sock")
    options = parser.parse_args()
    with connect(options.server, client_name="reward") as client:
        register(client)
        while True:
            try:
                claim = client.claim(PARTITION, "reward", ["input_ids"], batch_size=1, whole_groups=True)
            except ClaimTimeoutError:
                continue  # none came for a minute
            except EndOfDataError:
                break
            with claim:  # commits at its end, or gives the rows back if this fails
                batch = client.read_columns(claim.meta, ["input_ids"], layout="jagged")
                rewards = torch.tensor([rate(row) for row in batch["input_ids"].unbind()])
                claim.commit({"reward": rewards, "advantage": rewards - rewards.mean()})
            print(f"{claim.groups[0].group_id}: mean reward {rewards.mean().item():.2f}", flush=True)


if __name__ == "__main__":
    main()
