"""`dataplane why`: why calls wait, the evidence, and the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dataplane_client.cli._output import Format, print_json, print_text
from dataplane_client.cli._server import Server, server_or_exit
from dataplane_client.cli._table import Labelled
from dataplane_client.cli._text import plural
from dataplane_client.records.listings import ExplainedWait, Explanation, explanation
from rl_dataplane.v1 import data_plane_pb2 as pb

_USUAL_WAIT_S = 2.0
"""A claim of a healthy flow may wait as long; the page has the same limit."""
_MOST_PARTITIONS = 32
"""That are asked for tasks which take no rows, if nothing waits."""


def show_waits(
    partition_id: str | None, task: str | None, address: str, output: Format, timeout_s: float, *, everything: bool
) -> float | None:
    """Show the waits. Returns for how many seconds the longest has lasted; None if nothing waits. everything: also show
    waits that have only begun, which a healthy flow has all the time. JSON has them always.
    """
    with server_or_exit(address, timeout_s) as server:
        explained = _explained(server, partition_id or "", task or "")
        if not partition_id and not explained.waits:
            idle = (_explained(server, one.partition_id, "") for one in server.partitions()[:_MOST_PARTITIONS])
            explained = replace(explained, waits=[wait for one in idle for wait in one.waits])
    longest_s = max((wait.age_s or 0.0 for wait in explained.waits if wait.waiting), default=None)
    if output == "json":
        print_json(explained)
        return longest_s
    lasting = [wait for wait in explained.waits if everything or wait.age_s is None or wait.age_s >= _USUAL_WAIT_S]
    begun = len(explained.waits) - len(lasting)
    if not any(wait.waiting for wait in lasting):
        print_text(f"nothing waits for {_USUAL_WAIT_S:.0f} s or longer" if begun else "nothing waits")
    for wait in lasting:
        root = None if wait.behind is None else explained.waits[wait.behind]
        if root not in lasting:
            victims = (one for one in lasting if one.behind is not None and explained.waits[one.behind] is wait)
            print_text(*_lines(wait, victims))
    if begun:
        print_text(f"{plural(begun, 'wait')} of less than {_USUAL_WAIT_S:.0f} s: --all lists them too")
    if explained.unexamined:
        more = plural(explained.unexamined, "more wait was", "more waits were")
        print_text(f"{more} not looked at: name a partition")
    return longest_s


def _explained(server: Server, partition_id: str, task: str) -> Explanation:
    request = pb.ExplainWaitsRequest(partition_id=partition_id, task=task)
    return explanation(server.call("ExplainWaits", request))


def _lines(wait: ExplainedWait, victims: Iterable[ExplainedWait]) -> Iterator[Labelled]:
    """A root, and in a line each the waits behind it."""
    main, *others = wait.causes
    calls = f" ({plural(wait.calls, wait.waiting)} alike)" if wait.calls > 1 else ""
    yield Labelled(_where(wait), f"  {main.cause}{calls}", style="bold")
    yield Labelled("  ", wait.summary, indent=2)
    yield Labelled("  next: ", main.next_step, indent=8)
    for cause in others:
        yield Labelled("  also: ", cause.text, indent=8)
    for victim in victims:
        yield Labelled("  behind it: ", f"{_where(victim)}: {victim.summary.partition(': ')[0]}", indent=13)


def _where(wait: ExplainedWait) -> str:
    return ", ".join(name for name in (wait.partition_id, wait.task_name) if name) or "server"
