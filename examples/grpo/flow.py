"""The partitions of the loop, their fields, and the tasks that consume them.

    controller      --rollouts-->  generators    task "generate"     (rows with a prompt; they write the responses)
    rollouts        -->            controller    task "advantages"   (writes advantages back)
    rollouts        -->            trainer       task "prev_lp"      (its workers write prev_logprobs back)
    rollouts        -->            trainer       task "train"
    controller      --warmup-->    trainer       task "train"
    controller      --steps-->     trainer       task "train"
    trainer         --steps-->     controller    task "report"

A stage waits only for the fields that it needs: its claim returns once they are produced. A generator writes responses
with the commit of its claim, in one step. So whatever is killed or restored, a rollout is there once or not yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from dataplane_client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, PartitionFullError

T = TypeVar("T")

ROLLOUTS, WARMUP, STEPS = "rollouts", "warmup", "steps"

SAMPLE_FIELDS = ("input_ids", "token_mask", "input_lengths", "sample_mask")
"""Fields of every sample to train on."""
PROMPT_FIELDS = ("prompt_ids", "answer")
"""Fields that the rollouts of a prompt share, as the controller puts them."""
ROLLOUT_FIELDS = (*SAMPLE_FIELDS, "generation_logprobs", "reward", "response")
"""Fields of a rollout that its generator writes."""
PREV_LP_FIELDS = (*SAMPLE_FIELDS, "advantages")
"""Required to recompute log-probabilities; a rollout without advantages was dropped."""
TRAIN_FIELDS = (*PREV_LP_FIELDS, "prev_logprobs")
"""Required for a training step."""
PER_TOKEN_FIELDS = ("input_ids", "token_mask", "generation_logprobs", "advantages", "prev_logprobs")

PROGRESS = "progress"
"""Field of a step's order: how far the run has come. A snapshot that is taken during the step has it."""
REPORT = "report"
"""Field in which the trainer reports the results of a step."""


def while_driver_lives(wait: Callable[[], T]) -> T:
    """The result of a call that waits for rows or for room. When it times out it is repeated, however long others take:
    the driver ends the wait, since it closes or drops the partition, or dies and takes this process with it.
    """
    while True:
        with contextlib.suppress(ClaimTimeoutError, PartitionFullError):
            return wait()


def register(client: DataPlaneClient) -> None:
    """Create the partitions of a run."""
    client.register_partition(
        ROLLOUTS,
        [*PROMPT_FIELDS, *ROLLOUT_FIELDS, "advantages", "prev_logprobs"],
        0,
        ["generate", "advantages", "prev_lp", "train"],
        per_token_fields=PER_TOKEN_FIELDS,
    )
    client.register_partition(WARMUP, SAMPLE_FIELDS, 0, ["train"], per_token_fields=("input_ids", "token_mask"))
    client.register_partition(STEPS, [PROGRESS, REPORT], 0, ["train", "report"])
