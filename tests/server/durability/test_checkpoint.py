"""Checkpoints: a core that was written and read goes on as the one that was not, here and in other processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pytest
from tests.core.caller import figures_of
from tests.core.machine.clients import Clients

from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call, ClaimSamples, FinishWrite, PutSamples, RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.digest import digest
from dataplane_server.durability.call_codec import decode_record, encode_call
from dataplane_server.durability.checkpoint import (
    DamagedCheckpointError,
    checkpoints,
    load_checkpoint,
    remove_checkpoints,
    write_checkpoint,
)

ROOT = Path(__file__).parents[3]
SEEDS = range(6)
Turn = tuple[float, Call[Any], str]


@cache
def story(seed: int) -> tuple[Limits, list[Turn]]:
    """What random clients did: times, calls, and hashes of outcomes."""
    clients = Clients(random.Random(seed))
    clients.run(280, 10**9, 280)
    return clients.world.plane.limits, clients.world.plane.turns


def said(plane: DataPlane, now: float, call: Call[Any]) -> object:
    try:
        return plane.apply(call, now)
    except Refusal as refusal:
        return refusal


def copy_of(plane: DataPlane, folder: Path) -> DataPlane:
    return load_checkpoint(write_checkpoint(folder, plane, 0, 0.0, {})).plane


def after(seed: int, calls: int) -> DataPlane:
    """A plane that was given the first calls of a story."""
    limits, turns = story(seed)
    plane = DataPlane(limits)
    for now, call, _ in turns[:calls]:
        said(plane, now, call)
        plane.take_effects()
    return plane


def full_plane(rows: int) -> DataPlane:
    """Rows of eight bytes with ids of 20 characters."""
    plane = DataPlane(Limits(memory_bytes=64 * rows))
    plane.apply(RegisterPartition("r", Definition("p", ("a",), ("t",))), 0.0)
    for begin in range(0, rows, 4096):
        ids = [f"sample-{number:013}" for number in range(begin, min(rows, begin + 4096))]
        put = PutSamples(f"put {begin}", "p", ids, [ColumnSpec("a", Shape("dense", "int64", ()))])
        plane.apply(FinishWrite(plane.apply(put, 0.0).ticket), 0.0)  # type: ignore[union-attr]
    plane.apply(ClaimSamples("claim", "p", "t", ("a",), 1000, 1), 0.0)
    return plane


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])])
def test_a_restored_plane_equals_the_original_and_goes_on_as_it_does(seed: int, tmp_path: Path) -> None:
    limits, turns = story(seed)
    plane = DataPlane(limits)
    copies: list[DataPlane] = []
    for number, (now, call, expected) in enumerate(turns):
        outcomes = [said(each, now, call) for each in (plane, *copies)]
        if number % 60 == seed:  # before the effects are taken: they are part of the state
            figures_of(plane, now)  # which are cached
            copies.append(copy_of(plane, tmp_path))
            outcomes.append(outcomes[0])
            assert copies[-1].digest() == plane.digest()
            assert figures_of(copies[-1], now) == figures_of(plane, now)
        told = [digest(outcome, each.take_effects()) for outcome, each in zip(outcomes, (plane, *copies), strict=True)]
        assert set(told) == {expected}, f"turn {number}: {call}"
        for copy in copies[-1:]:
            copy.check_invariants()
    assert {copy.digest() for copy in copies} == {plane.digest()}


# -- other processes ---------------------------------------------------------------------------------------------------


def in_another_process(function: str, *arguments: object, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Call a function of this module."""
    code = f"import sys; from tests.server.durability import test_checkpoint as t; t.{function}(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def histories(plane: DataPlane) -> list[str]:
    """Of all samples that exist."""
    found = []
    for name, partition in plane.partitions.items():
        ids = partition.rows.ids(partition.rows.all_slots())
        found += [repr(plane.sample(name, sample_id)) for sample_id in ids]
    return found


def tell(path: str, calls: str) -> None:
    """Load a checkpoint, go on with recorded calls, and print what is seen."""
    plane = load_checkpoint(Path(path)).plane
    print(plane.digest(), *histories(plane), sep="\n")  # noqa: T201
    go_on(plane, msgpack.unpackb(Path(calls).read_bytes()))


def go_on(plane: DataPlane, calls: Iterable[bytes]) -> None:
    for ((now, call),) in map(decode_record, calls):
        print(digest(said(plane, now, call), plane.take_effects()))  # noqa: T201
    print(plane.digest())  # noqa: T201


def has_a_rich_history(plane: DataPlane) -> bool:
    """Of several samples, with a fact about all rows of a partition."""
    told = histories(plane)
    return len(told) > 5 and any("the definition was replaced" in one for one in told)


