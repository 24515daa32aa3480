"""What the data plane promises, as a program over plain lists: what a call is answered, whom it serves, why not.

Ids of claims, sessions and reservations, tickets, and generations are the plane's to choose: the model is told them by
whoever compares, and finds things by looking for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tests.core.machine.claims import order_fits
from tests.core.machine.entrances import Entrances, Entrant
from tests.core.machine.partition import PartitionModel
from tests.core.machine.refusals import No, refuse_if
from tests.core.machine.things import VERSIONS, Answer, Group, Read, Row, Session

from dataplane_server.core.calls.answers import (
    ClearResult,
    CloseResult,
    DropResult,
    GroupAborted,
    GroupFinished,
    PartitionInfo,
    Registered,
    Retired,
)
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import (
    AbortGroup,
    BeginRead,
    ClearSamples,
    ClosePartition,
    DropPartition,
    ExtendPartition,
    FinishGroup,
    RegisterPartition,
    ReserveGroup,
    SetPolicies,
    SetWeightVersion,
)
from dataplane_server.core.calls.values import Definition, Runs


class Model(Entrances):
    # -- partitions ----------------------------------------------------------------------------------------------------

    def register(self, call: RegisterPartition) -> Registered:
        definition = call.definition
        partition = self.partitions.get(definition.partition_id)
        if partition is None:
            partition = self.partitions[definition.partition_id] = PartitionModel(definition, self.arena)
            return Registered(partition.info(Counter()), "created")
        if call.replace:
            return Registered(self._replace(partition, definition), "replaced")
        changed = self._extend(partition, definition)
        return Registered(partition.info(self.waiting_by_task(partition.partition_id)), changed)

    def extend(self, call: ExtendPartition) -> PartitionInfo:
        partition = self.partition(call.partition_id)
        more = {"fields": call.fields, "tasks": call.tasks, "num_samples": call.num_samples}
        self._extend(partition, replace(partition.definition, per_token_fields=call.per_token_fields, **more))  # type: ignore[arg-type]
        return partition.info(self.waiting_by_task(partition.partition_id))

    def _extend(self, partition: PartitionModel, wanted: Definition) -> Literal["unchanged", "extended"]:
        held = partition.definition
        both = set(held.fields) & set(wanted.fields)
        same = held.per_token_fields & both == wanted.per_token_fields & both
        modes = [(one.max_deliveries, one.open, one.clear_when_consumed) for one in (held, wanted)]
        refuse_if((not same or modes[0] != modes[1], Reason.PARTITION_DIFFERS))
        fields = [*held.fields, *(name for name in wanted.fields if name not in held.fields)]
        refuse_if((len(fields) > self.limits.max_fields, Reason.INVALID_REQUEST))
        partition.extend(
            replace(
                held,
                fields=tuple(fields),
                tasks=(*held.tasks, *(name for name in wanted.tasks if name not in held.tasks)),
                per_token_fields=held.per_token_fields | wanted.per_token_fields,
                num_samples=max(held.num_samples, wanted.num_samples),
            )
        )
        return "unchanged" if partition.definition == held else "extended"

    def close(self, call: ClosePartition) -> CloseResult:
        partition = self.partition(call.partition_id)
        partition.closed = partition.checks_entrants = True
        self.serve(partition)
        self.follow_up()
        return CloseResult(len(self.effects.ended))

    def _replace(self, partition: PartitionModel, definition: Definition) -> PartitionInfo:
        if definition.open:  # what was declared stays declared
            kept = [name for name in partition.definition.fields if name not in definition.fields]
            per_token = definition.per_token_fields | (partition.definition.per_token_fields & set(kept))
            definition = replace(definition, fields=(*definition.fields, *kept), per_token_fields=per_token)
        refuse_if((len(definition.fields) > self.limits.max_fields, Reason.INVALID_REQUEST))
        changed = set(partition.definition.fields) - set(definition.fields)
        changed |= definition.per_token_fields - partition.definition.per_token_fields
        held = {name for row in partition.rows for name in row.values}
        held |= {name for group in partition.groups for name in group.shared}
        refuse_if((bool(held & changed), Reason.FIELD_HOLDS_VALUES))
        for task, ledger in partition.ledgers.items():
            ledger.end(partition.count(task, "claimed"), "reset")
        self.end_all_on(partition, "reset")
        partition.redefine(definition)
        for wait in self.waiting_on(partition.partition_id):
            if reasons := partition.why_not_claim(wait.wish, self.limits.max_fields):
                self.fail(wait, reasons)
        info = partition.info(self.waiting_by_task(partition.partition_id))
        self.serve(partition)
        return info

    def drop(self, call: DropPartition) -> DropResult:
        partition = self.partitions.pop(call.partition_id, None)
        if partition is None:
            return DropResult(0)
        self.end_all_on(partition, "reset")
        for group in list(partition.groups):
            self._end_group(group, "rolled back")
            if not group.rows:
                partition.forget(group)
        for wait in self.waiting_on(call.partition_id):
            self.fail(wait, {Reason.PARTITION_NOT_FOUND})
        self.fail_writes([w for w in self.queue() if w.partition_id == call.partition_id], Reason.PARTITION_NOT_FOUND)
        self.fail_entrants([one for one in self.entrants if one.partition is partition], Reason.PARTITION_NOT_FOUND)
        rows = list(partition.rows)
        partition.remove(rows)
        return DropResult(len(rows))

    def clear(self, call: ClearSamples) -> ClearResult:
        partition = self.partition(call.partition_id)
        rows = list(partition.rows) if call.sample_ids is None else partition.found(call.sample_ids)
        if call.generations is not None and call.sample_ids is not None:
            wanted = dict(zip(call.sample_ids, call.generations.tolist(), strict=True))
            rows = [row for row in rows if wanted[row.sample_id] == row.generation]
        refuse_if((partition.takes_fields_for_tags(call.where), Reason.INVALID_REQUEST))
        rows = [row for row in rows if partition.fits(row, call.where)]
        size = self._remove(partition, rows)
        return ClearResult(len(rows), size)

    def _remove(self, partition: PartitionModel, rows: Sequence[Row], why: str = "") -> int:
        size = partition.remove(rows, why)
        for group in self.groups:
            if group.partition_id == partition.partition_id and group not in partition.groups:
                self._end_group(group, "gone")
        self.serve(partition)
        return size

    # -- freshness -----------------------------------------------------------------------------------------------------

    def set_weight_version(self, call: SetWeightVersion) -> Retired:
        partition, before = self.partition(call.partition_id), call.retire_below
        versions = [call.version, *([] if before is None else [before])]
        wrong = any(version not in VERSIONS for version in versions) or (before or 0) > call.version
        refuse_if((wrong, Reason.INVALID_REQUEST))
        partition.trainer_version = call.version
        if before is None:
            self.serve(partition)
            return Retired(0, 0)
        old = [group for group in partition.groups if group.state == "reserved" and (group.start or before) < before]
        rows = [row for group in old for row in group.rows]
        rows += [row for row in partition.rows if row.version is not None and row.version < before and row not in rows]
        hidden = [row for row in rows if row.hidden]
        partition.remove(hidden, "rolled_back")
        partition.remove([row for row in rows if row not in hidden], "retired")
        for group in old:
            self._end_group(group, "rolled back")
            if group in partition.groups:  # it never had a row
                partition.forget(group)
        self._remove(partition, [])
        return Retired(len(rows), len(old))

    def set_policies(self, call: SetPolicies) -> PartitionInfo:
        partition = self.partition(call.partition_id)
        refuse_if((any(each.task not in partition.ledgers for each in call.tasks), Reason.TASK_NOT_REGISTERED))
        orders = [(each.policy.order, each.policy.order_tag) for each in call.tasks]
        refuse_if((not all(order_fits(*order) for order in orders), Reason.INVALID_REQUEST))
        paces = [each.policy.rows_per_version and each.policy.max_staleness is None for each in call.tasks]
        refuse_if((any(paces), Reason.INVALID_REQUEST))
        for each in call.tasks:
            partition.follow_policy(each.task, each.policy)
        self.follow_flow(partition, partition.flow if call.flow is None else call.flow)
        partition.checks_entrants = True
        info = partition.info(self.waiting_by_task(partition.partition_id))
        self.serve(partition)
        return info

    # -- groups --------------------------------------------------------------------------------------------------------

    def reserve(self, call: ReserveGroup) -> Group | Entrant:
        self.supersede_entrant(call.request_id)
        self._check_reserve(call)
        return self.enter_group(self.partition(call.partition_id), call) or self.create(call)

    def _check_reserve(self, call: ReserveGroup) -> Session | None:
        partition, session = self.partition(call.partition_id), None
        reasons = set()
        try:
            session = self.session(call.session_id)
        except No as no:
            reasons |= no.reasons
        if partition.closed:
            reasons.add(Reason.PARTITION_CLOSED)
        if partition.has_some_of(call):
            reasons.add(Reason.SAMPLE_EXISTS)
        if len(call.sample_ids) > self.limits.max_group_rows:
            reasons.add(Reason.INVALID_REQUEST)
        if self.rows + len(call.sample_ids) > self.limits.max_rows:
            reasons.add(Reason.LIMIT_REACHED)
        if reasons:
            raise No(*reasons)
        self._check_terms(call)
        return session

    def _check_terms(self, call: ReserveGroup) -> None:
        tried, most = self.partition(call.partition_id).attempts.get(call.group_id, 0), call.max_regenerations
        refuse_if(
            (
                bool(call.min_rows and not call.deadline_s) or bool(call.complete_fields and not call.min_rows),
                Reason.INVALID_REQUEST,
            ),
            (most is not None and tried > most, Reason.GROUP_GIVEN_UP),
        )

    def create(self, call: ReserveGroup) -> Group:
        session, partition = self._check_reserve(call), self.partition(call.partition_id)
        group = Group(call.group_id, call.partition_id, [], session, call.weight_version, terms=call)
        group.deadline = self.now + call.deadline_s if call.deadline_s else math.inf
        partition.see(call.weight_version)
        for sample_id in call.sample_ids:
            partition.join(partition.create(sample_id), group)
        partition.groups.append(group)
        self.groups.append(group)
        if session:
            session.groups.append(group)
        self.serve(partition)
        return group

    def finish(self, call: FinishGroup) -> GroupFinished:
        if (shown := self.late.get(call.reservation_id)) is not None:
            return GroupFinished(shown)
        group = self.group_of(call.reservation_id)
        late = [row for row in group.rows if not group.is_complete(row)]
        least = group.terms.min_rows if group.terms is not None else 0
        if group.deadline <= self.now and least and len(group.rows) - len(late) >= least:
            return self._show(group, call.weight_version, late)
        refuse_if((not group.rows or not all(row.values for row in group.rows), Reason.GROUP_INCOMPLETE))
        return self._show(group, call.weight_version)

    def _show(self, group: Group, weight_version: int | None, late: Sequence[Row] = ()) -> GroupFinished:
        partition, missing = self.partitions[group.partition_id], group.failed + len(late)
        of_all = {} if weight_version is None else {"end_weight_version": weight_version}
        kept, most = [row for row in group.rows if row not in late], self.limits.max_tags_per_row
        too_many = any(len(row.tags | of_all) > max(most, len(row.tags)) for row in kept)
        refuse_if((too_many, Reason.INVALID_REQUEST))
        for row in kept:
            row.tags = row.tags | ({"missing_rows": missing} if missing else {}) | of_all
        if late:
            self._remove(partition, late, "failed")
        if weight_version is not None:
            partition.see(weight_version)
        group.end = weight_version
        partition.attempts.pop(group.group_id, None)
        self._end_group(group, "finished")
        group.end_sharing(self.arena)
        shown = GroupFinished(len(group.rows))
        partition.update(group.rows)
        self.serve(partition)
        return shown

    def abort(self, call: AbortGroup) -> GroupAborted:
        if call.reserve_request_id:
            return self._abandon(call)
        group = self.group_of(call.reservation_id)
        partition = self.partitions[group.partition_id]
        failed = [row for row in partition.rows if row.sample_id in call.sample_ids]
        refuse_if(
            (len(failed) < len(call.sample_ids), Reason.SAMPLE_NOT_FOUND),
            (any(row not in group.rows for row in failed), Reason.INVALID_REQUEST),
        )
        if not failed or len(failed) == len(group.rows):
            return GroupAborted(self._roll_back(group), True)
        group.failed += len(failed)
        self._remove(partition, failed, "failed")
        return GroupAborted(len(failed), False)

    def _abandon(self, call: AbortGroup) -> GroupAborted:
        """Nobody will take a reservation: its group goes, as if never tried, and it is refused if it still comes."""
        request_id, rows = call.reserve_request_id, 0
        refuse_if((bool(call.reservation_id or call.sample_ids), Reason.INVALID_REQUEST))
        answer = self.recall(request_id, "ReserveGroup")
        self.supersede_entrant(request_id)
        for group in [] if answer is None else self.groups:
            if group.state == "reserved" and group.terms is not None and group.terms.request_id == request_id:
                rows = self._roll_back(group, tried=False)
        self.answers[request_id] = Answer("ReserveGroup", Reason.SUPERSEDED.name, self.now)
        return GroupAborted(rows, True)

    def _end_late(self, group: Group) -> None:
        """The deadline of a reserved group has passed."""
        least = group.terms.min_rows if group.terms is not None else 0
        late = [row for row in group.rows if not group.is_complete(row)]
        if least and len(group.rows) - len(late) >= least:
            self.late[group.reservation_id] = self._show(group, None, late).rows
        else:
            self._roll_back(group)

    def _roll_back(self, group: Group, *, tried: bool = True) -> int:
        self._end_group(group, "rolled back")
        rows, partition = list(group.rows), self.partitions[group.partition_id]
        if tried and group.terms is not None and group.terms.max_regenerations is not None:
            partition.attempts[group.group_id] = partition.attempts.get(group.group_id, 0) + 1
        self._remove(partition, rows, "rolled_back")
        if not rows:
            partition.forget(group)
        return len(rows)

    def _end_group(self, group: Group, state: str) -> None:
        group.state = state if group.state == "reserved" else group.state
        if group.session is not None and group in group.session.groups:
            group.session.groups.remove(group)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def why_not_read(self, call: BeginRead) -> set[Reason]:
        if call.partition_id not in self.partitions:
            return {Reason.PARTITION_NOT_FOUND}
        partition, names = self.partitions[call.partition_id], set(call.fields)
        rows = [partition.find(sample_id) for sample_id in call.sample_ids]
        reasons = {Reason.SAMPLE_NOT_FOUND} if None in rows else set()
        if not names <= set(partition.definition.fields):
            reasons.add(Reason.FIELD_NOT_PRODUCED if partition.definition.open else Reason.FIELD_NOT_DECLARED)
        if any(row and not names <= row.values.keys() for row in rows):
            reasons.add(Reason.FIELD_NOT_PRODUCED)
        expected = call.generations if call.generations is not None else ()
        if any(row and row.generation != generation for row, generation in zip(rows, expected, strict=False)):
            reasons.add(Reason.ROW_REPLACED)
        return reasons

    def end_read(self, ticket: int) -> None:
        self.reads.pop(ticket).end(self.arena)

    # -- the end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self.draining = True
        for wait in list(self.waiting):
            self.fail(wait, {Reason.DRAINING})
        self.fail_writes(self.queue(), Reason.DRAINING)
        self.fail_entrants(self.entrants, Reason.DRAINING)

    def recover(self, held: bool) -> None:
        """The server has died and begins anew. held: clients may still read what there is, until let_go."""
        self.drain()
        self.draining = False
        for write in list(self.writes):
            self.discard(write)
        self.former += self.reads.values()
        self.reads.clear()
        for session in self.sessions:
            session.deadline = max(session.deadline, self.now + session.grace_s)
        if not held:
            self.let_go()
            return
        resident = [row for partition in self.partitions.values() for row in partition.rows]
        self.former.append(Read(resident, Runs.of([]), b""))
        self.former[-1].begin()

    def let_go(self) -> None:
        for read in self.former:
            read.end(self.arena)
        self.former.clear()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def heard(self, session_id: str, at: float) -> bool:
        for session in self.sessions:
            if session.session_id == session_id:
                session.deadline = max(session.deadline, at + session.grace_s)
                return True
        return False

    def advance(self, now: float, stalled_s: float) -> None:
        self.now = max(now, self.now)
        for session in self.sessions:
            session.deadline += max(0.0, stalled_s)
        expired = [session for session in self.sessions if session.deadline <= now]
        expired.sort(key=lambda session: session.deadline)
        for session in expired:
            self.sessions.remove(session)
        self.fail_calls(expired)
        for session in expired:
            self.effects.died.append((session.session_id, *self._release(session, died=True)))
            self.follow_up()
        due = [(held, partition) for partition in self.partitions.values() for held in partition.held]
        for held, partition in sorted(due, key=lambda pair: pair[0].until):
            if held.until <= now:
                partition.end_delay(held)
                self.serve(partition)
                self.follow_up()
        for group in sorted(self.groups, key=lambda group: group.deadline):
            if group.deadline <= now and group.state == "reserved":
                self._end_late(group)
                self.follow_up()

    def close_session(self, session_id: str) -> None:
        for session in [session for session in self.sessions if session.session_id == session_id]:
            self.sessions.remove(session)
            self.fail_calls([session])
            self._release(session, died=False)

    def fail_calls(self, sessions: Sequence[Session]) -> None:
        """Calls of sessions that have ended fail."""
        for session in sessions:
            mine = [ticket for ticket, wish in self.callers() if wish.session_id == session.session_id]
            self.fail_callers(mine, Reason.SESSION_EXPIRED)
            groups = [one for one in self.entrants if isinstance(one.call, ReserveGroup)]
            self.fail_entrants([g for g in groups if g.call.session_id == session.session_id], Reason.SESSION_EXPIRED)  # type: ignore[attr-defined]

    def _release(self, session: Session, *, died: bool) -> tuple[int, int, int]:
        """How many claims end with a session, with how many rows, and how many groups."""
        alone = [claim for claim in session.claims if claim.holders == [session]]
        for claim in session.claims:
            claim.holders.remove(session)
        session.claims = []
        rows = self.give_back_together(alone, died=died)
        groups = list(session.groups)
        for group in groups:
            self._roll_back(group)
        return len(alone), rows, len(groups)
