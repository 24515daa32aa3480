"""TRL on the data plane: rollouts from any number of producer processes and hosts.

**AsyncGRPOTrainer.** A DataPlaneRolloutWorker is its `rollout_worker`. Producers call `put_rollouts`. A trainer that is
killed at any moment resumes from its last checkpoint and trains on every sample exactly once.

**GRPOTrainer.** A RolloutFunc is its `rollout_func`. Generators call `answer_prompts` in a loop.

TRL itself is never imported. Written for TRL 1.16.
"""

from __future__ import annotations

from dataplane_trl._rollout_func import RolloutFunc, answer_prompts, register_prompts
from dataplane_trl._rollouts import RolloutSample, add_rollouts, put_rollouts, register_rollouts
from dataplane_trl._worker import DataPlaneRolloutWorker

__all__ = [
    "DataPlaneRolloutWorker",
    "RolloutFunc",
    "RolloutSample",
    "add_rollouts",
    "answer_prompts",
    "put_rollouts",
    "register_prompts",
    "register_rollouts",
]
