"""What becomes of rows whose holder is killed, stopped or slow."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from dataplane_conformance.callers import FailedError
from dataplane_conformance.lab import BrokenError, Lab, promise
from dataplane_conformance.system import Client, RefusedError

_MARGIN_S = 3.0
"""How much later than its lease a row may come back, on a busy machine."""


@promise("lease")
def a_holder_that_dies_gives_its_rows_back(lab: Lab) -> None:
    space = lab.space(lease_s=1.0)
    holder, heir = lab.caller(space), lab.caller(space)
    lab.put(heir, lab.rows(8))
    lab.claim(holder, 8)
    holder.kill()
    lab.account(lab.drain(heir, for_s=space.lease_s + _MARGIN_S))


@promise("lease")
def a_holder_that_lives_and_is_slow_keeps_its_rows(lab: Lab) -> None:
    space = lab.space()
    holder, other = lab.caller(space), lab.caller(space)
    lab.put(other, lab.rows(8))
    claimed = holder("claim", "train", 8, 5.0, 1)
    until = time.monotonic() + 2.5 * space.lease_s
    while time.monotonic() < until:
        lab.nothing(other, "rows of a holder that lives were delivered to another", wait_s=space.lease_s / 4)
        holder("renew", claimed.name)
    holder("commit", claimed.name)
    lab.account(claimed.ids + lab.drain(other))


@promise("lease")
def a_late_commit_is_refused(lab: Lab) -> None:
    """A holder is stopped for longer than its lease, another gets its rows, and the first one commits."""
    space = lab.space(lease_s=1.0)
    late, heir = lab.caller(space), lab.caller(space)
    lab.put(heir, lab.rows(4))
    claim = lab.claim(late, 4)
    late.pause(True)
    claimed = heir("claim", "train", 4, space.lease_s + _MARGIN_S, 1)
    late.pause(False)
    if claimed is None:
        raise BrokenError("the rows of a stopped holder did not come back")
    try:
        late("commit", claim)
    except (RefusedError, FailedError) as refused:
        lab.outcome.because = f"the late commit: {refused}"
    else:
        lab.outcome.doubled += claimed.ids
        raise BrokenError("the commit of a holder whose rows another one holds was accepted")
    heir("commit", claimed.name)
    lab.account(claimed.ids)


@promise("lease")
def under_random_kills_every_row_is_committed_once(lab: Lab) -> None:
    """Consumers are killed and stopped at random while they work. Each writes down what it tried to commit, and what
    was acknowledged or refused; a row that a killed one tried to commit may be either.
    """
    space = lab.space(lease_s=1.0)
    producer, dice = lab.caller(space), random.Random(2)  # noqa: S311 - whom to kill, and when
    with tempfile.TemporaryDirectory() as folder:
        notes = [Path(folder) / str(number) for number in range(9)]
        for _ in range(10):
            lab.put(producer, lab.rows(6))
        for number, note in enumerate(notes[:8]):
            consumer = lab.caller(space)
            consumer.begin(_consume, str(note), 30.0)
            time.sleep(dice.uniform(0.2, 0.5))
            if number % 2:
                consumer.kill()
            else:
                consumer.pause(True)
                time.sleep(0.4)
                consumer.kill()
        lab.caller(space)(_consume, str(notes[8]), space.lease_s + _MARGIN_S)
        lines = [line.split() for note in notes if note.exists() for line in note.read_text().splitlines()]
    done = Counter(row for kind, *ids in lines if kind == "committed" for row in ids)
    tries = Counter(row for kind, *ids in lines if kind == "commit" for row in ids)
    answered = Counter(row for kind, *ids in lines if kind != "commit" for row in ids)
    lab.account(list(done.elements()), [row for row in lab.outcome.acknowledged if tries[row] <= answered[row]])


def _consume(client: Client, note: str, quiet_s: float) -> None:
    """Claim and commit until no row comes for quiet_s, in the process of a client that may be killed."""
    with Path(note).open("w", buffering=1) as notes:
        while claimed := client.claim("train", 2, quiet_s, 1):
            time.sleep(0.03)
            notes.write(f"commit {' '.join(claimed.ids)}\n")
            try:
                client.commit(claimed.name)
            except RefusedError:
                notes.write(f"refused {' '.join(claimed.ids)}\n")
                continue
            notes.write(f"committed {' '.join(claimed.ids)}\n")
