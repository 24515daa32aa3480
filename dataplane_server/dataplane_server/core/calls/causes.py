"""Why calls wait: a stable code for each cause, what it means, and what to do next.

`CAUSES` is the only place for these words. Findings, refusals of calls that waited too long (metadata `cause`), the
metric dataplane_waiting_cause and docs/why.md take them from here. A code that was published keeps its meaning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Cause = Literal[
    "draining",
    "queue_order",
    "missing_field",
    "stale_rows",
    "unknown_version",
    "task_filter",
    "claim_filter",
    "incomplete_groups",
    "broken_groups",
    "delayed_rows",
    "rank_missing",
    "claims_held",
    "dead_letters",
    "put_again",
    "never_put",
    "end_of_data",
    "node_lost",
    "silent_producer",
    "slow_producer",
    "rows_budget",
    "bytes_budget",
    "versions_budget",
    "memory_budget",
    "memory_held",
    "not_cleared",
    "consumer_gone",
    "weight_version_pace",
    "version_not_advanced",
    "draw_band",
    "band_too_narrow",
]
Waiting = Literal["", "claim", "put", "commit", "group", "draw"]
"""What waits; empty for a task that takes no rows while nothing waits, and for the server."""


class Advice(NamedTuple):
    """next_step: PARTITION, TASK and FIELD stand for the names of a finding."""

    meaning: str
    next_step: str


CAUSES: Mapping[Cause, Advice] = {
    "draining": Advice(
        "The server shuts down. It has ended every call that waited.",
        "Wait until a server is back: clients repeat their calls until their deadline.",
    ),
    "queue_order": Advice(
        "There is enough for this call, but another call came before it. Lines are first come, first served; only "
        "writes that wait for memory may pass larger ones.",
        "Read why the call before it waits; let that one ask for less, or end its client.",
    ),
    "missing_field": Advice(
        "Rows lack a field that the claim requires.",
        "Look at the client that writes FIELD: whether it lives, and whether it puts the field under this name.",
    ),
    "stale_rows": Advice(
        "Rows are of weight versions older than the task's max_staleness allows.",
        "Give the generators the present weights, or raise max_staleness of TASK with set_policies. The old rows stay "
        "until you clear them, such as by set_weight_version(retire_below=...).",
    ),
    "unknown_version": Advice(
        "The task has a max_staleness, and rows name no weight version.",
        "Put rows with the tag weight_version (an int), or remove the bound of TASK with set_policies.",
    ),
    "task_filter": Advice(
        "Rows do not fit the filter in the policy of the task.",
        "Compare `dataplane samples PARTITION` with the filter. Set the tags that it names, or set another filter.",
    ),
    "claim_filter": Advice(
        "Rows do not fit the filter of the claim itself (`where`).",
        "Compare `dataplane samples PARTITION` with the filter. Set the tags that it names, or claim with another one.",
    ),
    "incomplete_groups": Advice(
        "Rows belong to groups that are reserved and not finished.",
        "Look at the client that fills the groups. If it hangs, end it: its groups end with its session.",
    ),
    "broken_groups": Advice(
        "The claim wants whole groups, and other rows of these groups were taken.",
        "Claim the rest without whole_groups, or make all claimable again: `dataplane reset PARTITION TASK --all`.",
    ),
    "delayed_rows": Advice(
        "A release with a delay withholds rows.",
        "Wait until the delay is over, or `dataplane reset PARTITION TASK SAMPLE`.",
    ),
    "rank_missing": Advice(
        "A step keeps the rows of a data-parallel rank that has not claimed its shard, or has given it back.",
        "Look at that rank: whether it lives, and claims the same steps. To give its rows to others: `dataplane reset "
        "PARTITION TASK SAMPLE`, which ends the step.",
    ),
    "claims_held": Advice(
        "Open claims hold the rows.",
        "Look at the client that holds them. If it hangs, end it: its claims end with its session.",
    ),
    "dead_letters": Advice(
        "Rows failed max_deliveries times, and no claim gets them any more.",
        "Read the reasons: `dataplane dead-letters PARTITION TASK`. Then `dataplane reset PARTITION TASK SAMPLE`.",
    ),
    "put_again": Advice(
        "Rows were put again under the same ids after the task had consumed them. It does not get them again.",
        "Clear the rows before their ids are put again, or use new ids. To give them out again, reset them: "
        "`dataplane reset PARTITION TASK SAMPLE...`.",
    ),
    "never_put": Advice(
        "No row was ever put into the partition.",
        "Start the producers, and check that they put into PARTITION at this server.",
    ),
    "end_of_data": Advice(
        "No more rows come: the partition is closed, or all announced rows (num_samples) were put.",
        "End the consumer, or let producers put more. Close a finished partition: claims then end with EndOfDataError.",
    ),
    "node_lost": Advice(
        "Rows were lost with a node of the cluster, and none has come since.",
        "Make them again: histories of rows and `dataplane status` name the node.",
    ),
    "silent_producer": Advice(
        "No put has come since the call began to wait.",
        "Look at the producers of PARTITION: whether they live, and what they wait for.",
    ),
    "slow_producer": Advice(
        "Puts come, but fewer rows than the task wants.",
        "Use more producers or shorter rollouts, or claim fewer rows at a time.",
    ),
    "rows_budget": Advice(
        "The partition has max_rows rows, or they are on their way.",
        "Let consumers of PARTITION be faster, or raise max_rows with set_policies.",
    ),
    "bytes_budget": Advice(
        "The values of the partition take max_bytes, or would with this put.",
        "Let consumers of PARTITION be faster, or raise max_bytes with set_policies.",
    ),
    "versions_budget": Advice(
        "The rows of the partition span max_versions weight versions.",
        "Let tasks take their oldest rows first (order oldest_version), or retire these: "
        "set_weight_version(..., retire_below=V).",
    ),
    "memory_budget": Advice(
        "The server's memory budget has no space for the values.",
        "Let consumers be faster, or raise --memory.",
    ),
    "memory_held": Advice(
        "Clients hold most of the memory budget, which no clear frees: puts under way, or cleared rows that they view.",
        "End the clients that hold it (`dataplane status`), or raise --memory.",
    ),
    "not_cleared": Advice(
        "Every task is done with rows that are still here.",
        "Clear them with clear_samples, or register PARTITION with clear_when_consumed=True.",
    ),
    "consumer_gone": Advice(
        "A task has rows before it, and no client takes them: its last client is gone, or there was none.",
        "Start the consumer of TASK. If none is meant to come, register PARTITION without the task.",
    ),
    "weight_version_pace": Advice(
        "A task with rows_per_version has as many rows before it as it may.",
        "Nothing, if the trainer works: it is slower than its producers. Else look at the trainer.",
    ),
    "version_not_advanced": Advice(
        "A task with rows_per_version has taken the rows of the weight version, and the version has not moved since.",
        "Let the trainer call set_weight_version after each step, or raise rows_per_version to what a step takes. If "
        "it has begun again at this version, register PARTITION with replace=True, which resets its tasks.",
    ),
    "draw_band": Advice(
        "A put or draw would leave the band of samples_per_insert: the other side has to move first.",
        "Look at the other side: puts wait for draws, and draws wait for puts.",
    ),
    "band_too_narrow": Advice(
        "Puts and draws wait for each other: neither can go on within the band.",
        "Widen the band with set_policies: `most - least` must take a put and a draw together.",
    ),
}

_NAMES = re.compile("PARTITION|TASK|FIELD")


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of a wait. text: the evidence, as a clause. numbers: the same by name, for programs. field_name: which
    one rows lack. partition_id, task: that it is about, if these are not those of the wait. waiting: the calls of that
    partition whose wait this is, if the wait is there for no other reason.
    """

    cause: Cause
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    field_name: str = ""
    partition_id: str = ""
    task: str = ""
    waiting: Waiting = ""


