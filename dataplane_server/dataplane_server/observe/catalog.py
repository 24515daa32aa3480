"""All metrics of the server: name, kind, labels and meaning. The server exports no others.

docs/metrics.md is generated from this table. Names follow Prometheus: base units, `_total` for counters and only for
counters. Label sets are bounded: the contract bounds verbs, transports, codes, reasons and states; the core's limits
bound partitions and tasks (1,024 partitions of at most 64 tasks). Names from callers become labels only once they are
registered; of clients, only the ten that hold most are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from dataplane_server.core.state.partition import REASONS
from dataplane_server.core.tasks.deliveries import How
from dataplane_server.core.tasks.task_states import STATE_NAMES, TASK_STATES

Kind = Literal["counter", "gauge", "histogram"]

CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
"""From a small call through shared memory (0.2 ms) to a claim that waits for a whole generation of rollouts."""

LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""From the cost of any call (1 ms) to a pause that exceeds a session's grace (10 s)."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. buckets: upper bounds in seconds; histograms only. figures: of partitions or tasks (`stats.figures`),
    the one that it exports, or those by the value of its last label.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    figures: str | Mapping[str, str] = ""


_P = ("partition",)
_T = ("partition", "task")

SERVER = (
    MetricSpec("dataplane_build_info", "gauge", "Always 1; the label is the server's version.", ("version",)),
    MetricSpec("dataplane_serving", "gauge", "1 while the server accepts calls, 0 while it drains."),
    MetricSpec(
        "dataplane_unhealthy",
        "gauge",
        "1 while the server is not healthy for this reason, which `dataplane status` explains, else 0: draining, "
        "memory_held (clients hold more than half of the budget), memory_full (and puts wait), puts_wait (for more "
        "than 30 s), row_limit (99 % of --max-rows), nodes_silent.",
        ("reason",),
    ),
    MetricSpec(
        "dataplane_memory_budget_bytes",
        "gauge",
        "Budget for the bytes of values: in a cluster, that of all nodes together.",
    ),
    MetricSpec(
        "dataplane_memory_used_bytes",
        "gauge",
        "Bytes of the budget in use: values of resident rows, puts under way, cleared rows that a reader still holds.",
    ),
    MetricSpec(
        "dataplane_memory_largest_free_bytes",
        "gauge",
        "The longest free range of the budget: in a cluster, those of all nodes together. If it is far below the free "
        "bytes, memory is fragmented.",
    ),
    MetricSpec(
        "dataplane_memory_held_bytes",
        "gauge",
        "Bytes of the budget in use that no clear frees: puts under way, cleared rows that clients still read.",
    ),
    MetricSpec(
        "dataplane_client_held_bytes",
        "gauge",
        "What clients hold of the budget, by name and kind: lent (to puts under way), leased (what they read or view; "
        "rows may have it, too), owed (what was cleared or replaced of that; counts for each client that reads it). "
        "The ten clients that hold most, and all others together as others.",
        ("client", "kind"),
    ),
    MetricSpec("dataplane_memory_free_ranges", "gauge", "Free ranges of the budget."),
    MetricSpec("dataplane_max_rows", "gauge", "The maximum number of resident rows."),
    MetricSpec("dataplane_partitions", "gauge", "Registered partitions."),
    MetricSpec("dataplane_open_claims", "gauge", "Claims granted and not yet ended."),
    MetricSpec("dataplane_waiting_claims", "gauge", "Claims that wait for rows."),
    MetricSpec("dataplane_waiting_puts", "gauge", "Puts and commits that wait for space."),
    MetricSpec(
        "dataplane_calls_waiting_for_room",
        "gauge",
        "Puts, groups and draws that wait for room in their partition, by its FlowPolicy or the pace of a task.",
    ),
    MetricSpec(
        "dataplane_longest_put_wait_seconds",
        "gauge",
        "The longest time that a put or commit has been waiting for space; 0 if none waits.",
    ),
    MetricSpec("dataplane_sessions", "gauge", "Open sessions: clients that hold, or held, claims or groups."),
    MetricSpec("dataplane_sessions_opened_total", "counter", "Sessions opened."),
    MetricSpec(
        "dataplane_sessions_ended_total",
        "counter",
        "Sessions ended, by how: closed by the client, or expired (no heartbeat within the grace).",
        ("how",),
    ),
    MetricSpec("dataplane_attached_clients", "gauge", "Clients of this host that map the arena."),
    MetricSpec("dataplane_scrape_seconds", "gauge", "Duration of the previous scrape."),
)
"""The server as a whole, read at the scrape."""

CALLS = (
    MetricSpec(
        "dataplane_calls_total",
        "counter",
        "Calls ended, by verb, transport and status code.",
        ("verb", "transport", "code"),
    ),
    MetricSpec("dataplane_refusals_total", "counter", "Calls refused, by verb and reason.", ("verb", "reason")),
    MetricSpec(
        "dataplane_call_seconds",
        "histogram",
        "Duration of calls, including waits, by verb and transport.",
        ("verb", "transport"),
        CALL_SECONDS,
    ),
    MetricSpec(
        "dataplane_call_value_bytes_total",
        "counter",
        "Bytes of values that calls carried, by verb and transport.",
        ("verb", "transport"),
    ),
    MetricSpec(
        "dataplane_claim_wait_seconds",
        "histogram",
        "How long granted claims waited for rows.",
        (),
        CALL_SECONDS,
    ),
    MetricSpec(
        "dataplane_put_wait_seconds",
        "histogram",
        "How long puts and commits waited, for space or for room in their partition, if they had to, including those "
        "refused in the end.",
        (),
        CALL_SECONDS,
    ),
    MetricSpec(
        "dataplane_event_loop_lag_seconds",
        "histogram",
        "How much later than requested the event loop woke up, measured four times a second; a delay for every call.",
        (),
        LAG_SECONDS,
    ),
)
"""Counted by the service as calls end."""

PARTITIONS = (
    MetricSpec("dataplane_rows", "gauge", "Resident rows.", _P, figures="rows"),
    MetricSpec("dataplane_stored_bytes", "gauge", "Bytes of the values of resident rows.", _P, figures="size_bytes"),
    MetricSpec(
        "dataplane_oldest_row_age_seconds",
        "gauge",
        "Age of the oldest resident row; absent if there is none.",
        _P,
        figures="oldest_row_age_s",
    ),
    MetricSpec(
        "dataplane_newest_weight_version",
        "gauge",
        "The greatest weight version named by rows (in their tag) or groups; absent until one is named.",
        _P,
        figures="newest_weight_version",
    ),
    MetricSpec(
        "dataplane_weight_version",
        "gauge",
        "The weight version that staleness is measured against: the one that the trainer has set, else the greatest "
        "that rows or groups name; absent until there is one.",
        _P,
        figures="weight_version",
    ),
    MetricSpec("dataplane_open_groups", "gauge", "Reserved groups that are not finished.", _P, figures="open_groups"),
    MetricSpec("dataplane_rows_put_total", "counter", "Rows created by puts and reservations.", _P, figures="rows_put"),
    MetricSpec(
        "dataplane_rows_removed_total",
        "counter",
        "Rows removed, by reason: consumed (cleared after every task had consumed them), cleared, rolled_back, retired "
        "(with their weight version), stale or filtered (dropped by the policy of a task), evicted (for new rows), "
        "lost (with a node), failed (rollouts that failed, or were not complete at the deadline of their group).",
        ("partition", "reason"),
        figures={why: f"removed_{why}" for why in REASONS},
    ),
    MetricSpec("dataplane_puts_total", "counter", "Puts applied.", _P, figures="puts"),
    MetricSpec("dataplane_put_rows_total", "counter", "Rows in applied puts, created or not.", _P, figures="put_rows"),
    MetricSpec("dataplane_put_bytes_total", "counter", "Bytes of values in applied puts.", _P, figures="put_bytes"),
    MetricSpec(
        "dataplane_deduplicated_bytes_total",
        "counter",
        "Bytes of values put once that were there already.",
        _P,
        figures="deduplicated_bytes",
    ),
    MetricSpec("dataplane_reads_total", "counter", "Reads begun.", _P, figures="reads"),
    MetricSpec(
        "dataplane_read_rows_total", "counter", "Rows read; a row counts each time it is read.", _P, figures="read_rows"
    ),
    MetricSpec("dataplane_read_bytes_total", "counter", "Bytes of values read.", _P, figures="read_bytes"),
    MetricSpec(
        "dataplane_drawn_rows_total", "counter", "Rows drawn; a row counts each time.", _P, figures="drawn_rows"
    ),
    MetricSpec("dataplane_clears_total", "counter", "Clears applied.", _P, figures="clears"),
    MetricSpec(
        "dataplane_groups_ended_total",
        "counter",
        "Reserved groups that ended, by how: committed, partial (committed without rows that failed or were late), "
        "aborted (by their client, with its session, or with their rows), late (removed at their deadline).",
        ("partition", "how"),
        figures={how: f"groups_{how}" for how in ("committed", "partial", "aborted", "late")},
    ),
)
"""One series for each partition, removed when it is dropped."""

TASKS = (
    MetricSpec(
        "dataplane_task_rows",
        "gauge",
        "Resident rows by state: untaken, claimed, consumed, delayed (by a release) or dead (dead letters).",
        ("partition", "task", "state"),
        figures={state: state for state in STATE_NAMES},
    ),
    MetricSpec(
        "dataplane_task_ready_rows",
        "gauge",
        "Rows that a claim could take now, by the field set of the latest claim; absent until there was a claim.",
        _T,
        figures="ready",
    ),
    MetricSpec(
        "dataplane_task_oldest_untaken_age_seconds",
        "gauge",
        "Age of the oldest row that the task has not taken; absent if there is none.",
        _T,
        figures="oldest_untaken_age_s",
    ),
    MetricSpec(
        "dataplane_task_weight_version_lag",
        "gauge",
        "Newest weight version of the partition minus the oldest among the rows that the task has not taken.",
        _T,
        figures="weight_version_lag",
    ),
    MetricSpec("dataplane_task_waiting_claims", "gauge", "Claims that wait for rows.", _T, figures="waiting_claims"),
    MetricSpec(
        "dataplane_task_longest_wait_seconds",
        "gauge",
        "The longest time that a claim has been waiting; 0 if none waits.",
        _T,
        figures="longest_wait_s",
    ),
    MetricSpec("dataplane_claims_total", "counter", "Claims granted.", _T, figures="claims"),
    MetricSpec(
        "dataplane_task_claim_wait_seconds_total",
        "counter",
        "Time that granted claims waited for rows.",
        _T,
        figures="claim_wait_s",
    ),
    MetricSpec("dataplane_commits_total", "counter", "Claims committed.", _T, figures="commits"),
    MetricSpec(
        "dataplane_commit_bytes_total",
        "counter",
        "Bytes of values in the columns of commits.",
        _T,
        figures="commit_bytes",
    ),
    MetricSpec(
        "dataplane_rows_consumed_total",
        "counter",
        "Rows consumed since the partition was registered.",
        _T,
        figures="rows_consumed",
    ),
    MetricSpec(
        "dataplane_row_deliveries_total",
        "counter",
        "Rows granted; a row counts at each delivery.",
        _T,
        figures="deliveries",
    ),
    MetricSpec(
        "dataplane_row_deliveries_versioned_total",
        "counter",
        "Rows granted whose weight version is known; a row counts at each delivery.",
        _T,
        figures="versioned",
    ),
    MetricSpec(
        "dataplane_row_deliveries_versions_behind_total",
        "counter",
        "How many weight versions these rows were behind the partition's when they were granted, added up.",
        _T,
        figures="versions_behind",
    ),
    MetricSpec(
        "dataplane_row_deliveries_ended_total",
        "counter",
        "Deliveries of rows that have ended, by how: committed, released, expired (with the session), reset, cleared "
        "(while claimed), abandoned (the caller did not take the answer).",
        ("partition", "task", "how"),
        figures={how: f"ended_{how}" for how in get_args(How)},
    ),
    MetricSpec(
        "dataplane_task_state_seconds_total",
        "counter",
        "Time that the task has spent in each state: serving (rows are claimed, no claim waits), waiting (claims wait, "
        "for what dataplane_waiting_cause says), waiting_for_consumers (rows are ready, none is claimed, no claim "
        "waits), idle.",
        ("partition", "task", "state"),
        figures={state: f"{state}_s" for state in TASK_STATES},
    ),
)
"""One series for each task of a partition."""

WAITS = MetricSpec(
    "dataplane_waiting_cause",
    "gauge",
    "Calls that wait, by the main cause as `dataplane why` names it (docs/why.md); task is empty for puts, commits, "
    "groups and draws. Of the 64 longest waits; the others together are not_examined. Absent while nothing waits.",
    ("partition", "task", "cause"),
)

CATALOG = (*SERVER, *CALLS, *PARTITIONS, *TASKS, WAITS)
