"""What outlives the server, and who hears that it is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dataplane_conformance.callers import NO_ANSWER, Caller, FailedError
from dataplane_conformance.lab import BrokenError, Lab, promise
from dataplane_conformance.system import Client, RefusedError, Row

_HEARD_S = 5.0


@promise("disk", kills=True)
def acknowledged_rows_survive_kill_9_of_the_server(lab: Lab) -> None:
    space = lab.space()
    producer = lab.caller(space)
    for _ in range(8):
        lab.put(producer, lab.rows(8, 4096))
    with lab.server_killed():
        pass
    lab.account(lab.drain(lab.caller(space)))


@promise("disk", "lease", kills=True)
def commits_survive_kill_9_of_the_server(lab: Lab) -> None:
    space = lab.space(lease_s=1.0)
    caller = lab.caller(space)
    lab.put(caller, lab.rows(16))
    claimed = caller("claim", "train", 8, 5.0, 1)
    caller("commit", claimed.name)
    with lab.server_killed():
        pass
    lab.account(claimed.ids + lab.drain(lab.caller(space), for_s=space.lease_s + 1.0))


@promise("disk", "lease", kills=True)
def a_holder_outlives_kill_9_of_the_server(lab: Lab) -> None:
    space = lab.space(lease_s=6.0)
    holder = lab.caller(space)
    lab.put(holder, lab.rows(8))
    claimed = holder("claim", "train", 4, 5.0, 1)
    with lab.server_killed():
        pass
    holder("commit", claimed.name)
    lab.account(claimed.ids + lab.drain(lab.caller(space)))


@promise("disk", "ids", kills=True)
def puts_that_are_tried_until_they_succeed_are_there_once(lab: Lab) -> None:
    """A producer goes on through two deaths of the server, and repeats a put that failed."""
    space = lab.space()
    producer = lab.caller(space)
    batches = [lab.rows(6, 2048) for _ in range(24)]
    lab.put(producer, batches[0])
    producer.begin(_insist, batches[1:], 25.0)
    for _ in range(2):
        time.sleep(0.2)
        with lab.server_killed():
            time.sleep(0.1)
    lab.acknowledged(producer.end(30.0))
    lab.account(lab.drain(lab.caller(space), n=64))


@promise("disk", kills=True)
def a_torn_last_record_costs_no_earlier_row(lab: Lab) -> None:
    """The server is killed, and half a record is at the end of its log: it was being written."""
    space = lab.space()
    producer = lab.caller(space)
    for _ in range(4):
        lab.put(producer, lab.rows(8, 512))
    with lab.server_killed():
        lab.driver.tear()
    caller = lab.caller(space)
    lab.put(caller, lab.rows(8, 512))
    with lab.server_killed():  # what was written behind the half record can be read, too
        pass
    lab.account(lab.drain(lab.caller(space)))


@promise("disk", kills=True)
def a_flipped_bit_on_disk_is_noticed(lab: Lab) -> None:
    """One bit of a row's values changes in the files of a server that was killed: the server does not start, or does
    not deliver the row. Its values are searched for, so a system that compresses them has no verdict.
    """
    space = lab.space()
    rows = lab.rows(3, 8192)
    lab.put(lab.caller(space), rows)
    lab.driver.kill()
    lab.spoiled, values = True, rows[1].values["tokens"].data
    files = [path for path in sorted((lab.driver.folder or Path()).rglob("*")) if _flip(path, values)]
    if not files:
        raise LookupError("no file holds the values")
    try:
        lab.driver.start()
    except RefusedError as refused:
        lab.outcome.because = f"it does not start: {refused}"
        return
    caller = lab.caller(space)
    claimed = caller("claim", "train", 3, 2.0, 1)
    try:
        lab.check(claimed.ids if claimed else [], caller("read", claimed.name) if claimed else {})
    except (RefusedError, FailedError) as refused:
        lab.outcome.because = f"the read: {refused}"
    if lab.outcome.lost:
        raise BrokenError(f"a changed value of {lab.outcome.lost[0]} was delivered")


@promise(kills=True)
def a_dead_server_is_heard_within_5_s(lab: Lab) -> None:
    """By a claim that waits, and by a put and a read after it; a read of what the client has already may succeed."""
    _heard(lab, lab.driver.kill)


@promise(kills=True)
def a_hung_server_is_heard_within_5_s(lab: Lab) -> None:
    """As a dead one, which closes its connections."""
    _heard(lab, lambda: lab.driver.pause(True))


def _heard(lab: Lab, end: Callable[[], None]) -> None:
    """Three clients whose calls have a deadline of 2.5 s, and what each hears."""
    space, deaf = lab.space(call_s=2.5), []
    putter, claimer, reader = (lab.caller(space) for _ in range(3))
    lab.put(putter, lab.rows(1))
    claim = lab.claim(reader)
    lab.nothing(claimer, "a row that another holds")
    lab.spoiled = True
    claimer.begin("claim", "train", 1, 2.5, 1)
    time.sleep(0.2)
    end()
    began = time.monotonic()
    putter.begin("put", lab.rows(1))
    reader.begin("read", claim)
    for verb, caller in (("put", putter), ("claim", claimer), ("read", reader)):
        heard = _answer_of(caller, began + _HEARD_S)
        if NO_ANSWER in heard or (verb != "read" and heard.startswith("answered")):
            deaf.append(f"{verb}: {heard}")
    if deaf:
        raise BrokenError("; ".join(deaf))


def _answer_of(caller: Caller, until: float) -> str:
    try:
        return f"answered {caller.end(max(0.0, until - time.monotonic()))}"
    except (RefusedError, FailedError) as error:
        return str(error)


def _insist(client: Client, batches: list[list[Row]], for_s: float) -> list[str]:
    """Put every batch, and again until it is acknowledged, in the process of a client. The ids acknowledged."""
    until, ids = time.monotonic() + for_s, []
    for rows in batches:
        while time.monotonic() < until:
            try:
                client.put(rows)
            except Exception:  # noqa: BLE001 - whatever failed is tried again
                time.sleep(0.05)
                continue
            ids += [row.id for row in rows]
            time.sleep(0.02)
            break
    return ids


def _flip(path: Path, values: bytes) -> bool:
    """Change a bit in the middle of the values wherever the file holds them."""
    if not path.is_file():
        return False
    data = path.read_bytes()
    at, found = data.find(values[:2048]), False
    with path.open("r+b") as file:
        while at >= 0:
            file.seek(at + 1000)
            file.write(bytes([data[at + 1000] ^ 1]))
            at, found = data.find(values[:2048], at + 1), True
    return found
