"""Puts rollouts: for each prompt, a group of samples of different lengths."""

from __future__ import annotations

import argparse
import random

import torch

from dataplane_client import connect
from pipeline import PARTITION, register


def generate(prompt: int, sample: int) -> torch.Tensor:
    """Your inference engine. This one returns 3 to 12 tokens."""
    numbers = random.Random(f"{prompt} {sample}")
    return torch.tensor([numbers.randrange(100) for _ in range(numbers.randint(3, 12))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="unix:///tmp/dataplane.sock")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4, help="samples of each prompt")
    options = parser.parse_args()
    with connect(options.server, client_name="producer") as client:
        register(client)
        for prompt in range(options.prompts):
            ids = [f"{prompt}-{sample}" for sample in range(options.samples)]
            with client.reserve_group(PARTITION, f"prompt-{prompt}", ids, weight_version=0) as group:
                for sample, sample_id in enumerate(ids):  # each as soon as it is generated
                    group.put([sample_id], {"input_ids": [generate(prompt, sample)]})
            print(f"prompt {prompt}: {len(ids)} samples", flush=True)
        client.close_partition(PARTITION)  # the end of the data: no row will come any more


if __name__ == "__main__":
    main()
