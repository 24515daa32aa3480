"""What a data directory keeps of the past, and what its calls give when they are applied again."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from tests import commands
from tests.core.machine.clients import Clients
from tests.server.durability.test_life import Played, log_of

from dataplane_server.core.calls.requests import OpenSession, RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.durability.call_codec import decode_record, encode_batch, encode_call
from dataplane_server.durability.checkpoint import checkpoints, load_checkpoint, write_checkpoint
from dataplane_server.durability.checkpointer import remove_history
from dataplane_server.durability.frames import MARK, frame_of
from dataplane_server.durability.log_reader import LogReader, segments
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.replica import Replica
from dataplane_server.replaying.moments import parse_moment, text_of
from dataplane_server.replaying.past import Past, look_at
from dataplane_server.storage.folders import FolderInUse

pytestmark = pytest.mark.xdist_group("replaying")  # so that one history is written for all

SPAN = 100
"""Records between two checkpoints."""


def seconds(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of random clients in small segments, and checkpoints. Its first call comes at 14:00."""
    folder = tmp_path_factory.mktemp("written")
    clients = Clients(random.Random(7))
    clients.run(400, 10**9, 400)
    turns = [(now, call) for now, call, _ in clients.world.plane.turns]
    plane = LoggedPlane(clients.world.plane.limits)
    log = log_of(folder, plane, 4096, epoch=1, at=turns[0][0], wall=seconds("2026-11-22T14:00:00"))
    played = Played(plane)
    for now, call in turns:
        if played.may_come(call):
            played.outcome(call, now)
        if log.next_record >= SPAN * (1 + len(checkpoints(folder))):
            replica = Replica(folder)
            replica.catch_up()
            write_checkpoint(folder, replica.plane, log.next_record, replica.at, {})
    log.close()
    assert min(len(segments(folder)), len(checkpoints(folder))) > 3
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


def replay(folder: Path, *flags: str) -> tuple[int, list[str], str]:
    """The exit code, the lines of stdout, and stderr."""
    command = [sys.executable, "-m", "dataplane_server.replaying", str(folder), *flags]
    done = commands.run(command)
    return done.returncode, done.stdout.splitlines(), done.stderr


# -- the checkpointer --------------------------------------------------------------------------------------------------


def test_a_checkpointer_leaves_a_folder_alone_that_is_not_the_one_of_its_server(written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    own = FolderInUse(written)
    module = "dataplane_server.durability.checkpointer"
    done = commands.run([sys.executable, "-m", module, other, "1", "0", own.identity])
    own.close()
    assert done.returncode == 1
    assert f"{other} was moved or replaced while this process used it" in done.stderr
    assert list(other.iterdir()) == []


# -- moments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-22T14:03:07.250", "2026-11-22T14:03:07.250Z"),
        ("2026-11-22 14:03:07.250Z", "2026-11-22T14:03:07.250Z"),
        ("2026-11-22T15:03:07+01:00", "2026-11-22T14:03:07.000Z"),
        ("00:00:30.500", "2026-11-23T00:00:30.500Z"),
        ("23:59", "2026-11-22T23:59:00.000Z"),
        ("12:00", "2026-11-23T12:00:00.000Z"),  # after the end, and the log does not have it the day before
        ("-90s", "2026-11-22T23:59:30.000Z"),
        ("-0.5s", "2026-11-23T00:00:59.500Z"),
    ],
)
def test_a_time_is_a_moment_of_the_log(text: str, moment: str) -> None:
    assert text_of(parse_moment(text, seconds("2026-11-22T14:00:00"), seconds("2026-11-23T00:01:00"))) == moment


@pytest.mark.parametrize(
    "text", ["90s", "-90", "yesterday", "25:00", "-xs", "", f"-{10**11}s", f"-{10**22}s", "0001-01-01T00:00+01:00"]
)
def test_what_is_no_time_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"14:03:07\.250, 2026-11-22T14:03:07\.250 or -90s"):
        parse_moment(text, 0.0, 1.0)


def test_the_calls_until_a_printed_time_include_those_that_were_printed_with_it(folder: Path) -> None:
    told = [json.loads(line) for line in replay(folder, "--json")[1]]
    assert [each["record"] for each in told] == list(range(look_at(folder).end))
    assert told[0]["time"] == "2026-11-22T14:00:00.000Z"
    until = told[SPAN + 7]["time"]
    code, lines, _ = replay(folder, "--json", "--until", until)
    assert (code, list(map(json.loads, lines))) == (0, [each for each in told if each["time"] <= until])


