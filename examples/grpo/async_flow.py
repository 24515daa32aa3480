"""The partitions of the asynchronous loop, and the tasks that consume them.

    generators  --rollouts-->    trainer      task "train"    (whole groups, at most MAX_STALENESS versions old)
    generators  --weights-->     trainer      task "send"     (requests for weights; these travel beside the data plane)
    trainer     --steps-->       runner       task "report"
    generators  --rewards-->     trainer                      (the mean reward of each group)
    generators  --generators-->  runner                       (how each of them spent its time)

A rollout is removed by the server as soon as it is trained, and with its group as soon as it is too stale, or finished
with rewards that are all equal: such a group teaches nothing. Generators wait in the server while there are as many
rollouts before the trainer as it takes before the first of them is too stale.
"""

from __future__ import annotations

from dataplane_client import DataPlaneClient, TaskPolicy
from flow import PER_TOKEN_FIELDS, REPORT, ROLLOUT_FIELDS, ROLLOUTS, SAMPLE_FIELDS, STEPS
from settings import GrpoSettings

WEIGHTS, REWARDS, GENERATORS = "weights", "rewards", "generators"

MAX_STALENESS = 2
"""How many versions the weights may be ahead of those that sampled a rollout when its training begins."""
READY_FIELDS = (*SAMPLE_FIELDS, "generation_logprobs", "advantages")
"""Required to train; a generator writes all of them."""
LEARNING_FIELDS = (*READY_FIELDS, "prev_logprobs")
"""Read for the optimizer steps; the trainer has written the last one."""


def register(client: DataPlaneClient) -> None:
    """Create the partitions of a run."""
    fields = [*ROLLOUT_FIELDS, "advantages", "prev_logprobs"]
    client.register_partition(
        ROLLOUTS, fields, 0, ["train"], per_token_fields=PER_TOKEN_FIELDS, clear_when_consumed=True
    )
    settings = GrpoSettings()
    policy = TaskPolicy(
        MAX_STALENESS,
        "drop",
        order="oldest_version",
        where="std > 0",
        when_excluded="drop",
        rows_per_version=settings.prompts_per_step * settings.group_size,
    )
    client.set_policies(ROLLOUTS, {"train": policy})
    client.register_partition(WEIGHTS, ["endpoint"], 0, ["send"], clear_when_consumed=True)
    client.register_partition(STEPS, [REPORT], 0, ["report"])
    client.register_partition(REWARDS, ["mean"], 0, ["report"])
    client.register_partition(GENERATORS, ["spent"], 0, ["report"])
