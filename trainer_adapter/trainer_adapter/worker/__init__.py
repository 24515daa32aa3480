"""AutomodelPolicyWorker: one rank of a policy, with inference, training, checkpoints and weights for engines."""

from trainer_adapter.worker._policy_worker import AutomodelPolicyWorker

__all__ = ["AutomodelPolicyWorker"]
