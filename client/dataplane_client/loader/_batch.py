"""One batch that a loader delivers to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dataplane_client._values.codec import Fields
from dataplane_client._verbs._sync.claim import Claim
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.errors import PreconditionError
from dataplane_client.records.grants import ClaimedGroup
from dataplane_client.records.meta import KVBatchMeta


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """Rows of a task: their values, their meta, and the claim that holds them.

    data: the values of the loader's fields. meta: the rows. claim_id, fence: name this delivery, as text and as a
    number. deliveries: how often each row has been delivered to the task, including this delivery. groups: with
    whole_groups, the groups in the order of their rows.

    A batch that was sent to another process keeps all of these. It can be committed and released only in the process
    that claimed it.
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
        return cls(data, claim.meta, claim.claim_id, claim.fence, claim.deliveries, claim.groups, claim)

    def commit(self, fields: Fields | None = None, *, timeout_s: float | None = None) -> int:
        """Commit the rows now instead of at the loop's next step. Returns how many of them still existed.

        fields: columns to write in the same atomic step, with one row for each row of the batch, in its order. Raises
        what Claim.commit raises.
        """
        return self._own_claim().commit(fields, timeout_s=timeout_s)

    def release(self, *, delay_s: float = 0.0, reason: str = "", timeout_s: float | None = None) -> int:
        """Make the rows available again after delay_s seconds. Returns how many of them still existed.

        With a reason, the delivery counts as failed. Raises what Claim.release raises.
        """
        return self._own_claim().release(delay_s=delay_s, reason=reason, timeout_s=timeout_s)

    @property
    def is_settled(self) -> bool:
        """Whether this process has committed or released the batch."""
        return self._own_claim().state != "open"

    def _own_claim(self) -> Claim:
        if self._claim is None:
            raise PreconditionError(
                f"the batch of claim {self.claim_id} was claimed by another process: commit or release it there"
            )
        return self._claim

    def __reduce__(self) -> tuple[object, ...]:
        values = (self.data, self.meta, self.claim_id, self.fence, self.deliveries, self.groups)
        return LoadedBatch, (*values, None)
