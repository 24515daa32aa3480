"""`dataplane samples`, `claims`, `groups` and `sessions`: what a partition holds, who holds it, and who waits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import typer

from dataplane_client.cli._output import Format, show
from dataplane_client.cli._server import Server, answer_of, server_or_exit
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import age_text, count_text, plural, tags_text
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.filters import Where, both, filter_message
from dataplane_client.records.listings import (
    ClaimDescription,
    GivenUpGroup,
    ReservedGroup,
    SampleGroup,
    SamplePage,
    SessionDescription,
    WaitingClaim,
    claim_list,
    group_list,
    known_lengths,
    sample_page,
    session_list,
)
from dataplane_client.records.meta import Tag
from rl_dataplane.v1 import data_plane_pb2 as pb

_LARGEST_PAGE = 1000


@dataclass(frozen=True)
class SampleRow:
    """sequence_length: None if unknown. state: None if no task was named. group: None outside of groups."""

    sample_id: str
    sequence_length: int | None
    state: str | None
    generation: int | None
    tags: Mapping[str, Tag]
    group: SampleGroup | None


def show_samples(request: pb.ListSamplesRequest, most: int, address: str, output: Format, timeout_s: float) -> None:
    """Show the rows that the request asks for, at most `most` of them, page by page."""
    rows: list[SampleRow] = []
    with server_or_exit(address, timeout_s) as server:
        more = True
        while more and len(rows) < most:
            request.page_size = min(_LARGEST_PAGE, most - len(rows))
            answer = server.call("ListSamples", request)
            page = sample_page(answer, request.partition_id, request.task or None)
            rows += _rows_of(page, known_lengths(answer))
            request.page_token, more = page.next_page or 0, page.next_page is not None
        absence = "" if rows else _absence(server, request)
    table = _sample_table(rows, bool(request.task)) if rows else f"no samples{absence}"
    show(output, rows, table, *([f"there are more than {most:,}: see --limit"] if more else []))


def samples_request(
    partition_id: str, task: str | None, states: Sequence[str], tags: Sequence[str], where: str | None
) -> pb.ListSamplesRequest:
    """tags: KEY=VALUE each. where: an expression. Wrong flags end the command with exit code 2."""
    if states and task is None:
        raise typer.BadParameter("--state needs --task: a row has one state for each task")
    of_tags = (parsed_filter(dict([_parsed_tag(tag)]), "--tag") for tag in tags)
    chosen = reduce(both, of_tags, parsed_filter(where))
    return pb.ListSamplesRequest(partition_id=partition_id, task=task or "", states=states, where=chosen)


def parsed_filter(where: Where | None, flag: str = "--where") -> pb.Filter:
    """A filter that a flag has; a wrong one ends the command with exit code 2."""
    try:
        return filter_message(where, flag) or pb.Filter()
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from None


def _parsed_tag(text: str) -> tuple[str, Tag]:
    """A number, true, false and null as in JSON; any other text is a str, also in quotation marks."""
    key, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"--tag takes KEY=VALUE, got {text!r}")
    try:
        parsed = json.loads(value)
    except ValueError:
        return key, value
    return key, parsed if isinstance(parsed, str | int | float | bool | None) else value


def _absence(server: Server, request: pb.ListSamplesRequest) -> str:
    """Which tags of the filter no row has: they may be mistyped. Filters for the absence of a tag do not count."""
    compared = [term for term in request.where.terms if term.operator != pb.FILTER_OPERATOR_IS_NULL]
    absent = []
    for tag in dict.fromkeys(term.tag for term in compared if term.tag):
        present = parsed_filter(f"tags[{tag!r}] is not null")
        asked = pb.ListSamplesRequest(partition_id=request.partition_id, where=present, page_size=1)
        if not server.call("ListSamples", asked).sample_ids:
            absent.append(repr(tag))
    return f": no row has the tag {' or '.join(absent)}" if absent else ""


def _rows_of(page: SamplePage, lengths: Sequence[int | None]) -> Iterable[SampleRow]:
    meta, unknown = page.meta, [None] * page.meta.size
    columns = (lengths, page.states or unknown, meta.generations or unknown, meta.tags or [])
    return map(SampleRow, meta.sample_ids, *columns, page.groups)


def _sample_table(rows: Sequence[SampleRow], with_states: bool) -> Table:
    with_groups = any(row.group for row in rows)
    names = [*(["state"] if with_states else []), *(["group"] if with_groups else [])]
    table = Table("sample", ">tokens", *names, "tags", sentences=True)
    for row in rows:
        state = [row.state or ""] if with_states else []
        group = [_group_text(row.group)] if with_groups else []
        table.add_row(row.sample_id, count_text(row.sequence_length), *state, *group, tags_text(row.tags))
    return table


def _group_text(group: SampleGroup | None) -> str:
    if group is None:
        return ""
    return f"{group.group_id} (reserved by {group.client or 'no session'})" if group.reserved else group.group_id


def show_claims(partition_id: str | None, task: str | None, address: str, output: Format, timeout_s: float) -> None:
    request = pb.ListClaimsRequest(partition_id=partition_id or "", task=task or "")
    listed = claim_list(answer_of(address, timeout_s, "ListClaims", request))
    claims = _claim_table(listed.open) if listed.open else "no open claims"
    show(output, listed, claims, "", _wait_table(listed.waiting) if listed.waiting else "no claim waits")


def _claim_table(claims: Iterable[ClaimDescription]) -> Table:
    table = Table("client", "partition", "task", ">rows", ">held for", "claim", "shard", spare=("shard", "claim"))
    for claim in claims:
        shard = "" if claim.step is None else f"step {claim.step}, rank {claim.dp_rank}"
        held = (f"{claim.rows:,}", age_text(claim.age_s))
        table.add_row(", ".join(claim.clients), claim.partition_id, claim.task_name, *held, claim.claim_id, shard)
    return table


def _wait_table(claims: Iterable[WaitingClaim]) -> Table:
    table = Table("client", "partition", "task", ">waits", ">wants", ">ready", "missing", sentences=True)
    for claim in claims:
        counts = (age_text(claim.age_s), f"{claim.min_size:,}", f"{claim.ready:,}")
        table.add_row(claim.client, claim.partition_id, claim.task_name, *counts, _missing_text(claim))
    return table


def _missing_text(claim: WaitingClaim) -> str:
    lacking = (f"{field} in {plural(rows, 'row')}" for field, rows in claim.lacking_rows.items())
    return ", ".join(lacking) or "untaken rows"


def show_groups(partition_id: str, address: str, output: Format, timeout_s: float) -> None:
    request = pb.ListGroupsRequest(partition_id=partition_id)
    listed = group_list(answer_of(address, timeout_s, "ListGroups", request))
    groups = _reserved_table(listed.groups) if listed.groups else "no reserved groups"
    more = [f"{listed.reserved:,} groups are reserved"] if len(listed.groups) < listed.reserved else []
    given_up = ("", _given_up_table(listed.given_up)) if listed.given_up else ()
    show(output, listed, groups, *more, *given_up)


def _reserved_table(groups: Iterable[ReservedGroup]) -> Table:
    table = Table("group", "client", ">age", ">rows", ">failed", ">deadline in", "waits for", sentences=True)
    for group in groups:
        deadline = "" if group.deadline_in_s is None else age_text(max(group.deadline_in_s, 0.0))
        counts = (age_text(group.age_s), f"{group.rows:,}", f"{group.failed_rows:,}", deadline)
        table.add_row(group.group_id, group.client, *counts, _waits_for(group))
    return table


def _waits_for(group: ReservedGroup) -> str:
    if not group.incomplete_rows:
        return "its commit" if group.rows else "its first row"
    named = ", ".join(group.incomplete_sample_ids)
    more = group.incomplete_rows - len(group.incomplete_sample_ids)
    return f"{named} and {more:,} more" if more else named


def _given_up_table(groups: Iterable[GivenUpGroup]) -> Table:
    table = Table("given up", ">attempts", "last reason", sentences=True)
    for group in groups:
        table.add_row(group.group_id, f"{group.attempts:,}", group.reason)
    return table


def show_sessions(address: str, output: Format, timeout_s: float) -> None:
    listed = session_list(answer_of(address, timeout_s, "ListSessions", pb.ListSessionsRequest()))
    show(output, listed, _session_table(listed) if listed else "no open sessions")


def _session_table(sessions: Iterable[SessionDescription]) -> Table:
    table = Table("client", ">claims", ">rows", ">groups", ">silent for", ">grace", "session", spare=("session",))
    for session in sessions:
        held = (f"{count:,}" for count in (session.claims, session.rows, session.groups))
        table.add_row(session.client, *held, age_text(session.silent_s), age_text(session.grace_s), session.session_id)
    return table