def test_a_time_before_the_log_is_refused_with_what_it_covers(folder: Path) -> None:
    for path in (*(path for _, path in segments(folder)[:2]), checkpoints(folder)[-1][1]):
        path.unlink()
    start = text_of(look_at(folder).first)
    for flags in ([], ["--serve-in", str(folder)]):
        code, lines, error = replay(folder, "--until", "2026-11-22T14:00", *flags)
        assert (code, lines) == (2, [])
        assert f"does not reach back to 2026-11-22T14:00:00.000Z: it covers the time from {start} to 2026-" in error


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 0.2, 0.5, 0.8, 1])
def test_a_state_of_the_past_is_the_same_from_every_start_before_it(folder: Path, place: float) -> None:
    covered = look_at(folder)
    moments = [turn.moment for turn in Past(covered, 0).turns(covered.end)]
    until = moments[round(place * (len(moments) - 1))]
    begin, later = Past(covered, 0), Past(covered, covered.start_before(until))
    for past in (begin, later):
        past.run(covered.end, until)
    assert (later.record, later.at, later.plane.digest()) == (begin.record, begin.at, begin.plane.digest())
    assert covered.start_before(until) == max(start for start in covered.starts if start <= begin.record - 1)


def test_a_damaged_checkpoint_is_passed_over_and_a_check_names_it(folder: Path) -> None:
    covered = look_at(folder)
    record, path = checkpoints(folder)[0]
    path.write_bytes(path.read_bytes()[:-1])
    begin, later = Past(covered, 0), Past(covered, record)
    for past in (begin, later):
        past.run(covered.end)
    assert later.plane.digest() == begin.plane.digest()
    code, lines, error = replay(folder, "--check")
    assert (code, len(lines)) == (2, len(checkpoints(folder)) - 1)
    assert f"dataplane: {path} cannot be used" in error


def test_a_check_finds_equal_states(folder: Path) -> None:
    code, lines, _ = replay(folder, "--check")
    assert code == 0
    assert [line.partition(",")[0] for line in lines] == [
        f"record {record}: equal" for record, _ in reversed(checkpoints(folder))
    ]


def change_checkpoint(folder: Path) -> None:
    loaded = load_checkpoint(checkpoints(folder)[-2][1])
    loaded.plane.apply(OpenSession("", "intruder"), loaded.now)
    write_checkpoint(folder, loaded.plane, loaded.next_record, loaded.now, loaded.extra)


def change_log(folder: Path) -> None:
    """One more call with the first one after the first checkpoint, which later calls may need."""
    start, _ = checkpoints(folder)[-1]
    (payload,) = LogReader(folder, start).read(1)
    other = encode_call(decode_record(payload)[0][0], RegisterPartition("", Definition("intruder", ("a",), ("t",))))
    _, path = next(found for found in reversed(segments(folder)) if found[0] <= start)
    path.write_bytes(path.read_bytes().replace(frame_of(payload), frame_of(encode_batch([payload, other]))))


@pytest.mark.parametrize(("tamper", "later"), [(change_checkpoint, True), (change_log, False)])
def test_a_check_finds_what_was_changed(folder: Path, tamper: Callable[[Path], None], later: bool) -> None:
    """From the second checkpoint on; the third is equal again if only the second was changed."""
    tamper(folder)
    code, lines, _ = replay(folder, "--check", "--json")
    equal = [True, False, *[later] * (len(checkpoints(folder)) - 2)]
    assert (code, [json.loads(line)["equal"] for line in lines]) == (1, equal)


@pytest.mark.parametrize("place", [1, -1], ids=["an early segment", "the last segment"])
def test_a_check_stops_where_the_log_is_damaged(folder: Path, place: int) -> None:
    path = segments(folder)[place][1]
    content = bytearray(path.read_bytes())
    content[content.index(MARK, 900) + 20] ^= 1
    path.write_bytes(content)
    code, _, error = replay(folder, "--check")
    assert code == 2
    assert f"dataplane: {path}: the log is damaged at byte" in error


# -- history -----------------------------------------------------------------------------------------------------------


def older_bytes(folder: Path) -> int:
    """Of what recovery does not need."""
    (newest, _), *older = checkpoints(folder)
    needed = max(number for number, _ in segments(folder) if number <= newest)
    paths = [path for _, path in older] + [path for number, path in segments(folder) if number < needed]
    return sum(path.stat().st_size for path in paths)


def test_history_is_kept_up_to_its_bytes_and_begins_with_a_state(folder: Path) -> None:
    starts = []
    replica = Replica(folder)
    replica.catch_up()
    while older := older_bytes(folder):
        remove_history(folder, older)
        assert older_bytes(folder) == older
        starts.append(look_at(folder).starts)
        past = Past(look_at(folder), starts[-1][0])
        for record in starts[-1][1:]:
            past.run(record)
            assert past.plane.digest() == Past(look_at(folder), record).plane.digest()
        remove_history(folder, older - 1)
        assert older_bytes(folder) < older
    assert starts == [starts[0][place:] for place in range(len(starts))]
    assert len(starts) >= 4
    recovered = Replica(folder)
    recovered.catch_up()
    assert recovered.plane.digest() == replica.plane.digest()
