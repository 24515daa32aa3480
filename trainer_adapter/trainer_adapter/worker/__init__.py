"""One rank of a policy: a model divided over ranks, what is asked of it, and its training."""

from trainer_adapter.worker._policy_worker import AutomodelPolicyWorker

__all__ = ["AutomodelPolicyWorker"]
