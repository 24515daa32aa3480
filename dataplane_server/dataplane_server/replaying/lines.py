"""What each call of a data directory asked for, was answered, and changed: a record for programs, a line for people.

What a call changes is told by the facts that the core notes for the history of samples, and by the effects for callers
that wait. A write that arrived with its values appears as that write. What is empty or has its default is left out.
Records have the names of the core; lines say what a user did, by the client's verbs, or what the server did.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dataplane_server.core.calls.answers import Grant, Granted, Reservation, SessionExpired, Stored, Waiting
from dataplane_server.core.calls.columns import ColumnSpec
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call, StoreValues
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state.state import Fact
from dataplane_server.core.stats.history import _ENDS, History
from dataplane_server.replaying.moments import text_of
from dataplane_server.replaying.past import Past, Turn

Entry = dict[str, Any]

_FIRST = 3
"""Samples of a call that are named at most."""
_OUTCOMES = {Waiting: "waits", Reservation: "has space", Grant: "granted", Refusal: "refused"}
_EFFECTS = {Granted: "granted", SessionExpired: "session expired"}
_VERBS = {
    "FinishWrite": "values stored",
    "AbortWrite": "write ended",
    "GiveUpWrite": "put timed out",
    "ShareReservation": "space given",
    "ClaimSamples": "claim",
    "CommitClaim": "commit",
    "ReleaseClaim": "release",
    "AdoptClaim": "resume claim",
    "GiveUpClaim": "claim timed out",
    "AbandonClaim": "claimer gone",
    "AbandonRequest": "call given up",
    "ResetTask": "reset",
    "FinishGroup": "commit group",
    "AbortGroup": "abort group",
    "OpenSession": "session opens",
    "CloseSession": "session closes",
    "Advance": "time passes",
    "Recover": "server recovers",
    "Restored": "server restored",
    "Drain": "server drains",
}
"""Calls whose names are not those of the client's verbs."""
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_NESTED = (Definition, Grant, Reservation, Refusal)
_ELSEWHERE = ("request_id", "partition_id", "task", "caller", "client_name")


def tell(past: Past, turns: Iterable[Turn], sample_id: str | None) -> Iterator[Entry]:
    """Apply calls, and tell each one; with a sample_id, those that name or change that sample."""
    sample = None if sample_id is None else _Sample(sample_id, past.plane)
    facts = _Facts(past.plane.parts[3])
    past.plane.parts = (*past.plane.parts[:3], facts)
    before: float | None = None
    for turn in turns:
        call = turn.call.write if isinstance(turn.call, StoreValues) else turn.call
        who = _who(call, past.plane)
        outcome, effects = past.apply(turn)
        if isinstance(outcome, Stored):
            outcome = outcome.result
        if sample is None or sample.concerned(call, facts.noted):
            asked = {name: value for name, value in _values(call).items() if name not in _ELSEWHERE}
            yield {
                "time": text_of(turn.moment),
                "since_s": 0.0 if before is None else round(turn.moment - before, 3),
                "record": turn.record,
                "life": turn.life,
                "call": type(call).__name__,
                "who": who,
                "partition_id": getattr(getattr(call, "definition", call), "partition_id", ""),
                "task": getattr(call, "task", ""),
                "asked": asked,
                "outcome": {"what": _OUTCOMES.get(type(outcome), ""), **_values(outcome)},
                "changes": [
                    *map(_values, facts.noted),
                    *({"what": _EFFECTS.get(type(effect), "wait over"), **_values(effect)} for effect in effects),
                ],
            }
            before = turn.moment
        facts.noted.clear()


