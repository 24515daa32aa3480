"""A claim that the ranks of a replica hold together; the leader holds it at the server.

The claim ends the same way on all ranks. Ranks first tell each other how they want to end it. So a rank that failed
meets the committing ranks in the same collective, and its failure becomes the failure of all: nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, cast

import torch

from dataplane_client.client import Claim
from dataplane_client.errors import ClaimFencedError
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter._exchange import gather_values
from trainer_adapter._remote_errors import describe_error
from trainer_adapter.data_plane._replica import ReplicaGroup, run_on_leader


class ReplicaClaim:
    """Rows claimed by a replica; ReplicaDataPlane.claim_shard makes it. All methods are collective calls of the
    replica's ranks.

    As a context manager it commits if all ranks exit cleanly. If any rank leaves with an exception, the claim is
    released as failed, with the exception's type and message in the reason, and the other ranks raise RuntimeError.

    meta: the rows.
    claim_id: the server's id of the claim.
    committed: as Claim.committed: the rows were consumed before.
    state: as Claim.state, the same on all ranks.
    """

    def __init__(
        self,
        claim: Claim | None,
        claim_id: str,
        committed: bool,
        meta: KVBatchMeta,
        replica: ReplicaGroup,
        device: torch.device,
    ) -> None:
        """claim: the claim itself on the leader, None on other ranks."""
        self._claim = claim
        self._replica = replica
        self._device = device
        self.claim_id = claim_id
        self.committed = committed
        self.meta = meta
        self.state: Literal["open", "committed", "released", "fenced"] = "open"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.claim_id} {self.meta.size} rows {self.state}>"

    def __enter__(self) -> ReplicaClaim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state != "open":
            return
        if kind is None:
            self.commit()
            return
        self._agree_on_end("leave", kind.__name__ if error is None else describe_error(error))
        self._release_failed(kind, error)

    def commit(self, columns: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> int:
        """End the claim: its rows are consumed permanently. Returns how many of them still existed.

        columns: what the leader writes in the same atomic step, as Claim.commit does; those of other ranks are ignored.
        Raises on all ranks what Claim.commit raises.
        """
        self._agree_or_release("commit")
        return self._end(lambda claim: claim.commit(columns, timeout_s=timeout_s))

    def release(self, *, delay_s: float = 0.0, reason: str = "", timeout_s: float | None = None) -> int:
        """End the claim: its rows return to the task. Arguments and errors as Claim.release, on all ranks."""
        self._agree_or_release("release")
        return self._end(lambda claim: claim.release(delay_s=delay_s, reason=reason, timeout_s=timeout_s))

    def _agree_or_release(self, intent: str) -> None:
        failure = self._agree_on_end(intent, None)
        if failure is not None:
            error = RuntimeError(f"claim {self.claim_id} was released because another rank failed with {failure}")
            self._release_failed(RuntimeError, error)
            raise error

    def _agree_on_end(self, intent: str, failure: str | None) -> str | None:
        """Exchange what the ranks intend to do; return the first failure. RuntimeError if they disagree."""
        own = {"intent": intent, "failure": failure}
        group = self._replica.group
        accounts = [own] if group is None else gather_values(own, group=group, device=self._device)
        failures: list[str] = [account["failure"] for account in accounts if account["failure"] is not None]
        intents = [account["intent"] for account in accounts]
        if not failures and len(set(intents)) > 1:
            raise RuntimeError(f"the ranks of the replica end claim {self.claim_id} in different ways: {intents}")
        return failures[0] if failures else None

    def _release_failed(self, kind: type[BaseException], error: BaseException | None) -> None:
        """Release; the leader's error is the reason. It matters more than whether the server can be reached now."""

        def end(claim: Claim) -> int:
            claim.__exit__(kind, error, None)
            return claim.meta.size

        self._end(end)

    def _end(self, end: Callable[[Claim], int]) -> int:
        def end_on_leader() -> dict[str, Any]:
            claim = cast("Claim", self._claim)  # the leader has it
            return {"rows": end(claim), "state": claim.state}

        try:
            outcome = run_on_leader(end_on_leader, self._replica, self._device)
        except ClaimFencedError:
            self.state = "fenced"
            raise
        self.state = outcome["state"]
        rows: int = outcome["rows"]
        return rows
