"""A batch in the training loop's hands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dataplane_client._requests import Fields
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import Claim
from dataplane_client.errors import PreconditionError
from dataplane_client.grants import ClaimedGroup
from dataplane_client.meta import KVBatchMeta


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """Rows of a task: their values, what they are, and the claim that holds them.

    data: the fields that the loader reads. meta: the rows. claim_id, fence: names this delivery, by text and by number.
    deliveries: how often each row has been delivered to the task, this time included. groups: with whole_groups, the
    groups in the order of their rows.

    A batch that was sent to another process has all of this, but can neither be committed nor released there.
    """

    data: BatchedDataDict[Any]
    meta: KVBatchMeta
    claim_id: str
    fence: int
    deliveries: list[int]
    groups: tuple[ClaimedGroup, ...]
    _claim: Claim | None = field(repr=False)

    @classmethod
    def of_claim(cls, data: BatchedDataDict[Any], claim: Claim) -> LoadedBatch:
        """What a claim has brought."""
        return cls(data, claim.meta, claim.claim_id, claim.fence, claim.deliveries, claim.groups, claim)

    def commit(self, fields: Fields | None = None, *, timeout_s: float | None = None) -> int:
        """Commit the rows now, instead of when the next batch is asked for; how many still existed.

        fields: columns to write in the same atomic step, one row for each row of the batch and in its order. Errors as
        Claim.commit.
        """
        return self._held().commit(fields, timeout_s=timeout_s)

    def release(self, *, delay_s: float = 0.0, reason: str = "", timeout_s: float | None = None) -> int:
        """Give the rows back, after delay_s seconds; how many still existed. With a reason the delivery counts as a
        failed one. Errors as Claim.release.
        """
        return self._held().release(delay_s=delay_s, reason=reason, timeout_s=timeout_s)

    @property
    def is_settled(self) -> bool:
        """Whether the claim has been ended here, one way or the other."""
        return self._held().state != "open"

    def _held(self) -> Claim:
        if self._claim is None:
            raise PreconditionError(
                f"the batch of claim {self.claim_id} was sent here from another process, which alone can end its claim"
            )
        return self._claim

    def __reduce__(self) -> tuple[object, ...]:
        held = (self.data, self.meta, self.claim_id, self.fence, self.deliveries, self.groups)
        return LoadedBatch, (*held, None)