def line_of(entry: Entry) -> str:
    """The line, without the date. Changes leave out what the line says before them."""
    asked = {name: value for name, value in entry["asked"].items() if name != "session_id" or not entry["who"]}
    said = {**entry, **entry["asked"], **entry["outcome"]}
    changes = [
        {name: value for name, value in change.items() if name == "what" or said.get(name) != value}
        for change in entry["changes"]
    ]
    where = "/".join(filter(None, (entry["partition_id"], entry["task"])))
    head = f"{entry['time'][11:-1]} {entry['since_s']:+9.3f}  {_verb(entry['call']):18} {entry['who']:12} {where:12}"
    after = "; ".join(filter(None, map(_text, (entry["outcome"], *changes))))
    line = f"{head} {_text(asked)}{' -> ' if after else ''}{after}".rstrip()
    return line if line.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _verb(call: str) -> str:
    return _VERBS.get(call) or _CAPITAL.sub("_", call).lower()


class _Facts(History):
    """The history, and the facts of one call beside it."""

    def __init__(self, history: History) -> None:
        vars(self).update(vars(history))
        self.noted: list[Fact] = []

    def note(self, fact: Fact, now: float) -> None:
        super().note(fact, now)
        self.noted.append(fact)


class _Sample:
    """Knows which partitions have a sample, so that a fact about every row of a partition concerns it or not."""

    def __init__(self, sample_id: str, plane: DataPlane) -> None:
        self._id = sample_id
        self._partitions = {name for name in plane.partitions if plane.sample(name, sample_id).resident is not None}

    def concerned(self, call: Call[Any], facts: Sequence[Fact]) -> bool:
        changed = [self._changed(fact) for fact in facts]
        return any(changed) or self._id in (getattr(call, "sample_ids", None) or ())

    def _changed(self, fact: Fact) -> bool:
        changed = fact.partition_id in self._partitions if fact.sample_ids is None else self._id in fact.sample_ids
        if changed and fact.what in _ENDS:
            self._partitions.discard(fact.partition_id)
        elif changed:
            self._partitions.add(fact.partition_id)
        return changed


def _who(call: Call[Any], plane: DataPlane) -> str:
    """The client, as far as the call tells it. To be asked before the call, which may end the session."""
    session_id = getattr(call, "session_id", "")
    named: str = getattr(call, "caller", "") or getattr(call, "client_name", "")
    return named or plane.parts[0].sessions.name(session_id) or session_id


def _values(record: object) -> Entry:
    """What a call, an answer, an effect, a refusal or a fact says in words and numbers."""
    if isinstance(record, Refusal):
        return {"reason": record.reason.name, "message": record.message}
    if isinstance(record, Fact):
        values, defaults = record._asdict(), record._field_defaults
    elif dataclasses.is_dataclass(record):
        fields = [field for field in dataclasses.fields(record) if field.repr]
        values = {field.name: getattr(record, field.name) for field in fields}
        defaults = {field.name: field.default for field in fields}
    else:
        return {}
    entry: Entry = {}
    for name, value in values.items():
        if name == "sample_ids":
            entry["rows"] = "all" if value is None else {"count": len(value), "first": list(value[:_FIRST])}
        elif isinstance(value, _NESTED):
            entry |= _values(value)
        elif isinstance(value, (str, int, float)):
            entry |= {name: value} if value not in ("", -1, defaults.get(name)) else {}
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, ColumnSpec)):
            entry[name] = [item if isinstance(item, str) else item.name for item in value]
    return entry


def _text(entry: Entry) -> str:
    values = dict(entry)
    words = [values.pop("what", ""), _rows_text(values.pop("rows", ""))]
    if "message" in values:
        words.append(f"{values.pop('reason')}: {values.pop('message')}")
    words += [f"{name}={','.join(value) if isinstance(value, list) else value}" for name, value in values.items()]
    return " ".join(filter(None, words))


def _rows_text(rows: Any) -> str:
    if not isinstance(rows, dict):
        return f"{rows} rows" if rows else ""
    count, names = rows["count"], ", ".join(rows["first"])
    return f"{count:,} {'row' if count == 1 else 'rows'} ({names}{', ...' if count > _FIRST else ''})"
