"""Rows that belong together, and rows that grow old."""

from __future__ import annotations

import time

from dataplane_conformance.lab import QUIET_S, BrokenError, Lab, promise


@promise("groups")
def a_group_is_hidden_until_it_is_complete(lab: Lab) -> None:
    space = lab.space()
    producer, consumer = lab.caller(space), lab.caller(space)
    rows = lab.rows(8)
    producer("put_group", "g", rows[:5], finish=False)
    lab.nothing(consumer, "rows of an incomplete group were delivered")
    producer("put_group", "g", rows[5:], finish=True)
    lab.acknowledged(row.id for row in rows)
    lab.account(lab.drain(consumer))


@promise("groups")
def a_group_is_claimed_whole_or_not_at_all(lab: Lab) -> None:
    """Two clients claim groups at once while a third takes single rows of one."""
    space = lab.space()
    producer, consumers = lab.caller(space), [lab.caller(space) for _ in range(2)]
    groups = [lab.rows(4) for _ in range(6)]
    for number, rows in enumerate(groups):
        producer("put_group", f"g{number}", rows, finish=True)
        lab.acknowledged(row.id for row in rows)
    lab.claim(producer, 1)
    delivered = [groups[0][0].id]
    for _ in range(3):
        for consumer in consumers:
            consumer.begin("claim_groups", "train", 1, QUIET_S)
        for claimed in [consumer.end() for consumer in consumers]:
            ids = set(claimed.ids if claimed else ())
            if ids and ids not in [{row.id for row in rows} for rows in groups]:
                raise BrokenError(f"a claim of one group got {', '.join(sorted(ids))}")
            delivered += sorted(ids)
    lab.account(delivered, [row.id for rows in groups[1:] for row in rows])


@promise("groups")
def a_group_whose_producer_dies_leaves_nothing(lab: Lab) -> None:
    space = lab.space(lease_s=1.0)
    producer, consumer = lab.caller(space), lab.caller(space)
    producer("put_group", "g", lab.rows(4), finish=False)
    whole = lab.rows(4)
    consumer("put_group", "h", whole, finish=True)
    lab.acknowledged(row.id for row in whole)
    producer.kill()
    lab.account(lab.drain(consumer, for_s=2.5))
    if "counts" not in lab.driver.lacks and sum(seen := consumer("counts", "train")) != 4:
        raise BrokenError(f"4 rows are left of two groups; the system counts {seen}")


@promise("staleness")
def no_delivered_row_is_staler_than_the_bound(lab: Lab) -> None:
    """Rows of versions 0 to 5, put in mixed order and claimed as the version moves on."""
    space = lab.space(max_staleness=1)
    caller, consumer = lab.caller(space), lab.caller(space)
    version = {}
    for of in (3, 0, 5, 1, 4, 2):
        rows = lab.rows(3, version=of)
        version.update(dict.fromkeys(lab.put(caller, rows), of))
    delivered: list[str] = []
    for now in (4, 5, 6):
        caller("set_version", now)
        while claimed := consumer("claim", "train", 2, QUIET_S / 2, 1):
            if stale := [row for row in claimed.ids if version[row] < now - 1]:
                raise BrokenError(f"at version {now} rows of {[version[row] for row in stale]} were delivered")
            consumer("commit", claimed.name)
            delivered += claimed.ids
    lab.account(delivered, [row for row, of in version.items() if of >= 3])


@promise("staleness", "abandon")
def a_row_that_grew_stale_while_it_was_held_does_not_come_back(lab: Lab) -> None:
    space = lab.space(max_staleness=1)
    caller, consumer = lab.caller(space), lab.caller(space)
    caller("set_version", 1)
    lab.put(caller, lab.rows(4, version=1))
    claim = lab.claim(consumer, 4)
    caller("set_version", 3)
    consumer("abandon", claim)
    time.sleep(0.1)
    lab.nothing(caller, "rows two versions behind were delivered under a bound of one")
