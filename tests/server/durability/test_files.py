"""A file of a data directory that is not what the server left is refused by name at each start, or not needed.

Each test begins with a directory of two lives of 24 rows, several segments, and a checkpoint half-way, whose server was
killed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.server.durability.test_life import LIMITS, REGISTER, put_of, raised
from tests.server.durability.test_life import begin as begin_with

from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.requests import FinishWrite
from dataplane_server.core.calls.values import Run
from dataplane_server.durability.checkpoint import checkpoints
from dataplane_server.durability.life import DataDirDurability, Life, RecoveryError, Terms, begin_life
from dataplane_server.durability.log_reader import segments
from dataplane_server.durability.replica import Replica

ROWS, BYTES, LIFE = 24, 100, 12
DURABILITIES: tuple[DataDirDurability, ...] = ("process", "disk")
Change = Callable[[Path, "Directories"], object]


begin = partial(begin_with, shared=False, segment_bytes=1400)


async def put_rows(life: Life, first: int, count: int, salt: int) -> None:
    """Acknowledged one by one. Each value has a byte of its own."""
    for number in range(first, first + count):
        begun = life.plane.apply(put_of(f"s{number}", BYTES), life.now())
        assert isinstance(begun, Reservation)
        (run,) = begun.runs
        life.arena.view(run)[:] = bytes([salt + number]) * BYTES
        life.plane.apply(FinishWrite(begun.ticket), life.now())
        await life.flush()


def rows_of(life: Life) -> dict[str, bytes]:
    rows, field = life.plane.partitions["p"].rows, life.plane.partitions["p"].fields["a"]
    slots = rows.all_slots()
    offsets, _ = field.locations(slots)
    return {
        name: bytes(life.arena.view(Run(offset, BYTES)))
        for name, offset in zip(rows.ids(slots), offsets.tolist(), strict=True)
    }


class Directories:
    """used: the directory of a killed server. before: as it was in the middle of its last life. other: of another
    server with the same calls. rows: what `used` has.
    """

    def __init__(self, folder: Path) -> None:
        self.used, self.before, self.other = folder / "used", folder / "before", folder / "other"
        self.rows = {f"s{number}": bytes([1 + number]) * BYTES for number in range(ROWS)}

    async def make(self, durability: DataDirDurability) -> None:
        for folder, salt in ((self.used, 1), (self.other, 101)):
            life = begin(folder, durability)
            life.plane.apply(REGISTER, life.now())
            await put_rows(life, 0, LIFE, salt)
            life.arena.close()
            life = begin(folder, durability)
            replica = Replica(folder)
            replica.catch_up()
            replica.write_checkpoint(folder)
            await put_rows(life, LIFE, LIFE // 2, salt)
            if folder == self.used:
                shutil.copytree(folder, self.before)
            await put_rows(life, LIFE + LIFE // 2, LIFE // 2, salt)
            life.arena.close()

    def file(self, kind: str) -> Path:
        """The file of a kind in `used`."""
        *_, (behind, needed), (_, last) = segments(self.used)
        assert behind > checkpoints(self.used)[0][0]
        return {
            "arena": self.used / "arena",
            "checkpoint": checkpoints(self.used)[0][1],
            "first segment": segments(self.used)[0][1],
            "segment behind the checkpoint": needed,
            "last segment": last,
        }[kind]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[DataDirDurability, Path]:
    """Directories of each durability. Tests get copies."""
    folders: dict[DataDirDurability, Path] = {name: tmp_path_factory.mktemp(name) for name in DURABILITIES}
    for durability, folder in folders.items():
        asyncio.run(Directories(folder).make(durability))
    return folders


@pytest.fixture
def directories(made: dict[DataDirDurability, Path], durability: DataDirDurability, tmp_path: Path) -> Directories:
    return Directories(shutil.copytree(made[durability], tmp_path, dirs_exist_ok=True))


def used_bytes(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def bring_back(path: Path, directories: Directories) -> None:
    if (directories.before / path.name).exists():
        shutil.copy(directories.before / path.name, path)
    else:
        path.unlink()


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def flip_middle(path: Path, _: Directories) -> None:
    flip(path, 3 * BYTES if path.name == "arena" else used_bytes(path) // 2)


CHANGES: dict[str, Change] = {
    "cut": lambda path, _: os.truncate(path, (path.stat().st_size if path.name == "arena" else used_bytes(path)) // 2),
    "cut behind the records": lambda path, _: os.truncate(path, used_bytes(path)),
    "empty": lambda path, _: path.write_bytes(b""),
    "remove": lambda path, _: path.unlink(),
    "exchange": lambda path, directories: shutil.copy(directories.other / path.name, path),
    "zero": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "bring back": bring_back,
    "flip middle": flip_middle,
    "flip last": lambda path, _: flip(path, used_bytes(path) - 1),
}
KINDS = ["arena", "checkpoint", "first segment", "segment behind the checkpoint", "last segment"]


def begun(folder: Path, durability: DataDirDurability, *, accept_loss: bool = False) -> Life | str:
    """A life, or why none begins."""
    try:
        return begin(folder, durability, accept_loss=accept_loss)
    except RecoveryError as error:
        return str(error)


def names_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "removing"}


@pytest.mark.parametrize("durability", ["process", pytest.param("disk", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_file_is_refused_by_name_at_each_start_or_all_rows_are_served(
    directories: Directories, durability: DataDirDurability, kind: str, change: str, tmp_path: Path
) -> None:
    path = directories.file(kind)
    right = path.read_bytes()
    CHANGES[change](path, directories)
    named = {path.name, "field 'a' of sample"} if kind == "arena" else {path.name}
    accepting = tmp_path / "accepting"
    shutil.copytree(directories.used, accepting)
    refusals = 0
    for _ in range(2):
        found = names_of(directories.used)
        life = begun(directories.used, durability)
        if isinstance(life, Life):
            assert rows_of(life) == directories.rows
            life.arena.close()
        else:
            refusals += 1
            assert any(name in life for name in named), life
            assert names_of(directories.used) == found
    assert refusals in (0, 2)
    if refusals:
        path.write_bytes(right)
        after = begin(directories.used, durability)
        assert rows_of(after) == directories.rows
        after.arena.close()
    life = begun(accepting, durability, accept_loss=True)
    if not isinstance(life, Life):
        assert refusals, life
        return
    assert rows_of(life).items() <= directories.rows.items()
    assert life.recovery is not None
    assert (rows_of(life) == directories.rows) or life.recovery.warnings or life.recovery.damaged
    life.arena.close()


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_an_arena_whose_log_is_gone_is_not_new(directories: Directories, durability: DataDirDurability) -> None:
    last = directories.file("last segment").name
    for path in [*directories.used.glob("log-*"), *directories.used.glob("checkpoint-*")]:
        path.unlink()
    for _ in range(3):
        with pytest.raises(RecoveryError, match=last):
            begin(directories.used, durability)
        assert not list(directories.used.glob("log-*"))


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("more", [3, 12])
async def test_a_checkpoint_of_a_lost_segment_is_not_taken_for_one_of_the_log_that_takes_its_place(
    tmp_path: Path, durability: DataDirDurability, more: int
) -> None:
    terms = Terms(tmp_path, LIMITS, False, durability, raised)
    life = begin(tmp_path, durability)
    life.plane.apply(REGISTER, life.now())
    await put_rows(life, 0, LIFE, 1)
    life.arena.close()
    life = begin_life(terms)  # whose segment holds all its calls
    await put_rows(life, LIFE, 6, 1)
    replica = Replica(tmp_path)
    replica.catch_up()
    newer = replica.write_checkpoint(tmp_path)
    life.arena.close()
    lost = segments(tmp_path)[-1][1]
    lost.unlink()
    life = begin_life(replace(terms, accept_loss=True))
    assert (tmp_path / lost.name).exists()
    await put_rows(life, 2 * LIFE, more, 1)
    expected = rows_of(life)
    assert {f"s{2 * LIFE + number}" for number in range(more)} <= set(expected)
    life.arena.close()
    after = begin_life(terms)
    assert rows_of(after) == expected
    after.arena.close()
    assert not newer.exists()
    assert newer.with_name(f"lost-{newer.name}").exists()


async def test_damage_before_the_record_of_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    life = begin_life(Terms(tmp_path, LIMITS, False, "process", raised))
    life.plane.apply(REGISTER, life.now())
    await put_rows(life, 0, LIFE, 1)
    replica = Replica(tmp_path)
    replica.catch_up()
    replica.write_checkpoint(tmp_path)
    await put_rows(life, LIFE, LIFE, 1)
    life.arena.close()
    (_, segment), *_ = segments(tmp_path)
    flip(segment, segment.read_bytes().index(b"put s3"))
    after = begin(tmp_path, "process")
    assert len(rows_of(after)) == ROWS
    assert after.recovery is not None
    assert after.recovery.warnings == ()
    after.arena.close()
    checkpoints(tmp_path)[0][1].unlink()
    with pytest.raises(RecoveryError, match=rf"{segment}: .* byte \d+"):
        begin(tmp_path, "process")


@pytest.mark.parametrize("durability", ["process"])
async def test_a_damaged_checkpoint_is_passed_over_with_a_warning_if_the_log_before_it_is_there(
    directories: Directories,
) -> None:
    flip_middle(directories.file("checkpoint"), directories)
    life = begin(directories.used, "process")
    (warning,) = life.recovery.warnings if life.recovery is not None else ("",)
    assert directories.file("checkpoint").name in warning
    assert "from byte" in warning
    assert rows_of(life) == directories.rows
    life.arena.close()
    directories.file("first segment").unlink()
    with pytest.raises(RecoveryError, match=rf"{directories.file('checkpoint').name} .*from byte"):
        begin(directories.used, "process")


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_segment_without_records_that_the_arena_does_not_know_yet_is_a_start_that_died(
    directories: Directories, durability: DataDirDurability
) -> None:
    page = (directories.used / "arena").read_bytes()
    begin_life(Terms(directories.used, LIMITS, False, durability, raised)).arena.close()
    (directories.used / "arena").write_bytes(page)
    life = begin(directories.used, durability)
    assert rows_of(life) == directories.rows
    life.arena.close()


def test_a_first_segment_that_the_arena_does_not_know_yet_is_a_start_that_died(tmp_path: Path) -> None:
    terms = Terms(tmp_path, replace(LIMITS), False, "disk", raised)
    begin_life(terms).arena.close()
    (tmp_path / "arena").write_bytes(bytes((tmp_path / "arena").stat().st_size))
    begin_life(terms).arena.close()
