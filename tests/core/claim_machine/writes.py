"""Puts and commits of the model: checked when they begin, and again when their last byte has come."""

from __future__ import annotations

from tests.core.claim_machine.claims import Claims
from tests.core.claim_machine.partition import PartitionModel
from tests.core.claim_machine.refusals import No, refuse_if
from tests.core.claim_machine.things import Claim, Write

from dataplane_server.core.calls import CommitClaim, CommitResult, PutResult, PutSamples
from dataplane_server.core.calls.refusal import Reason


class Writes(Claims):
    def begin_put(self, put: PutSamples) -> None:
        self._supersede_write(put.request_id)
        self._check_put(put)

    def finish_put(self, put: PutSamples) -> PutResult:
        self._check_put(put)
        partition = self.partition(put.partition_id)
        if put.shared:
            group = self.group_of(put.reservation_id)
            partition.write_shared(group, put.columns)
            return PutResult(0, sum(int(spec.lengths[0]) for spec in put.columns if spec.lengths is not None))
        _, created = partition.put(put)
        self.serve(partition)
        return PutResult(created, Write(put, 0).size)

    def _check_put(self, put: PutSamples) -> None:
        partition = self.partition(put.partition_id)
        if put.reservation_id:
            self._check_own_group(put)
            return
        reasons = self._why_not_generations(partition, put)
        if put.claim_id:
            reasons |= self._why_not_write_back(put)
        if any(row.hidden for row in partition.found(put.sample_ids)):
            reasons.add(Reason.ROW_RESERVED)
        if reasons:
            raise No(*reasons)

    def _why_not_generations(self, partition: PartitionModel, put: PutSamples) -> set[Reason]:
        reasons: set[Reason] = set()
        if put.generations is None:
            return reasons
        for sample_id, generation in zip(put.sample_ids, put.generations.tolist(), strict=True):
            row = partition.find(sample_id)
            if row is None:
                reasons.add(Reason.SAMPLE_NOT_FOUND)
            elif row.generation != generation:
                reasons.add(Reason.ROW_REPLACED)
        return reasons

    def _why_not_write_back(self, put: PutSamples) -> set[Reason]:
        try:
            claim = self.claim_of(put.claim_id)
        except No as no:
            return no.reasons
        own = {row.sample_id for row in claim.left() if row.partition_id == put.partition_id}
        if own.issuperset(put.sample_ids):
            return set()
        there = self.partitions[put.partition_id].found(put.sample_ids)
        missing = {Reason.SAMPLE_NOT_FOUND} if len(there) < len(put.sample_ids) else set()
        return missing | {Reason.INVALID_REQUEST}

    def _check_own_group(self, put: PutSamples) -> None:
        group = self.group_of(put.reservation_id)
        own = {row.sample_id for row in group.rows}
        strange = group.partition_id != put.partition_id or not set(put.sample_ids) <= own
        names = {spec.name for spec in put.columns}
        twice = put.shared and any(names & row.values.keys() for row in group.rows)
        there = self.partition(put.partition_id).found(put.sample_ids)
        missing = len(there) < len(put.sample_ids)
        refuse_if((strange or twice, Reason.INVALID_REQUEST), (missing, Reason.SAMPLE_NOT_FOUND))

    def _supersede_write(self, request_id: str) -> None:
        for write in [write for write in self.writes if write.call.request_id == request_id]:
            self.writes.remove(write)
            self.effects.failed.append((write.ticket, {Reason.SUPERSEDED}))

    def begin_commit(self, commit: CommitClaim) -> CommitResult | None:
        """None when its columns have yet to come."""
        self._supersede_write(commit.request_id)
        if not commit.columns:
            return self._committed_before(commit) or self._commit(self.claim_of(commit.claim_id))
        self._check_columns(commit)
        return None

    def finish_commit(self, commit: CommitClaim) -> CommitResult:
        claim = self._check_columns(commit)
        partition = self.partitions[claim.partition_id]
        partition.write(claim.rows, commit.columns)
        partition.became_ready(claim.rows)
        result = self._commit(claim)
        self.serve(partition)
        return result

    def _check_columns(self, commit: CommitClaim) -> Claim:
        claim = self.claim_of(commit.claim_id)
        for spec in commit.columns:
            assert spec.lengths is not None
            refuse_if((len(spec.lengths) != len(claim.rows), Reason.ROW_COUNT_MISMATCH))
        refuse_if((len(claim.left()) < len(claim.rows), Reason.SAMPLE_NOT_FOUND))
        return claim

    def _committed_before(self, commit: CommitClaim) -> CommitResult | None:
        """A shard is committed by all who hold it, and the first one does."""
        for claim in self.claims:
            if claim.claim_id == commit.claim_id and claim.shard is not None and claim.ended == "committed":
                return CommitResult(claim.consumed_rows)
        return None

    def _commit(self, claim: Claim) -> CommitResult:
        rows = claim.left()
        claim.consumed_rows = len(rows)
        self.partitions[claim.partition_id].consume(claim.task, rows)
        self.end(claim, "committed")
        return CommitResult(len(rows))