def test_a_process_with_another_hash_seed_goes_on_equally_and_knows_the_histories_of_its_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = [(seed, calls) for seed in SEEDS for calls in (100, 150, 200, 250)]
    seed, calls = next(moment for moment in moments if has_a_rich_history(after(*moment)))
    plane = after(seed, calls)
    told = histories(plane)
    path = write_checkpoint(tmp_path, plane, calls, 0.0, {})
    rest = [encode_call(now, call) for now, call, _ in story(seed)[1][calls:]]
    (tmp_path / "calls").write_bytes(msgpack.packb(rest))
    print(plane.digest(), *told, sep="\n")  # noqa: T201
    go_on(plane, rest)
    expected = capsys.readouterr().out
    for hash_seed in ("1", "2"):
        done = in_another_process("tell", path, tmp_path / "calls", hash_seed=hash_seed)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == expected


def write_into_a_full_disk(folder: str) -> None:
    import resource

    plane = full_plane(1000)
    write_checkpoint(Path(folder), plane, 1, 0.0, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        write_checkpoint(Path(folder), plane, 2, 0.0, {})
    except OSError as error:
        print(error)  # noqa: T201


def test_a_full_disk_leaves_the_checkpoints_before_it_and_nothing_else(tmp_path: Path) -> None:
    done = in_another_process("write_into_a_full_disk", tmp_path)
    assert "File too large" in done.stdout
    (number, path), *others = checkpoints(tmp_path)
    assert (number, others, list(tmp_path.iterdir())) == (1, [], [path])
    assert load_checkpoint(path).plane.digest() == full_plane(1000).digest()


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_request_to_end_waits_for_what_is_being_written() -> None:
    """Also where NumPy's threads could take the signal."""
    code = """
import os, signal, numpy
from dataplane_server.durability.checkpointer import unbroken
with unbroken():
    os.kill(os.getpid(), signal.SIGTERM)
    print("written", flush=True)
print("not reached", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "written\n"), done.stderr


def test_a_checkpoint_has_what_it_was_given_beside_the_plane(tmp_path: Path) -> None:
    extra = {"arena": [1, "x"], "none": None}
    path = write_checkpoint(tmp_path, after(0, 50), 42, 7.5, extra)
    assert path == tmp_path / "checkpoint-00000000000000000042"
    loaded = load_checkpoint(path)
    assert (loaded.next_record, loaded.now, loaded.extra) == (42, 7.5, extra)
    assert loaded.plane.limits == story(0)[0]


def test_the_newest_checkpoint_comes_first_and_the_others_can_be_removed(tmp_path: Path) -> None:
    plane = DataPlane()
    paths = {number: write_checkpoint(tmp_path, plane, number, 0.0, {}) for number in (10, 9, 100)}
    others = [tmp_path / "checkpoint-7", tmp_path / "arena", tmp_path / "arena.unfinished"]
    half = tmp_path / "checkpoint-00000000000000000007.unfinished"
    for path in (*others, half):
        path.touch()
    assert checkpoints(tmp_path) == [(100, paths[100]), (10, paths[10]), (9, paths[9])]
    assert remove_checkpoints(tmp_path, 1) == [paths[9], paths[10], half]
    assert sorted(tmp_path.iterdir()) == sorted([paths[100], *others])


@pytest.mark.parametrize(
    "made",
    [pytest.param(lambda: after(1, 200), marks=pytest.mark.long), lambda: full_plane(10_000)],
    ids=["much of everything", "many rows"],
)
def test_every_change_of_a_byte_and_every_cut_is_noticed(made: Callable[[], DataPlane], tmp_path: Path) -> None:
    plane = made()
    path = write_checkpoint(tmp_path, plane, 3, 0.0, {})
    data = path.read_bytes()
    places = {*range(30), *range(len(data) - 10, len(data)), *range(0, len(data), len(data) // 25)}
    changed = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in sorted(places)]
    cut = [data[:at] for at in sorted(places)]
    for content in (*changed, *cut, data + b"\0"):
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpointError, match=path.name):
            load_checkpoint(path)
    path.write_bytes(data)
    assert load_checkpoint(path).plane.digest() == plane.digest()


def chunk(content: bytes) -> bytes:
    length = len(content).to_bytes(8, "little")
    return length + zlib.crc32(length + content).to_bytes(4, "little") + content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, r"written by version 0\.0\.1, .*start that version"),
        ({"format": 99}, r"format 99 and this is .*start that version"),
        ({"build": "0" * 32}, "another build of version .*start that build"),
    ],
    ids=["another version", "another format", "another build"],
)
def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = write_checkpoint(tmp_path, DataPlane(), 3, 0.0, {})
    data = path.read_bytes()
    end = 20 + int.from_bytes(data[8:16], "little")
    header = msgpack.unpackb(data[20:end]) | change
    path.write_bytes(data[:8] + chunk(msgpack.packb(header)) + data[end:])
    with pytest.raises(DamagedCheckpointError, match=words):
        load_checkpoint(path)
