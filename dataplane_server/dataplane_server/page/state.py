"""The state of the server as parts of the page: the server, what waits and why, who holds what, who does what, and a
part for each partition.

Parts have points in time (`at`, `since`, in seconds of the server's clock) in place of ages, so a partition that did
not change says what it did before. Figures that are zero or not there are left out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import islice
from operator import is_
from typing import Any

from dataplane_server.core.calls.causes import ExplainedWait
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.stats.figures import Column, partition_columns, task_columns
from dataplane_server.core.stats.history import Happening
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import TASK_STATES
from dataplane_server.observe.catalog import CALL_SECONDS
from dataplane_server.observe.metrics import MOST_HOLDERS, Metrics
from dataplane_server.observe.verdict import reasons_of
from dataplane_server.page.board import UNCHANGED, Pieces
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.version import VERSION
from rl_dataplane.v1 import data_plane_pb2 as pb

MOST_PARTITIONS = 128
"""That are shown; those in which calls wait first, then those with most rows."""
MOST_TASKS = 16
"""Of a partition."""
_MOST_LISTED = 50
"""Claims, sessions, and events."""
_MOST_CLIENTS = 256
_MOST_CAUSES = 4
_MOST_RECORDS = 4096
"""Of the history, that one snapshot looks at."""
_REMEMBERED_S = 60.0
_REST_EVERY_S = 10.0
"""How often tasks at rest are explained anew."""
_BROUGHT = ("put", "appended", "wrote_back")
_TAKEN = ("claimed", "committed")
_USUAL = (*_BROUGHT, *_TAKEN, "reserved", "ready", "adopted")
_CONSUMED = "every task has consumed it"
_LATENCIES_EVERY = 5


class StateReader:
    """Begins snapshots. now: the time of calls."""

    def __init__(
        self,
        plane: DataPlane,
        servicer: DataPlaneServicer,
        metrics: Metrics,
        serving: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._plane = plane
        self._servicer = servicer
        self._metrics = metrics
        self._serving = serving
        self._now = now
        self._host = socket.gethostname()
        self._snapshots = 0
        self._keys: dict[str, tuple[object, ...]] = {}
        self._clients = _Clients()
        self._resting = _Resting(plane)

    async def pieces(self, everything: bool) -> Pieces:
        """One snapshot; everything, or without what is as in the last one. Calls may be applied between two pieces."""
        if everything:
            self._snapshots = 0
            self._keys.clear()
        return self._pieces(self._now())

    def _pieces(self, now: float) -> Pieces:
        status = self._servicer.status()
        unhealthy = [reason.text for reason in reasons_of(status)]
        given = {"started": round(now - status.uptime.ToTimedelta().total_seconds(), 1), "host": self._host}
        nodes = list(map(_node, status.nodes))
        yield "server", {**self._server(now), **given, "unhealthy": unhealthy, "nodes": nodes}
        explanation = self._plane.explain_waits("", "", now)
        yield (
            "waits",
            {
                "waits": [_explained(wait, now) for wait in explanation.waits],
                "unexamined": explanation.unexamined,
            },
        )
        shown = self._chosen({wait.partition_id for wait in explanation.waits})
        yield "resting", {"waits": [_explained(wait, now) for wait in self._resting.explain(shown, now)]}
        yield "holders", self._holders(now)
        yield "clients", self._clients.read(self._plane, now)
        if self._snapshots % _LATENCIES_EVERY == 0:
            yield "latencies", {"at": now, "bounds": CALL_SECONDS, "counts": self._metrics.seconds_of_calls()}
        else:
            yield "latencies", UNCHANGED
        self._snapshots += 1
        self._keys = {name: key for name, key in self._keys.items() if name in shown}
        for name in shown:
            if (partition := self._plane.partitions.get(name)) is not None:
                yield f"partition {name}", self._partition(partition, now)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _server(self, now: float) -> dict[str, object]:
        totals, limits = self._plane.totals(now), self._plane.limits
        return {
            "now": now,
            "version": VERSION,
            "serving": self._serving(),
            "partitions": totals.partitions,
            "rows": totals.rows,
            "max_rows": limits.max_rows,
            "memory": [totals.memory_budget_bytes, totals.memory_used_bytes, totals.held_bytes],
            "waiting": [totals.waiting_claims, totals.waiting_puts, totals.waiting_for_room],
            "claims": totals.open_claims,
            "sessions": totals.sessions,
            "sessions_ended": dict(totals.sessions_ended),
        }

    def _holders(self, now: float) -> dict[str, object]:
        """The oldest claims, the sessions that have been silent for longest, and who holds memory."""
        state, verbs, *_ = self._plane.parts
        sessions = nlargest(_MOST_LISTED, state.sessions, key=lambda session: session.silent_s(now))
        return {
            "claims": [
                {
                    "partition": claim.partition.partition_id,
                    "task": claim.task,
                    "rows": len(claim.left()),
                    "since": claim.since,
                    "clients": [state.sessions.name(held_by) for held_by in claim.sessions],
                    "shard": claim.shard,
                }
                for claim in islice(verbs.table, _MOST_LISTED)
            ],
            "sessions": [
                {
                    "client": session.client_name,
                    "claims": len(session.claims),
                    "grace_s": session.grace_s,
                    "heard": round(now - session.silent_s(now), 1),
                }
                for session in sessions
            ],
            "memory": [
                [holder.client_name, holder.lent_bytes, holder.leased_bytes, holder.owed_bytes]
                for holder in self._plane.holders(MOST_HOLDERS)
            ],
        }

    # -- partitions ----------------------------------------------------------------------------------------------------

    def _chosen(self, waiting: set[str]) -> list[str]:
        partitions = self._plane.partitions
        if len(partitions) <= MOST_PARTITIONS:
            return list(partitions)
        return nlargest(MOST_PARTITIONS, partitions, key=lambda name: (name in waiting, len(partitions[name].rows)))

    def _partition(self, partition: Partition, now: float) -> object:
        """What a partition says, unless it has not changed."""
        name, tasks = partition.partition_id, list(partition.tasks.values())
        key = (partition, partition.figures, *(task.figures for task in tasks))
        known = self._keys.get(name, ())
        if None not in key and len(key) == len(known) and all(map(is_, key, known)):
            return UNCHANGED
        content = _described(partition, now)
        self._keys[name] = (partition, partition.figures, *(task.figures for task in tasks))
        return content


def _node(node: pb.Node) -> dict[str, object]:
    return {
        "number": node.number,
        "host": node.host,
        "up": node.up,
        "ended": node.ended,
        "used": node.memory_used_bytes,
        "clients": node.clients,
    }


def _described(partition: Partition, now: float) -> dict[str, object]:
    (figures,) = _rows(partition_columns([partition], now))
    of_tasks = _rows(task_columns([partition], now))
    flow, fields = partition.entrance.policy, partition.fields.values()
    budgets = {name: getattr(flow, name) for name in ("max_rows", "max_bytes", "max_versions") if getattr(flow, name)}
    _to_time(figures, "oldest_row_age_s", now)
    return {
        "name": partition.partition_id,
        **figures,
        "closed": partition.rows.closed,
        "announced": partition.definition.num_samples,
        "weight_version": partition.rows.weight_version,
        "budgets": {**budgets, "when_full": flow.when_full} if budgets else {},
        "waiting_calls": len(partition.entrance.waiting) + len(partition.entrance.draws),
        "fields": [[field.name, _shape_text(field.shape), field.rows, field.size_bytes] for field in fields],
        "tasks": [
            _task(task, given, now)
            for task, given in zip(islice(partition.tasks.values(), MOST_TASKS), of_tasks, strict=False)
        ],
        "more_tasks": max(len(partition.tasks) - MOST_TASKS, 0),
    }


def _task(task: Task, figures: dict[str, Any], now: float) -> dict[str, object]:
    for name in ("oldest_untaken_age_s", "longest_wait_s"):
        _to_time(figures, name, now)
    bound = {} if task.policy.max_staleness is None else {"max_staleness": task.policy.max_staleness}
    return {"name": task.name, "state": TASK_STATES[task.clock.state_number], **figures, **bound}


def _rows(columns: Mapping[str, Column]) -> list[dict[str, Any]]:
    """The figures that are not zero, a dict for each partition or task."""
    rows = zip(*columns.values(), strict=True)
    return [{name: value for name, value in zip(columns, row, strict=True) if value} for row in rows]


_shape_text = lru_cache(1024)(lambda shape: str(shape or ""))


def _to_time(figures: dict[str, Any], age: str, now: float) -> None:
    """Replace an age, or a wait, by when it began."""
    if age in figures:
        figures[age.removesuffix("_age_s").removesuffix("_wait_s") + "_since"] = round(now - figures.pop(age), 1)


def _explained(wait: ExplainedWait, now: float) -> dict[str, object]:
    return {
        "partition": wait.partition_id,
        "task": wait.task,
        "waiting": wait.waiting,
        "client": wait.client_name,
        "calls": wait.calls,
        "since": None if wait.age_s is None else now - wait.age_s,
        "summary": wait.summary,
        "behind": wait.behind,
        "causes": [
            {"cause": finding.cause, "text": finding.text, "next": wait.next_step(finding)}
            for finding in wait.findings[:_MOST_CAUSES]
        ],
    }


class _Resting:
    """Explains why tasks take no rows although no claim waits, one partition a snapshot, each every few seconds."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._found: dict[str, tuple[float, list[ExplainedWait]]] = {}

    def explain(self, shown: Sequence[str], now: float) -> list[ExplainedWait]:
        """What is known of these partitions now."""
        partitions = self._plane.partitions
        self._found = {name: self._found[name] for name in shown if name in self._found}
        due = [name for name in shown if self._is_due(name, partitions[name], now)]
        for name in sorted(due, key=lambda name: self._at(name))[: 1 + len(due) // int(_REST_EVERY_S)]:
            waits = self._plane.explain_waits(name, "", now).waits
            self._found[name] = now, [wait for wait in waits if not wait.waiting and wait.partition_id]
        return [wait for _, waits in self._found.values() for wait in waits][:_MOST_LISTED]

    def _at(self, name: str) -> float:
        return self._found[name][0] if name in self._found else float("-inf")

    def _is_due(self, name: str, partition: Partition, now: float) -> bool:
        """Whether a task has been at rest for a while, or was."""
        if now - self._at(name) < _REST_EVERY_S and name in self._found:
            return False
        return name in self._found or any(
            task.clock.since is not None and now - task.clock.since > _REST_EVERY_S / 2 and not task.views.waiting()
            for task in partition.tasks.values()
        )


class _Clients:
    """Who has put and taken rows in the last minute, as the history tells, and what went otherwise."""

    def __init__(self) -> None:
        self._read_until = float("-inf")
        self._active: dict[tuple[str, str, str, str], list[Any]] = {}
        self._events: dict[tuple[str, ...], list[float]] = {}

    def read(self, plane: DataPlane, now: float) -> dict[str, object]:
        since = max(self._read_until, now - _REMEMBERED_S)
        news = list(plane.parts[3].recent(since, _MOST_RECORDS))
        self._read_until = news[0].at if news else since
        for one in reversed(news):
            self._note(one)
        self._active = {key: value for key, value in self._active.items() if now - value[0] < _REMEMBERED_S}
        if len(self._active) > _MOST_CLIENTS:
            self._active = dict(nlargest(_MOST_CLIENTS, self._active.items(), key=lambda item: float(item[1][0])))
        return {
            "clients": [[*key, *value] for key, value in sorted(self._active.items())],
            "events": [[*event, *value] for event, value in reversed(self._events.items())],
        }

    def _note(self, one: Happening) -> None:
        if one.what in (*_BROUGHT, *_TAKEN):
            role = one.what if one.what in _TAKEN else "put"
            active = self._active.setdefault((one.partition_id, role, one.task, one.who), [0.0, 0, []])
            active[0], active[1] = one.at, active[1] + one.rows
            active[2] = list(dict.fromkeys([*active[2], *one.fields]))[:_MOST_LISTED]
        elif one.what not in _USUAL and one.reason != _CONSUMED and (one.what, one.reason) != ("cleared", ""):
            event = (one.what, one.partition_id, one.task, one.who, one.reason)
            rows = self._events.pop(event, [0.0, 0])[1] + one.rows
            self._events[event] = [one.at, rows]
            if len(self._events) > _MOST_LISTED:
                del self._events[next(iter(self._events))]
