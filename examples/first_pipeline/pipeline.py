"""What the three programs agree on: the partition, its fields and its tasks."""

from __future__ import annotations

from dataplane_client import DataPlaneClient

PARTITION = "rollouts"


def register(client: DataPlaneClient) -> None:
    """Register the partition. Every program does so at its start; all but the first change nothing."""
    client.register_partition(
        PARTITION,
        fields=["input_ids", "reward", "advantage"],
        num_samples=0,
        consumer_tasks=["reward", "train"],
        per_token_fields=["input_ids"],
        clear_when_consumed=True,
    )
