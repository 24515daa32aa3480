"""Runs a recording again, and compares every outcome and the final state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.digest import digest
from dataplane_server.durability.call_codec import decode_call
from dataplane_server.recording.recorder import FORMAT, LENGTH
from dataplane_server.version import VERSION

_PROGRESS_CALLS = 50_000


@dataclass(slots=True)
class Replay:
    """What a replay found. difference: the first outcome that differs, in words. digests: recorded (None if the
    recording has no footer) and replayed.
    """

    calls: int = 0
    refused: int = 0
    difference: str | None = None
    digests: tuple[str | None, str] = (None, "")

    @property
    def equal(self) -> bool:
        return self.difference is None and self.digests[0] in (None, self.digests[1])


def replay(path: Path) -> Replay:
    """Run a recording again on a fresh core. ValueError if the file is not a recording of this version."""
    records = _records(path)
    plane = _fresh_plane(next(records, None))
    found = Replay()
    recorded_digest = None
    for record in records:
        if isinstance(record, dict):
            recorded_digest = record.get("digest")
            break
        _replay_call(plane, record, found)
    found.digests = (recorded_digest, plane.digest())
    return found


def _records(path: Path) -> Iterator[Any]:
    """The values of a recording, without a last one that was cut short."""
    with path.open("rb") as file:
        while len(head := file.read(LENGTH.size)) == LENGTH.size:
            (size,) = LENGTH.unpack(head)
            if len(data := file.read(size)) < size:
                return
            yield msgpack.unpackb(data, use_list=False)


def _fresh_plane(header: Any) -> DataPlane:
    if not isinstance(header, dict) or "format" not in header:
        raise ValueError("the file is not a recording")
    if header["format"] != FORMAT or header["version"] != VERSION:
        made = f"version {header['version']}, format {header['format']}"
        raise ValueError(f"the recording was made by {made}; replay it with that version (this one is {VERSION})")
    return DataPlane(
        Limits(**header["limits"]), incarnation=header["incarnation"], first_generation=header["first_generation"]
    )


def _replay_call(plane: DataPlane, record: tuple[bytes, str], found: Replay) -> None:
    encoded, expected = record
    now, call = decode_call(encoded)
    outcome: object
    try:
        outcome = plane.apply(call, now)
    except Refusal as refusal:
        outcome = refusal
        found.refused += 1
    effects = plane.take_effects()
    found.calls += 1
    if found.difference is None and digest(outcome, effects) != expected:
        found.difference = (
            f"call {found.calls} at {now:.6f} s: {call!r}\nnow has another outcome: {outcome!r}, {effects!r}"
        )
    if found.calls % _PROGRESS_CALLS == 0:
        print(f"{found.calls:,} calls", file=sys.stderr)  # noqa: T201  # progress


def report_of(found: Replay) -> str:
    recorded, replayed = found.digests
    lines = [f"{found.calls:,} calls replayed, {found.refused:,} of them refused"]
    lines.append("all outcomes are equal" if found.difference is None else f"an outcome differs: {found.difference}")
    if recorded is None:
        lines.append(f"digest {replayed}; the recording has none, since the server did not stop in order")
    elif recorded == replayed:
        lines.append(f"digest {replayed}, equal to the recorded one")
    else:
        lines.append(f"digest {replayed} differs from the recorded one, {recorded}")
    return "\n".join(lines)
