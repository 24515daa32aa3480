"""`python -m dataplane_server.replaying`: what the command `dataplane replay` runs, in a process of its own, since the
client's package does not load the server's.

Exits with 0, with 1 if a check found a difference, with 2 if it cannot replay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
from collections import deque
from pathlib import Path

from dataplane_server.collection import without_collection
from dataplane_server.durability.checkpoint import DamagedCheckpointError
from dataplane_server.durability.log_reader import LogDamagedError, LogFormatError, RecordMissingError
from dataplane_server.replaying.lines import line_of, tell
from dataplane_server.replaying.moments import parse_moment, text_of
from dataplane_server.replaying.past import Covered, Past, look_at

_DAMAGED = (DamagedCheckpointError, LogDamagedError, LogFormatError, RecordMissingError)


def main() -> None:
    parser = argparse.ArgumentParser("dataplane replay")
    parser.add_argument("path", type=Path)
    parser.add_argument("--until")
    parser.add_argument("--sample")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-in", type=Path, metavar="FOLDER")
    flags = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        sys.exit(_run(flags))
    except ImportError as error:
        _note(f"dataplane: {error}; a screen needs rl-dataplane[server]")
    except OSError as error:
        _note(f"dataplane: {error.filename or 'stdout'}: {error.strerror}")
    except (ValueError, *_DAMAGED) as error:
        _note(f"dataplane: {error}")
    sys.exit(2)


def _run(flags: argparse.Namespace) -> int:
    if flags.serve_in is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for `| head`
    covered = look_at(flags.path)
    until = None if flags.until is None else parse_moment(flags.until, covered.first, covered.last)
    if flags.check:
        return _check(covered, as_json=flags.json)
    if flags.serve_in is not None:
        return _serve(covered, covered.last if until is None else until, flags.serve_in)
    return _tell(covered, until, flags.sample, flags.limit, as_json=flags.json)


def _tell(covered: Covered, until: float | None, sample_id: str | None, most: int | None, *, as_json: bool) -> int:
    if until is not None:
        covered.start_before(until)  # ValueError if there is none
    past, head = Past(covered, covered.starts[0]), ""
    entries = tell(past, past.turns(covered.end, math.inf if until is None else until), sample_id)
    for entry in entries if most is None else deque(entries, most):
        day = f"{entry['time'][:10]} UTC, life {entry['life']} of the server"
        if day != head and not as_json:
            _say(day)
        head = day
        _say(json.dumps(entry) if as_json else line_of(entry))
    return 0


def _serve(covered: Covered, until: float, socket_folder: Path) -> int:
    from dataplane_server.replaying.served import serve  # needs more packages than the rest

    past = Past(covered, covered.start_before(until))
    with without_collection():
        past.run(covered.end, until)
    _note(f"{covered.folder} at {text_of(until)}, before record {past.record:,} of {covered.end:,}")
    asyncio.run(serve(past, covered.folder, until, socket_folder))
    return 0


def _check(covered: Covered, *, as_json: bool) -> int:
    """Replay from the oldest state to the end of the log, and compare the state with each checkpoint."""
    past, differ = Past(covered, covered.starts[0]), False
    for record in covered.starts[1:]:
        past.run(record)
        state = Past(covered, record)
        if state.passed_over:
            raise DamagedCheckpointError(state.passed_over[0])
        replayed, checkpoint = past.plane.digest(), state.plane.digest()
        equal = replayed == checkpoint
        result = "equal" if equal else f"differs: the checkpoint has digest {checkpoint}"
        text = f"record {record:,}: {result}, the calls give digest {replayed}"
        found = {"record": record, "replayed": replayed, "checkpoint": checkpoint, "equal": equal}
        _say(json.dumps(found) if as_json else text)
        differ = differ or not equal
    past.run(covered.end)
    missing = "" if len(covered.starts) > 1 else "; there is no checkpoint to compare with"
    _note(f"records {covered.starts[0]:,} to {covered.end:,} replayed{missing}")
    return int(differ)


def _say(line: str) -> None:
    print(line)  # noqa: T201  # what a command says


def _note(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  # likewise


if __name__ == "__main__":
    main()
