"""A snapshot is one consistent cut, taken while others write, and a server goes on from it wherever a restore stops."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.integration.faults.proxy import FaultProxy
from tests.integration.histories.mortal_server import MortalServer
from tests.ranks import free_port
from tests.server.durability.test_life import LIMITS, REGISTER, begin, put_of, raised
from tests.server.durability.test_life import put as put_row
from tests.waiting import eventually

from dataplane_client import ClaimNotFoundError, DataPlaneClient, InvalidArgumentError, PreconditionError, connect
from dataplane_server.cli import _serve
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.life_calls import Restored
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import RegisterPartition
from dataplane_server.core.calls.values import Definition
from dataplane_server.durability import snapshot
from dataplane_server.durability.checkpoint import checkpoints
from dataplane_server.durability.life import Life, Terms, begin_life
from dataplane_server.durability.logged_plane import LoggedPlane
from dataplane_server.durability.replica import Replica
from dataplane_server.durability.restore import Prepared, Source, prepare
from dataplane_server.durability.snapshot import Manifest, SnapshotError, verify_snapshot, write_snapshot
from dataplane_server.durability.standby import _Standby
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import snapshots
from dataplane_server.service.shell import Shell
from dataplane_server.storage.folders import sync_path

ROWS, ENTRIES = 40, 3000


@pytest.fixture(params=["process", pytest.param("disk", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalServer]:
    with MortalServer(tmp_path, tmp_path / "data", "--durability", request.param) as running:
        yield running
        assert '"level": "error"' not in running.log


def snapshot_of(life: Life, folder: Path) -> Path:
    """A snapshot `s` of what there is, which is on stable storage."""
    replica = Replica(life.folder)
    replica.catch_up()
    write_snapshot(folder, "s", "q", replica, life.folder / "arena")
    return folder / "s"


def prepared_from(snapshot: Path, life: Life) -> Prepared:
    return prepare(Source(snapshot, "q2", life.arena.file_bytes), life.folder, LIMITS)


def put(client: DataPlaneClient, first: int, count: int) -> None:
    """Rows whose values tell their ids."""
    ids = range(first, first + count)
    client.put_samples([f"r{n}" for n in ids], "p", {"x": [torch.full((ENTRIES,), n) for n in ids]})


def values_of(client: DataPlaneClient, ids: list[str]) -> list[int]:
    column = client.get_samples(ids, "p", ["x"])["x"]
    assert all((row == row[0]).all() for row in column)
    return [int(row[0]) for row in column]


@pytest.mark.parametrize("transport", ["shm", pytest.param("grpc", marks=pytest.mark.long)])
def test_rows_cursors_and_claims_are_those_of_the_moment_of_the_snapshot(server: MortalServer, transport: str) -> None:
    with connect(server.address, transport=transport) as client:  # type: ignore[arg-type]  # one of the two
        client.register_partition("p", ["x"], 0, ["t"])
        put(client, 0, ROWS)
        client.claim("p", "t", ["x"], 10, min_size=10).commit()
        held = client.claim("p", "t", ["x"], 10, min_size=10)
        stop, numbers = threading.Event(), iter(range(ROWS, 10**6))

        def churn() -> None:
            with connect(server.address, transport=transport) as other:  # type: ignore[arg-type]
                while not stop.is_set():
                    number = next(numbers)
                    put(other, number, 1)
                    other.clear_samples([f"r{number}"], "p")

        churning = threading.Thread(target=churn)
        churning.start()
        taken = client.create_snapshot("a", timeout_s=600.0)
        client.claim("p", "t", ["x"], 20, min_size=20).commit()
        client.clear_samples([f"r{n}" for n in range(ROWS)], "p")
        stop.set()
        churning.join()
        late = client.create_snapshot("b", timeout_s=600.0)
        assert ROWS <= taken.rows <= ROWS + 1
        assert late.rows == 0
        assert client.restore_snapshot("a", timeout_s=600.0) == taken
        again = client.claim("p", "t", ["x"], ROWS, min_size=30)
        assert {f"r{n}" for n in range(10, ROWS)} <= set(again.meta.sample_ids)
        assert values_of(client, [f"r{n}" for n in range(ROWS)]) == list(range(ROWS))
        with pytest.raises(ClaimNotFoundError):
            held.commit()
        again.commit()
        server.kill()
        assert values_of(client, ["r7"]) == [7]
        client.restore_snapshot("b", timeout_s=600.0)
        assert client.server_status().rows == 0


async def test_restores_leave_no_former_states_in_memory(tmp_path: Path) -> None:
    others = planes()
    address = f"unix://{tmp_path}/s"
    flags = ServerConfig((address,), limits=LIMITS, http=None, data_dir=tmp_path / "data")
    serving = asyncio.create_task(_serve(flags))

    def restore() -> None:
        with connect(address, connect_timeout_s=200.0) as client:
            client.create_snapshot("a", timeout_s=600.0)
            for _ in range(3):
                client.restore_snapshot("a", timeout_s=600.0)

    await asyncio.to_thread(restore)
    left = len([plane for plane in planes() if plane not in others])
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert left <= 2, "the last call of the former server may end late"


async def test_a_standby_that_goes_on_from_a_snapshot_keeps_nothing_of_the_state_before(tmp_path: Path) -> None:
    life = begin(tmp_path / "d")
    life.plane.apply(REGISTER, life.now())
    prepared, standby = await prepared_in(tmp_path, life), _Standby(Terms(life.folder, LIMITS, True, "process", raised))
    while standby.advance():
        pass
    assert standby.replica is not None
    former = weakref.ref(standby.replica.plane.partitions["p"].rows)
    await life.leave_for(prepared)
    standby.replica.catch_up()
    assert standby.replica.restored == "s"
    assert former() is None
    life.arena.close()


def planes() -> list[LoggedPlane]:
    """All that were not collected."""
    gc.unfreeze()  # what is frozen is not listed
    return [each for each in gc.get_objects() if type(each) is LoggedPlane]


def test_a_restore_whose_answer_was_lost_ends_when_the_next_life_answers(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with MortalServer(tmp_path, tmp_path / "data", "--listen", address) as server, connect(server.address) as other:
        taken, proxy = other.create_snapshot("a", timeout_s=600.0), FaultProxy(address)
        with connect(proxy.address, transport="grpc") as client, ThreadPoolExecutor(1) as pool:
            client.server_status()
            began, proxy.swallow = time.monotonic(), {"answers"}
            restoring = pool.submit(client.restore_snapshot, "a", timeout_s=600.0)
            eventually(lambda: other.server_status().uptime_s < time.monotonic() - began)
            proxy.reset_connections()
            assert restoring.result() == taken
        proxy.close()
        assert len(server.events("leaving_for_snapshot")) == 1


def test_of_clients_that_restore_at_once_none_spoils_what_another_restores(server: MortalServer) -> None:
    with connect(server.address) as client:
        client.register_partition("p", ["x"], 0, ["t"])
        put(client, 0, ROWS)
        client.create_snapshot("a", timeout_s=600.0)
        client.clear_samples(None, "p")
        put(client, ROWS, ROWS)
    together = threading.Barrier(4)

    def restore(_: int) -> None:
        with connect(server.address, timeout_s=600.0) as one:
            together.wait()
            one.restore_snapshot("a")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(restore, range(4)))
    with connect(server.address) as client:
        ids = [f"r{n}" for n in range(ROWS)]
        assert values_of(client, ids) == list(range(ROWS))
        server.kill()
        assert values_of(client, ids) == list(range(ROWS))


def test_a_snapshot_that_cannot_be_taken_or_used_changes_nothing(server: MortalServer, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "snapshots"
    with connect(server.address) as client:
        client.register_partition("p", ["x"], 0, ["t"])
        put(client, 0, 3)
        client.create_snapshot("a", timeout_s=600.0)
        for name in ("changed", "of another"):
            shutil.copytree(folder / "a", folder / name.replace(" ", "-"))
        with (folder / "changed" / "values").open("r+b") as file:
            file.seek(5)
            file.write(b"!")
        manifest = json.loads((folder / "of-another" / "manifest.json").read_text())
        manifest["limits"]["max_rows"] = 1
        manifest["manifest"] = Manifest(**manifest).checksum
        (folder / "of-another" / "manifest.json").write_text(json.dumps(manifest))
        wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: client.create_snapshot("a"), InvalidArgumentError, "'a'"),
            (lambda: client.create_snapshot("../a"), InvalidArgumentError, "\\.\\./a"),
            (lambda: client.restore_snapshot("none"), PreconditionError, "there is no snapshot"),
            (lambda: client.restore_snapshot("changed"), PreconditionError, "values"),
            (lambda: client.restore_snapshot("of-another"), PreconditionError, "limits"),
        ]
        for call, kind, words in wrong:
            with pytest.raises(kind, match=words):
                call()
        assert values_of(client, ["r0", "r1", "r2"]) == [0, 1, 2]
    with pytest.raises(SnapshotError, match="values"):
        verify_snapshot(folder / "changed")
    assert verify_snapshot(folder / "a").rows == {"p": 3}
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(("restoring", "arena.r"))]


def test_a_snapshot_that_another_server_writes_in_the_same_folder_is_left_alone(tmp_path: Path) -> None:
    life, folder, slow = begin(tmp_path / "data"), tmp_path / "snapshots", tmp_path / "arena"
    life.plane.apply(REGISTER, 0.0)
    put_row(life.plane, "a", 8)
    os.mkfifo(slow)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_snapshot, folder, "s", "q", Replica(life.folder), slow)
        eventually(lambda: list(folder.glob(".*/ranges")))
        verify_snapshot(snapshot_of(life, folder))
        slow.open("wb").close()
        with pytest.raises(OSError, match="not empty"):
            writing.result()
    assert {path.name for path in folder.iterdir()} == {"s", ".lock"}
    life.arena.close()


def test_a_snapshot_whose_name_is_not_synced_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk failed")

    life = begin(tmp_path / "data")
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "sync_path", lambda path: fail() if path == tmp_path else sync_path(path))
        with pytest.raises(OSError, match="the disk failed"):
            snapshot_of(life, tmp_path)
    verify_snapshot(snapshot_of(life, tmp_path))
    life.arena.close()


def test_a_snapshot_whose_server_ends_before_it_gets_its_name_is_not_kept(tmp_path: Path) -> None:
    def check() -> None:
        if list(tmp_path.glob(".*/manifest.json")):
            raise SnapshotError("the server has ended")

    life = begin(tmp_path / "data")
    with pytest.raises(SnapshotError, match="has ended"):
        write_snapshot(tmp_path, "s", "q", Replica(life.folder), life.folder / "arena", check)
    assert {path.name for path in tmp_path.iterdir()} == {"data", ".lock"}
    life.arena.close()


def test_every_changed_entry_of_a_manifest_is_named_and_one_without_a_checksum_is_refused(tmp_path: Path) -> None:
    life = begin(tmp_path / "d")
    path = snapshot_of(life, tmp_path) / "manifest.json"
    life.arena.close()
    whole = json.loads(path.read_text())
    assert verify_snapshot(tmp_path / "s").name == "s"
    other = {"name": "t", "request_id": "r", "at": 1.0, "limits": {}, "rows": {"p": 1}, "values_bytes": 1}
    for entry, value in {**other, "manifest": ""}.items():
        path.write_text(json.dumps({**whole, entry: value}))
        with pytest.raises(SnapshotError, match=r"manifest\.json"):
            verify_snapshot(tmp_path / "s")


def test_a_put_that_is_under_way_changes_its_bytes_meanwhile_and_the_snapshot_is_whole(tmp_path: Path) -> None:
    life = begin(tmp_path / "d")
    life.plane.apply(REGISTER, 0.0)
    put_row(life.plane, "s1", 100)
    begun, stop = life.plane.apply(put_of("s2", 3000), 0.0), threading.Event()
    assert isinstance(begun, Reservation)
    replica = Replica(tmp_path / "d")
    replica.catch_up()

    def write() -> None:
        for number in itertools.count():
            life.arena.view(begun.runs[0])[:] = bytes([number % 256]) * 3000
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            written = write_snapshot(tmp_path, f"s{number}", "q", replica, tmp_path / "d" / "arena")
            assert verify_snapshot(tmp_path / f"s{number}") == written
    finally:
        stop.set()
        writer.join()
    life.log.close()
    life.arena.close()


def spoil(place: Path, how: str) -> None:
    """Put something else in the place of a file."""
    if how == "too large":
        os.truncate(place, 1 << 40)
        return
    former = place.rename(place.parent / "former")
    if how == "a pipe":
        os.mkfifo(place)
    elif how == "a link":
        place.symlink_to(former)
    else:
        place.mkdir()


@pytest.mark.parametrize("name", ["manifest.json", "state", "ranges", "values"])
@pytest.mark.parametrize("how", ["a pipe", "a link", "a folder", "too large"])
def test_a_file_of_a_snapshot_that_is_another_is_refused_unread(tmp_path: Path, how: str, name: str) -> None:
    life = begin(tmp_path / "d")
    folder = snapshot_of(life, tmp_path)
    before = sorted(path.name for path in (tmp_path / "d").iterdir())
    spoil(folder / name, how)
    for read in (verify_snapshot, lambda folder: prepared_from(folder, life)):
        with pytest.raises((SnapshotError, OSError)) as refused:
            read(folder)
        assert (str(folder / name) in str(refused.value), "bytes" in str(refused.value)) == (True, how == "too large")
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == before
    life.arena.close()


def test_a_state_that_no_server_with_these_limits_writes_is_refused_unread(tmp_path: Path) -> None:
    life = begin(tmp_path / "d")
    folder = snapshot_of(life, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sizes"]["state"] = 1 << 40
    manifest["manifest"] = Manifest(**manifest).checksum
    (folder / "manifest.json").write_text(json.dumps(manifest))
    os.truncate(folder / "state", 1 << 40)
    with pytest.raises(SnapshotError, match=f"{folder}/state has {1 << 40} bytes, more than the "):
        prepared_from(folder, life)
    life.arena.close()


# -- a restore while calls come ----------------------------------------------------------------------------------------


async def prepared_in(folder: Path, life: Life) -> Prepared:
    """A snapshot of what there is, to be restored."""
    await life.flush()
    return prepared_from(snapshot_of(life, folder / "snapshots"), life)


async def call_on(life: Life, who: int) -> None:
    """One call after another, each when the one before is on stable storage, until one is refused."""
    for number in itertools.count():
        life.plane.apply(replace(REGISTER, request_id=f"{who} {number}"), life.now())
        assert life.commits is not None
        pending = life.commits.unstable()
        assert pending is not None
        await asyncio.shield(pending)


async def test_a_restore_comes_although_clients_call_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = begin(tmp_path / "d", "disk")
    life.plane.apply(REGISTER, life.now())
    prepared = await prepared_in(tmp_path, life)

    async def slowly(work: Callable[[], None]) -> None:
        await asyncio.to_thread(work)
        await asyncio.sleep(0.005)

    monkeypatch.setattr(life.commits, "_in_thread", slowly)
    clients = []
    for who in range(2):
        clients.append(asyncio.create_task(call_on(life, who)))
        await asyncio.sleep(0.003)
    await asyncio.wait_for(life.leave_for(prepared), 100)
    for client in clients:
        with pytest.raises(Refusal, match="has ended"):
            await asyncio.wait_for(client, 100)
    await life.close()
    life.arena.close()
    after = begin(tmp_path / "d", "disk")
    assert after.recovery is not None
    assert after.recovery.restored == "s"
    await after.close()
    after.arena.close()


@pytest.mark.parametrize("at", [1, 2])
async def test_a_restore_that_is_cancelled_at_a_sync_has_happened_or_calls_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    life = begin(tmp_path / "d", "disk")
    life.plane.apply(REGISTER, life.now())
    prepared = await prepared_in(tmp_path, life)
    syncs, asked, ready = itertools.count(1), asyncio.Event(), asyncio.Event()

    async def stopping(work: Callable[[], None]) -> None:
        if next(syncs) == at:
            asked.set()
            await ready.wait()
        await asyncio.to_thread(work)

    monkeypatch.setattr(life.commits, "_in_thread", stopping)
    life.plane.apply(replace(REGISTER, request_id="before"), life.now())
    assert life.commits is not None
    life.commits.unstable()
    await asyncio.sleep(0)  # it is under way
    leaving, reached = asyncio.ensure_future(life.leave_for(prepared)), asyncio.ensure_future(asked.wait())
    await asyncio.wait([leaving, reached], timeout=100, return_when=asyncio.FIRST_COMPLETED)
    if not leaving.done():
        await asyncio.sleep(0.01)
        leaving.cancel()
    ready.set()
    await asyncio.wait([leaving], timeout=100)
    reached.cancel()
    if leaving.cancelled():
        life.plane.apply(replace(REGISTER, request_id="after"), life.now())
        await asyncio.wait_for(life.flush(), 100)
    else:
        assert checkpoints(tmp_path / "d")[0][0] == life.log.next_record
    await life.close()
    life.arena.close()


async def test_a_server_that_cannot_take_a_restored_state_into_use_ends(tmp_path: Path) -> None:
    failures: list[Exception] = []
    life = begin_life(Terms(tmp_path / "d", LIMITS, False, "process", failures.append))
    life.resume()
    prepared = await prepared_in(tmp_path, life)
    (tmp_path / "d" / f"checkpoint-{life.log.next_record + 1:020}").mkdir()  # in its place
    with pytest.raises(OSError, match="checkpoint"):
        await life.leave_for(prepared)
    assert len(failures) == 1
    life.arena.close()


async def test_a_restore_that_was_cancelled_keeps_others_waiting_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = begin(tmp_path / "d")
    await prepared_in(tmp_path, life)
    shell = Shell(life.plane, Metrics(life.plane, lambda: True), life.now)
    kept = snapshots.Snapshots(shell, life, None, tmp_path / "snapshots")  # type: ignore[arg-type]  # it takes none
    under_way: list[str] = []
    most, begun, goes_on = [0], threading.Event(), threading.Event()

    def slowly(source: Source, *rest: object) -> Prepared:
        under_way.append(source.request_id)
        most.append(len(under_way))
        begun.set()
        if source.request_id == "first":
            goes_on.wait(200)
        try:
            return prepare(source, *rest)  # type: ignore[arg-type]
        finally:
            under_way.remove(source.request_id)

    monkeypatch.setattr(snapshots, "prepare", slowly)
    first = asyncio.create_task(kept.restore("s", "first"))
    await asyncio.to_thread(begun.wait, 200)
    second = asyncio.create_task(kept.restore("s", "second"))
    for _ in range(2):
        first.cancel()
        await asyncio.sleep(0.05)
    goes_on.set()
    await asyncio.wait([first, second], timeout=200)
    assert (first.cancelled(), second.result()[0].name, max(most)) == (True, "s", 1)
    await life.close()
    life.arena.close()
    after = begin(tmp_path / "d")
    assert after.recovery is not None
    assert after.recovery.restored_by == "second"
    after.arena.close()


# -- a restore that is cut short --------------------------------------------------------------------------------------


class _Cut(BaseException):
    """The death of the process at this point."""


@pytest.mark.parametrize("step", [pytest.param(step, marks=[pytest.mark.long] * (step % 2)) for step in range(9)])
async def test_a_restore_that_ends_anywhere_has_happened_or_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    life = begin(tmp_path / "d")
    life.plane.apply(RegisterPartition("r1", Definition("old", ("a",), ("t",))), life.now())
    snapshot = snapshot_of(life, tmp_path)
    life.plane.apply(RegisterPartition("r2", Definition("new", ("a",), ("t",))), life.now())
    steps = iter(range(100))

    def cut_before(module: object, name: str) -> None:
        whole = getattr(module, name)

        def replaced(*arguments: object, **options: object) -> object:
            if next(steps) == step:
                raise _Cut
            return whole(*arguments, **options)

        monkeypatch.setattr(module, name, replaced)

    for module, name in ((os, "copy_file_range"), (os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir")):
        cut_before(module, name)
    try:
        await life.leave_for(prepared_from(snapshot, life))
        with pytest.raises(Refusal):
            life.plane.apply(RegisterPartition("r3", Definition("lost", ("a",), ("t",))), life.now())
    except _Cut:
        pass
    whole = next(steps) <= step
    monkeypatch.undo()
    life.arena.close()
    after = begin(tmp_path / "d")
    found = set(after.plane.partitions)
    assert found in ([{"old"}] if whole else [{"old"}, {"old", "new"}])
    after.plane.check_invariants()
    after.arena.close()
    again = begin(tmp_path / "d")
    assert set(again.plane.partitions) == found
    again.arena.close()
    assert sorted(path.name for path in (tmp_path / "d").iterdir() if "restor" in path.name) == []


@pytest.mark.parametrize("which", ["of the life before", "of the life after"])
async def test_a_damaged_checkpoint_around_a_restore_that_was_cut_short_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    def cut(*_: object) -> None:
        raise _Cut

    life, (before, after) = begin(tmp_path / "d"), [Replica(tmp_path / "d") for _ in range(2)]
    prepared = prepared_from(snapshot_of(life, tmp_path), life)
    before.catch_up()
    damaged = before.write_checkpoint(life.folder)
    with monkeypatch.context() as patched:
        patched.setattr(Prepared, "use", cut)
        with pytest.raises(_Cut):
            await life.leave_for(prepared)
    life.arena.close()
    if which == "of the life before":
        damaged.write_bytes(b"")
    life = begin(tmp_path / "d")
    life.plane.apply(REGISTER, life.now())
    after.catch_up()
    if which == "of the life after":
        damaged = after.write_checkpoint(life.folder)
        damaged.write_bytes(damaged.read_bytes()[:-1])
    life.arena.close()
    again = begin(tmp_path / "d")
    again.arena.close()
    assert set(again.plane.partitions) == {"p"}


async def test_a_replica_that_follows_goes_on_with_what_was_restored(tmp_path: Path) -> None:
    life = begin(tmp_path / "d")
    follower = Replica(tmp_path / "d")
    life.plane.apply(RegisterPartition("r1", Definition("old", ("a",), ("t",))), life.now())
    follower.catch_up()
    write_snapshot(tmp_path, "s", "q", follower, tmp_path / "d" / "arena")
    life.plane.apply(RegisterPartition("r2", Definition("lost", ("a",), ("t",))), life.now())
    await life.leave_for(prepared_from(tmp_path / "s", life))
    assert follower.advance()
    assert set(follower.plane.partitions) == {"old", "lost"}
    life.arena.close()
    after = begin(tmp_path / "d")
    after.plane.apply(RegisterPartition("r3", Definition("new", ("a",), ("t",))), after.now())
    follower.catch_up()
    assert follower.plane.digest() == after.plane.digest()
    after.arena.close()


async def test_rows_after_a_restore_are_newer_than_all_before_it_although_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    ahead = 1 << 60
    life = begin(tmp_path / "d")
    life.plane.apply(REGISTER, life.now())
    snapshot = snapshot_of(life, tmp_path)
    life.plane.apply(Restored("c", ahead), life.now())  # as a restore when the clock was far ahead of now
    put_row(life.plane, "z", 8)
    await life.leave_for(prepared_from(snapshot, life))
    life.arena.close()
    after = begin(tmp_path / "d")
    put_row(after.plane, "z", 8)
    (generation,) = after.plane.partitions["p"].rows.generations(after.plane.partitions["p"].rows.all_slots())
    after.arena.close()
    assert generation > ahead
