"""Every metric of the server: its name, kind, labels and meaning. Nothing is exported that is not here.

docs/metrics.md is made from this table. Names follow Prometheus: base units, `_total` for counters and for them alone.
Label sets are bounded: verbs, transports, codes, reasons and states by the contract, partitions and tasks by the core's
limits (1,024 partitions of at most 64 tasks); names that callers make up become no labels until they are registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
"""From a small call through shared memory (0.2 ms) to a claim that waits for a whole generation of rollouts."""

LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""From what any call costs (1 ms) to a server that a session's grace (10 s) could not survive."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. buckets: upper bounds in seconds, of histograms alone."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_P = ("partition",)
_T = ("partition", "task")

SERVER = (
    MetricSpec("dataplane_build_info", "gauge", "Always 1; the label tells the server's version.", ("version",)),
    MetricSpec("dataplane_serving", "gauge", "1 while the server takes calls, 0 while it starts or drains."),
    MetricSpec("dataplane_memory_budget_bytes", "gauge", "Budget for the bytes of values."),
    MetricSpec(
        "dataplane_memory_used_bytes",
        "gauge",
        "Bytes of the budget in use: values of resident rows, puts under way, cleared rows that a reader still holds.",
    ),
    MetricSpec(
        "dataplane_memory_largest_free_bytes",
        "gauge",
        "The longest free piece of the budget; far below what is free, memory is fragmented.",
    ),
    MetricSpec("dataplane_memory_free_ranges", "gauge", "Free pieces of the budget."),
    MetricSpec("dataplane_max_rows", "gauge", "Resident rows that the server keeps at most."),
    MetricSpec("dataplane_partitions", "gauge", "Registered partitions."),
    MetricSpec("dataplane_open_claims", "gauge", "Claims handed out and neither committed nor released."),
    MetricSpec("dataplane_waiting_claims", "gauge", "Claims that wait for rows."),
    MetricSpec("dataplane_waiting_puts", "gauge", "Puts and commits that wait for space."),
    MetricSpec(
        "dataplane_longest_put_wait_seconds",
        "gauge",
        "For how long the put or commit that has waited longest for space has waited; 0 when none waits.",
    ),
    MetricSpec("dataplane_sessions", "gauge", "Sessions that live: clients that hold, or held, claims or groups."),
    MetricSpec("dataplane_sessions_opened_total", "counter", "Sessions opened."),
    MetricSpec(
        "dataplane_sessions_ended_total",
        "counter",
        "Sessions ended, by how: closed by their client, or expired (nothing was heard of it).",
        ("how",),
    ),
    MetricSpec("dataplane_attached_clients", "gauge", "Clients of this host that map the memory."),
    MetricSpec("dataplane_scrape_seconds", "gauge", "How long the scrape before this one took to answer."),
)
"""The server as a whole, read when it is scraped."""

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
        "Duration of calls, waits included, by verb and transport.",
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
        "How long puts and commits waited that had to wait for space, also those that were refused in the end.",
        (),
        CALL_SECONDS,
    ),
    MetricSpec(
        "dataplane_event_loop_lag_seconds",
        "histogram",
        "How much later than asked for the event loop woke up, four times a second: what every call waits for.",
        (),
        LAG_SECONDS,
    ),
)
"""What the service counts as calls end."""

PARTITIONS = (
    MetricSpec("dataplane_rows", "gauge", "Resident rows.", _P),
    MetricSpec("dataplane_stored_bytes", "gauge", "Bytes of the values of resident rows.", _P),
    MetricSpec("dataplane_oldest_row_age_seconds", "gauge", "Age of the oldest resident row; absent without rows.", _P),
    MetricSpec(
        "dataplane_newest_weight_version",
        "gauge",
        "The greatest weight version that rows (by their tag) or groups have named; absent until one has.",
        _P,
    ),
    MetricSpec("dataplane_open_groups", "gauge", "Groups that are reserved and not finished.", _P),
    MetricSpec("dataplane_rows_put_total", "counter", "Rows created by puts and reservations.", _P),
    MetricSpec(
        "dataplane_rows_removed_total",
        "counter",
        "Rows that are gone, by why: consumed (cleared when every task had consumed them), cleared, rolled_back.",
        ("partition", "reason"),
    ),
    MetricSpec("dataplane_puts_total", "counter", "Puts applied.", _P),
    MetricSpec("dataplane_put_rows_total", "counter", "Rows named by applied puts, created or not.", _P),
    MetricSpec("dataplane_put_bytes_total", "counter", "Bytes of values in applied puts.", _P),
    MetricSpec("dataplane_reads_total", "counter", "Reads begun.", _P),
    MetricSpec("dataplane_read_rows_total", "counter", "Rows read, each as often as it was.", _P),
    MetricSpec("dataplane_read_bytes_total", "counter", "Bytes of values read.", _P),
    MetricSpec("dataplane_clears_total", "counter", "Clears applied.", _P),
)
"""One series for each partition, gone when it is dropped."""

TASKS = (
    MetricSpec(
        "dataplane_task_rows",
        "gauge",
        "Resident rows by state: untaken, claimed, consumed, delayed (by a release) or dead (given up).",
        ("partition", "task", "state"),
    ),
    MetricSpec(
        "dataplane_task_ready_rows",
        "gauge",
        "Rows that a claim could take now, by the field set that claims named last; absent until one has.",
        _T,
    ),
    MetricSpec(
        "dataplane_task_oldest_untaken_age_seconds",
        "gauge",
        "Age of the oldest row that the task has not taken; absent without such rows.",
        _T,
    ),
    MetricSpec(
        "dataplane_task_weight_version_lag",
        "gauge",
        "Newest weight version of the partition less the oldest of the rows that the task has not taken.",
        _T,
    ),
    MetricSpec("dataplane_task_waiting_claims", "gauge", "Claims that wait for rows.", _T),
    MetricSpec(
        "dataplane_task_longest_wait_seconds",
        "gauge",
        "For how long the claim that has waited longest has waited; 0 when none waits.",
        _T,
    ),
    MetricSpec("dataplane_claims_total", "counter", "Claims granted.", _T),
    MetricSpec("dataplane_task_claim_wait_seconds_total", "counter", "Time that granted claims waited for rows.", _T),
    MetricSpec("dataplane_commits_total", "counter", "Claims committed.", _T),
    MetricSpec("dataplane_commit_bytes_total", "counter", "Bytes of values in the columns of commits.", _T),
    MetricSpec("dataplane_rows_consumed_total", "counter", "Rows consumed since the partition was registered.", _T),
    MetricSpec("dataplane_row_deliveries_total", "counter", "Rows handed out, each as often as it was.", _T),
    MetricSpec(
        "dataplane_row_deliveries_ended_total",
        "counter",
        "Deliveries of rows that have ended, by how: committed, released, expired (the session died), reset, cleared "
        "(while claimed), abandoned (nobody took the answer).",
        ("partition", "task", "how"),
    ),
    MetricSpec(
        "dataplane_task_state_seconds_total",
        "counter",
        "For how long the task has been in each state: serving (rows are claimed), waiting_for_producers (claims wait, "
        "too few rows are ready), waiting_for_consumers (rows are ready, nobody holds or wants any), waiting_by_policy "
        "(claims wait for rows that are delayed or in unfinished groups), idle.",
        ("partition", "task", "state"),
    ),
)
"""One series for each task of a partition."""

CATALOG = (*SERVER, *CALLS, *PARTITIONS, *TASKS)
