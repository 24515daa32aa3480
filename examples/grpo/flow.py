"""What flows through the data plane: the partitions of the loop, their fields, and the tasks that consume them.

    controller      --prompts-->   generators    task "generate"
    generators      --rollouts-->  controller    task "advantages"   (writes advantages back)
    rollouts        -->            trainers      task "prev_lp"      (write prev_logprobs back)
    rollouts        -->            trainers      task "train"
    controller      --warmup-->    trainers      task "train"
    controller      --steps-->     trainers      tasks "rank0", "rank1", ... (each sees every step)
    trainers        --steps-->     controller    task "report"       (complete once every rank has reported)

A stage waits for nothing but the fields that it needs: a claim returns when they are there.
"""

from __future__ import annotations

from dataplane_client import DataPlaneClient

PROMPTS, ROLLOUTS, WARMUP, STEPS = "prompts", "rollouts", "warmup", "steps"

SAMPLE_FIELDS = ("input_ids", "token_mask", "input_lengths", "sample_mask")
"""Of every sample that is trained on."""
ROLLOUT_FIELDS = (*SAMPLE_FIELDS, "generation_logprobs", "reward", "response")
"""Of a rollout when its generator puts it."""
PREV_LP_FIELDS = (*SAMPLE_FIELDS, "advantages")
"""What recomputing the log-probabilities waits for: a rollout without advantages was dropped."""
TRAIN_FIELDS = (*PREV_LP_FIELDS, "prev_logprobs")
"""What a training step waits for."""
PER_TOKEN_FIELDS = ("input_ids", "token_mask", "generation_logprobs", "advantages", "prev_logprobs")


def report_field(rank: int) -> str:
    """Where a rank tells the controller what a step did."""
    return f"report_{rank}"


def register(client: DataPlaneClient, ranks: int) -> None:
    """Create the partitions of a run with `ranks` trainer ranks."""
    client.register_partition(PROMPTS, ["prompt_ids", "answer"], 0, ["generate"])
    client.register_partition(
        ROLLOUTS,
        [*ROLLOUT_FIELDS, "advantages", "prev_logprobs"],
        0,
        ["advantages", "prev_lp", "train"],
        per_token_fields=PER_TOKEN_FIELDS,
    )
    client.register_partition(WARMUP, SAMPLE_FIELDS, 0, ["train"], per_token_fields=("input_ids", "token_mask"))
    reports = [report_field(rank) for rank in range(ranks)]
    client.register_partition(STEPS, reports, 0, [*(f"rank{rank}" for rank in range(ranks)), "report"])
