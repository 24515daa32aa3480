"""The partitions of the loop, their fields, and the tasks that consume them.

    controller      --prompts-->   generators    task "generate"
    generators      --rollouts-->  controller    task "advantages"   (writes advantages back)
    rollouts        -->            trainer       task "prev_lp"      (its workers write prev_logprobs back)
    rollouts        -->            trainer       task "train"
    controller      --warmup-->    trainer       task "train"
    controller      --steps-->     trainer       task "train"
    trainer         --steps-->     controller    task "report"

A stage waits only for the fields that it needs: its claim returns once they are produced.
"""

from __future__ import annotations

from dataplane_client import DataPlaneClient

PROMPTS, ROLLOUTS, WARMUP, STEPS = "prompts", "rollouts", "warmup", "steps"

SAMPLE_FIELDS = ("input_ids", "token_mask", "input_lengths", "sample_mask")
"""Fields of every sample to train on."""
ROLLOUT_FIELDS = (*SAMPLE_FIELDS, "generation_logprobs", "reward", "response")
"""Fields of a rollout as its generator puts it."""
PREV_LP_FIELDS = (*SAMPLE_FIELDS, "advantages")
"""Required to recompute log-probabilities; a rollout without advantages was dropped."""
TRAIN_FIELDS = (*PREV_LP_FIELDS, "prev_logprobs")
"""Required for a training step."""
PER_TOKEN_FIELDS = ("input_ids", "token_mask", "generation_logprobs", "advantages", "prev_logprobs")


REPORT = "report"
"""Field in which the trainer reports the results of a step."""


def register(client: DataPlaneClient) -> None:
    """Create the partitions of a run."""
    client.register_partition(PROMPTS, ["prompt_ids", "answer"], 0, ["generate"])
    client.register_partition(
        ROLLOUTS,
        [*ROLLOUT_FIELDS, "advantages", "prev_logprobs"],
        0,
        ["advantages", "prev_lp", "train"],
        per_token_fields=PER_TOKEN_FIELDS,
    )
    client.register_partition(WARMUP, SAMPLE_FIELDS, 0, ["train"], per_token_fields=("input_ids", "token_mask"))
    client.register_partition(STEPS, [REPORT], 0, ["train", "report"])
