"""What a claim is good for."""

from __future__ import annotations

import time
from collections import Counter

from dataplane_conformance.callers import FailedError
from dataplane_conformance.lab import BrokenError, Lab, promise
from dataplane_conformance.system import Client, RefusedError


@promise()
def a_row_has_one_owner_at_a_time(lab: Lab) -> None:
    """Three clients claim at once, and nobody commits before all rows are gone."""
    space = lab.space()
    callers = [lab.caller(space) for _ in range(3)]
    for caller in callers:
        lab.put(caller, lab.rows(16))
    held: list[str] = []
    while True:
        for caller in callers:
            caller.begin("claim", "train", 5, 0.3, 1)
        claims = [claimed for caller in callers if (claimed := caller.end())]
        if not claims:
            break
        held += [row for claimed in claims for row in claimed.ids]
        if len(held) > 2 * len(lab.outcome.tried):
            break  # it would go on for ever
    lab.account(held)


@promise("tasks")
def rows_that_one_task_consumed_are_there_for_another(lab: Lab) -> None:
    space = lab.space(tasks=("train", "score"))
    caller, other = lab.caller(space), lab.caller(space)
    for _ in range(2):
        lab.put(caller, lab.rows(8))
    lab.account(lab.drain(caller))
    lab.account(lab.drain(other, task="score"))


@promise("lease")
def committed_rows_are_not_delivered_again(lab: Lab) -> None:
    space = lab.space(lease_s=1.0)
    caller, other = lab.caller(space), lab.caller(space)
    lab.put(caller, lab.rows(8))
    delivered = lab.drain(caller)
    caller.kill()  # what it held would come back
    lab.account(delivered + lab.drain(other, for_s=2.0))


@promise("lease")
def a_commit_that_is_repeated_is_one_commit(lab: Lab) -> None:
    space = lab.space()
    caller = lab.caller(space)
    lab.put(caller, lab.rows(2))
    claimed = caller("claim", "train", 1, 5.0, 1)
    caller("commit", claimed.name)
    try:
        caller("commit", claimed.name)
    except (RefusedError, FailedError) as refused:
        lab.outcome.because = f"the repetition is refused: {refused}"
    if "counts" not in lab.driver.lacks and caller("counts", "train").committed != 1:
        raise BrokenError(f"one row was committed; the system counts {caller('counts', 'train')}")
    lab.account([*claimed.ids, *lab.drain(caller)])


@promise("abandon")
def abandoned_rows_come_back_at_once(lab: Lab) -> None:
    """Long before their lease is over."""
    space = lab.space(lease_s=8.0)
    caller, other = lab.caller(space), lab.caller(space)
    lab.put(caller, lab.rows(4))
    claim = lab.claim(caller, 4)
    began = time.monotonic()
    caller("abandon", claim)
    delivered: list[str] = []
    while len(delivered) < 4 and time.monotonic() < began + 4.0:
        delivered += lab.drain(other)
    lab.account(delivered)


@promise("abandon")
def abandoned_rows_come_before_later_ones(lab: Lab) -> None:
    space = lab.space(lease_s=8.0)
    caller, other = lab.caller(space), lab.caller(space)
    early = lab.put(caller, lab.rows(4))
    claim = lab.claim(caller, 4)
    late = lab.put(caller, lab.rows(4))
    caller("abandon", claim)
    delivered = lab.drain(other, n=2)
    lab.account(delivered)
    if set(delivered[:4]) != set(early):
        raise BrokenError(
            f"abandoned: {', '.join(early)}; delivered first: {', '.join(delivered[:4])}; {late[0]} waited"
        )


@promise("least")
def a_claim_of_n_rows_gets_n_or_none(lab: Lab) -> None:
    space = lab.space()
    caller, other = lab.caller(space), lab.caller(space)
    ids = lab.put(caller, lab.rows(3))
    if claimed := other("claim", "train", 5, 0.5, 5):
        raise BrokenError(f"a claim of 5 rows got {len(claimed.ids)}")
    ids += lab.put(caller, lab.rows(2))
    claimed = other("claim", "train", 5, 5.0, 5)
    lab.account(claimed.ids if claimed else [], ids)


@promise("waits")
def a_waiting_claim_gets_a_new_row_within_a_second(lab: Lab) -> None:
    space = lab.space()
    producer, consumer = lab.caller(space), lab.caller(space)
    lab.put(producer, lab.rows(1))
    delivered = lab.drain(consumer)
    for _ in range(4):
        consumer.begin("claim", "train", 1, 6.0, 1)
        time.sleep(0.2)
        lab.put(producer, lab.rows(1))
        began = time.monotonic()
        claimed = consumer.end(8.0)
        if claimed is None or time.monotonic() - began > 1.0:
            raise BrokenError(f"it took {time.monotonic() - began:.1f} s")
        consumer("commit", claimed.name)
        delivered += claimed.ids
    lab.account(delivered)


@promise("waits")
def no_waiting_rank_is_passed_over(lab: Lab) -> None:
    """Three ranks wait for one row after the other; each gets at least half of its third."""
    space = lab.space()
    producer, ranks = lab.caller(space), [lab.caller(space) for _ in range(3)]
    for rank in ranks:
        rank("claim", "train", 1, 0.05, 1)  # it is connected now
    for rank in ranks:
        rank.begin(_take_all, 4.0)
    for _ in range(30):
        lab.put(producer, lab.rows(1))
        time.sleep(0.05)
    taken = [rank.end(15.0) for rank in ranks]
    lab.account([row for rows in taken for row in rows])
    if min(map(len, taken)) < len(lab.outcome.tried) / 6:
        raise BrokenError(f"of {len(lab.outcome.tried)} rows the ranks got {[len(rows) for rows in taken]}")


def _take_all(client: Client, for_s: float) -> list[str]:
    """Claim and commit single rows for a while, in the process of a client."""
    taken: Counter[str] = Counter()
    until = time.monotonic() + for_s
    while (left := until - time.monotonic()) > 0:
        if claimed := client.claim("train", 1, left, 1):
            client.commit(claimed.name)
            taken.update(claimed.ids)
    return list(taken.elements())
