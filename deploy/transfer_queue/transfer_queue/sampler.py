"""The samplers, where TransferQueue has them."""

from dataplane_transfer_queue import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)

__all__ = ["BaseSampler", "GRPOGroupNSampler", "RankAwareSampler", "SeqlenBalancedSampler", "SequentialSampler"]
