"""One experiment: its clients, the rows that it tried, and what became of each."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dataplane_conformance.callers import Caller, FailedError
from dataplane_conformance.system import Driver, Lack, RefusedError, Row, Space, Value

Verdict = Literal["held", "broken", "not offered", "not tried", "no verdict"]
QUIET_S = 0.7
"""How long a claim waits before a space counts as empty."""


class BrokenError(Exception):
    """The promise is broken, and how."""


@dataclass
class Outcome:
    """tried, acknowledged: names of rows. lost: acknowledged and gone, or with other values. doubled: delivered to two,
    or consumed twice.
    """

    promise: str
    verdict: Verdict = "held"
    because: str = ""
    tried: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Lab:
    """What an experiment works with. outcome: filled as it goes. spoiled: the server needs a new life after it."""

    spoiled = False

    def __init__(self, driver: Driver, outcome: Outcome) -> None:
        self.driver, self.outcome = driver, outcome
        self._callers: list[Caller] = []
        self._spaces: list[Space] = []
        self._numbers = itertools.count()
        self._name = f"conformance-{uuid.uuid4().hex[:12]}"
        self._values: dict[str, dict[str, Value]] = {}

    def space(self, **options: object) -> Space:
        """A space that no other experiment uses."""
        self._spaces.append(Space(name=f"{self._name}-{next(self._numbers)}", **options))  # type: ignore[arg-type]
        return self._spaces[-1]

    def caller(self, space: Space) -> Caller:
        """A client of the space. It ends with the experiment."""
        self._callers.append(Caller(type(self.driver), self.driver.address, space))
        return self._callers[-1]

    def rows(self, n: int, size_bytes: int = 64, version: int | None = None) -> list[Row]:
        """New rows, whose values follow from their ids."""
        ids = [f"r{next(self._numbers):05d}" for _ in range(n)]
        return self.tried(
            [Row(row, {"tokens": Value("int64", _bytes(f"{self._name} {row}", size_bytes))}, version) for row in ids]
        )

    def tried(self, rows: Sequence[Row]) -> list[Row]:
        """Remember rows that will be put, with their values."""
        self.outcome.tried += [row.id for row in rows]
        self._values.update({row.id: dict(row.values) for row in rows})
        return list(rows)

    def put(self, caller: Caller, rows: Sequence[Row]) -> list[str]:
        """Put rows in one call. Their ids."""
        caller("put", rows)
        return self.acknowledged([row.id for row in rows])

    def acknowledged(self, ids: Iterable[str]) -> list[str]:
        new = list(ids)
        self.outcome.acknowledged += new
        return new

    def claim(self, caller: Caller, n: int = 1) -> str:
        """Claim rows that must be there: its name. Raises BrokenError without them."""
        claimed = caller("claim", "train", n, 5.0, 1)
        if claimed is None:
            raise BrokenError("no row came within 5 s")
        return str(claimed.name)

    def nothing(self, caller: Caller, why: str, wait_s: float = QUIET_S) -> None:
        """Raises BrokenError if the caller gets a row."""
        if claimed := caller("claim", "train", 64, wait_s, 1):
            raise BrokenError(f"{why}: {', '.join(claimed.ids[:5])}")

    def drain(self, caller: Caller, task: str = "train", n: int = 16, for_s: float = 0.0) -> list[str]:
        """Claim, read, check and commit rows until none comes, at least for for_s seconds. Their ids, as they came."""
        ids: list[str] = []
        until = time.monotonic() + for_s
        while True:
            wait_s = max(QUIET_S, until - time.monotonic())
            if (claimed := caller("claim", task, n, wait_s, 1)) is None:
                return ids
            self.check(claimed.ids, caller("read", claimed.name))
            caller("commit", claimed.name)
            ids += claimed.ids

    def check(self, ids: Sequence[str], values: dict[str, dict[str, Value]]) -> None:
        """Count rows whose values are not those that were put as lost."""
        wrong = [row for row in ids if row in self._values and values.get(row) != self._values[row]]
        self.outcome.lost += wrong
        if wrong:
            self.outcome.because = f"other values than were put: {', '.join(wrong[:5])}"

    def account(self, delivered: Sequence[str], expected: Sequence[str] | None = None) -> None:
        """Compare what was delivered with what was acknowledged: once each, and nothing that nobody put."""
        counted = Counter(delivered)
        wanted = self.outcome.acknowledged if expected is None else expected
        self.outcome.lost += [row for row in dict.fromkeys(wanted) if row not in counted]
        self.outcome.doubled += [row for row, times in counted.items() if times > 1]
        if strange := counted.keys() - set(self.outcome.tried):
            raise BrokenError(f"rows that nobody put: {', '.join(sorted(strange)[:5])}")

    @contextlib.contextmanager
    def server_killed(self) -> Iterator[None]:
        """Kill the server, do what the block says, and start it again."""
        self.spoiled = True
        self.driver.kill()
        yield
        self.driver.start()
        self.spoiled = False

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        if not self.driver.owns_server:
            self.driver.forget(self._spaces)


@dataclass(frozen=True)
class Promise:
    """sentence: what is promised. needs: what a system must offer for it. kills: it needs the driver's own server."""

    sentence: str
    experiment: Callable[[Lab], None]
    needs: frozenset[Lack]
    kills: bool

    def judge(self, driver: Driver) -> Outcome:
        """Try it once. A defect of driver or kit is "no verdict"."""
        outcome, began = Outcome(self.sentence), time.monotonic()
        if lacking := self.needs & driver.lacks:
            outcome.verdict, outcome.because = "not offered", ", ".join(sorted(lacking))
            return outcome
        if self.kills and not driver.owns_server:
            outcome.verdict, outcome.because = "not tried", "kills the server"
            return outcome
        lab = Lab(driver, outcome)
        try:
            self.experiment(lab)
        except BrokenError as broken:
            outcome.verdict, outcome.because = "broken", str(broken)
        except (FailedError, RefusedError) as failed:
            outcome.verdict, outcome.because = "broken", f"a call that must succeed did not: {failed}"
        except Exception as error:  # noqa: BLE001 - the other promises are still to be tried
            outcome.verdict, outcome.because = "no verdict", f"{type(error).__name__}: {error}"
        finally:
            lab.close()
            if lab.spoiled:
                driver.stop()
                driver.start()
        if outcome.verdict == "held" and (outcome.lost or outcome.doubled):
            outcome.verdict = "broken"
        outcome.seconds = time.monotonic() - began
        return outcome


PROMISES: list[Promise] = []


def promise(*needs: Lack, kills: bool = False) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Make an experiment of a function. Its name is the sentence."""

    def add(experiment: Callable[[Lab], None]) -> Callable[[Lab], None]:
        sentence = experiment.__name__.replace("_", " ")
        PROMISES.append(Promise(sentence[0].upper() + sentence[1:], experiment, frozenset(needs), kills))
        return experiment

    return add


def _bytes(name: str, size_bytes: int) -> bytes:
    """Bytes that no other name has."""
    return hashlib.shake_128(name.encode()).digest(size_bytes)