@dataclass(frozen=True, slots=True)
class ExplainedWait:
    """Calls of one kind that wait for the same, and why: the main cause first. client_name: of the call that has waited
    for longest, age_s seconds (None: not known). wanted: rows or groups, or bytes of values. summary: a sentence.
    behind: the place in the explanation, from 0, of the wait that has to end first; None for a root.
    """

    partition_id: str
    task: str
    waiting: Waiting
    client_name: str
    calls: int
    age_s: float | None
    wanted: int
    summary: str
    findings: tuple[Finding, ...]
    behind: int | None = None

    def next_step(self, finding: Finding) -> str:
        """What to do about a finding, with its names."""
        partition, task = finding.partition_id or self.partition_id, finding.task or self.task
        names = {"PARTITION": partition, "TASK": task, "FIELD": finding.field_name}
        step = CAUSES[finding.cause].next_step
        return _NAMES.sub(lambda name: shlex.quote(names[name[0]]) if names[name[0]] else name[0], step)


@dataclass(frozen=True, slots=True)
class Explanation:
    """waits: those that have lasted longest first, each followed by those behind it. unexamined: how many more there
    are.
    """

    waits: tuple[ExplainedWait, ...]
    unexamined: int = 0


def counted(number: int, unit: str, verb: str = "") -> str:
    """1 row, 2 rows; with a verb 1 row is, 2 rows are."""
    if number == 1:
        unit, verb = unit.removesuffix("s"), {"are": "is", "were": "was"}.get(verb, verb)
    return f"{number} {unit} {verb}".rstrip()


def seconds_text(seconds: float) -> str:
    """A time for people, with tenths below ten seconds."""
    return f"{max(seconds, 0.0):.1f} s" if seconds < 10 else f"{seconds:.0f} s"
