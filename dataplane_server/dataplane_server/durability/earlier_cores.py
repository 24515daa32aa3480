"""What differs in the states of earlier cores, so that a snapshot can be restored after an upgrade.

A state has the attributes of the build that wrote it. `EARLIER` lists the builds whose snapshots this core can go on
from: `graph.decode` gives their objects today's names, and the attributes that came later, and `complete` does what
needs other objects. A build that is not listed is refused, since nobody has tried it. Each build of the
list has a snapshot in `tests/server/durability/earlier`, which a test restores: it fails when a change of the core's
attributes is missing here.

Logs are not converted: a log replays on the core that wrote it, whose every answer depends on the calls before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dataplane_server.core.rows.group_table import Terms
from dataplane_server.core.rows.owed import Owed
from dataplane_server.core.state.delays import Deadlines
from dataplane_server.core.tasks.task_states import TASK_STATES
from dataplane_server.core.tasks.views import Views
from dataplane_server.core.verbs.reads import _Pinned
from dataplane_server.durability.graph import Differences

Parts = Mapping[str, Any]
"""The roots of a state by name: `state`, `verbs`, `answers` and `history`."""


class EarlierCore(NamedTuple):
    """differences: of its objects. complete: called with the parts once they are decoded, for what needs more than one
    of them.
    """

    differences: Differences
    complete: Callable[[Parts], None]


def _none() -> None:
    return None


def _since_november(parts: Parts) -> None:
    """Partitions know their ids, tasks which rows were put again and which shards are not committed; views of a task
    are an object of their own. Readers do not keep what rows give up before they begin.
    """
    verbs = parts["verbs"]
    _know_readers(parts)
    of_table = vars(verbs.table)
    of_table["_named"], of_table["_named_rows"] = of_table.pop("_told"), of_table.pop("_told_rows")
    for partition in parts["state"].partitions.values():
        partition.partition_id = partition.definition.partition_id
        partition.removed["failed"] = 0
        for name, task in partition.tasks.items():
            of_task = vars(task)
            again = of_task["_again"] = f"again:{name}"
            partition.rows.add_column(again, np.bool_)
            steps = vars(verbs.steps)["_steps"].get((partition.partition_id, name), {})
            task.views = Views(name, partition.rows, of_task.pop("_groups"), of_task["_column"])
            vars(task.views)["_of_kind"] = of_task.pop("_views")
            task.uncommitted = {number: _uncommitted(step, verbs.table) for number, step in steps.items()}
            _rename_states(task.clock)


def _know_readers(parts: Parts) -> None:
    """Who pins a row now keeps all that it owes."""
    verbs = parts["verbs"]
    reads = vars(verbs.reads)
    for name in ("_former", "_of_snapshot"):
        reads[name] = [_Pinned(partition, slots, -1) for partition, slots in reads[name]]
    pinned = reads["_pinned"].items()
    reads["_pinned"] = {ticket: _Pinned(partition, slots, -1) for ticket, (partition, slots) in pinned}
    for partition in {id(p): p for p in (*parts["state"].partitions.values(), *verbs.reads.partitions())}.values():
        rows = partition.rows
        for part, name in ((rows, "_owed"), (rows.payloads, "_held_by")):
            pieces = vars(part).pop(name)
            owed: Owed[Any] = Owed()
            vars(part)["_owed"] = owed
            for slot, what in ((slot, what) for slot, given_up in pieces.items() for what in given_up):
                owed.add(slot, what, 0, int(rows["pins"][slot]))


def _uncommitted(step: Any, table: Any) -> int:
    grants = [shard.grant for shard in step.shards]
    return sum(grant is None or table.committed_shard(grant.claim_id) is None for grant in grants)


def _rename_states(clock: Any) -> None:
    """Waits for producers and by a policy were two states."""
    before, state = clock._seconds, clock._state  # noqa: SLF001 - not yet the attributes of this core
    waiting = before.get("waiting_for_producers", 0.0) + before.get("waiting_by_policy", 0.0)
    seconds = {**{name: before.get(name, 0.0) for name in TASK_STATES}, "waiting": waiting}
    clock._seconds, clock._state = seconds, state if state in TASK_STATES else "waiting"  # noqa: SLF001


THIS = EarlierCore(Differences(), lambda parts: None)
"""This core."""

EARLIER = {
    # 0.1.0 before its release, of November 2026
    "110679df54d90e5542e3a54ae821e52f": EarlierCore(
        Differences(
            renamed={"verbs.holders.Holders": "verbs.memory_holders.Holders"},
            added={
                "calls.answers.Grant": {"committed": bool},
                "calls.answers.GroupAborted": {"ended": bool},
                "calls.answers.PutResult": {"outcomes": bytes},
                "calls.answers.TaskInfo": {"newest_step": _none, "next_step": int},
                "calls.columns.Column": {"per_token": bool},
                "calls.columns.ColumnSpec": {"per_token": bool},
                "calls.requests.ClaimShard": {"again": bool},
                "calls.requests.CommitClaim": {"hashed": bool},
                "calls.requests.PutSamples": {
                    "digest": bytes,
                    "create_only": bool,
                    "existing_only": bool,
                    "hashed": bool,
                },
                "calls.requests.ReserveGroup": {
                    "deadline_s": float,
                    "min_rows": int,
                    "complete_fields": tuple,
                    "max_regenerations": _none,
                },
                "calls.values.Definition": {"dtypes": dict, "digests": bool},
                "rows.fields.Field": {"dtype": str},
                "rows.group_table.Group": {"since": float, "deadline": _none, "failed": int, "terms": Terms},
                "rows.group_table.GroupTable": {"attempts": dict},
                "rows.places.Places": {"_digests": _none},
                "state.answers._Answer": {"fingerprint": bytes},
                "state.answers._PackedPut": {"outcomes": bytes},
                "state.claim_table.ClaimTable": {"_committed": dict},
                "state.claim_table._Ended": {"sessions": int},
                "state.counters.PartitionCounters": {
                    "groups_committed": int,
                    "groups_partial": int,
                    "groups_aborted": int,
                    "groups_late": int,
                },
                "state.entrance.Entrance": {"begun_at": int},
                "state.entrance.Entry": {"counted_at": int},
                "state.sessions.Session": {"owner": str, "number": int},
                "state.state.State": {"version": int, "deadlines": Deadlines, "ended_groups": dict},
                "tasks.task_states.TaskCounters": {"versions_behind": int, "versioned": int},
                "verbs.admission._Asked": {"passed": int},
                "verbs.flow.Flow": {"_looked": float},
                "verbs.writes.Writes": {"_last_check": _none},
            },
        ),
        _since_november,
    ),
}
"""By the build, as a state names it."""
