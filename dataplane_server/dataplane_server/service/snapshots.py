"""Takes snapshots while the server serves, and ends the server's life for one that is restored."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from dataplane_server.arena_streams import to_its_end
from dataplane_server.core.calls.life_calls import EndSnapshot
from dataplane_server.core.calls.names import check_name
from dataplane_server.core.calls.refusal import Reason, Refusal, server_ended
from dataplane_server.durability.checkpoint import DamagedCheckpointError
from dataplane_server.durability.checkpointer import Checkpointer
from dataplane_server.durability.life import Life
from dataplane_server.durability.restore import Source, discard, prepare
from dataplane_server.durability.snapshot import (
    NAME,
    Manifest,
    SnapshotError,
    discard_unfinished,
    list_snapshots,
    read_manifest,
)
from dataplane_server.log import get_log
from dataplane_server.service.shell import Shell


class Snapshots:
    """The snapshots of a server, each a folder in `folder`. left: set when the server has to end, because its next life
    begins with a snapshot.
    """

    def __init__(self, shell: Shell, life: Life, checkpointer: Checkpointer, folder: Path) -> None:
        self.left = asyncio.Event()
        self._shell = shell
        self._life = life
        self._checkpointer = checkpointer
        self._folder = folder
        self._restoring = asyncio.Lock()
        discard_unfinished(folder)
        self._taking: asyncio.Task[Manifest] | None = None
        self._asked = ("", "")  # its name, and the request for it

    async def create(self, name: str, request_id: str) -> Manifest:
        """Take a snapshot of this moment. It is completed also if the caller goes away, who may ask for it again.
        Refusal SNAPSHOT_FAILED, LIMIT_REACHED, INVALID_REQUEST.
        """
        check_name("request_id", request_id, self._shell.plane.limits)
        path, taking = self._checked(name), self._taking
        if taking is not None and not taking.done() and self._asked == (name, request_id):
            return await asyncio.shield(taking)  # it may have its name, and is not on stable storage yet
        if path.exists():
            manifest = _manifest(path)
            if manifest.request_id == request_id:
                return manifest
            raise Refusal(Reason.INVALID_REQUEST, f"there is a snapshot {name!r} already; choose another name")
        if taking is not None and not taking.done():
            raise Refusal(Reason.LIMIT_REACHED, "another snapshot is being taken; there can be one at a time")
        self._asked = name, request_id
        self._taking = asyncio.create_task(self._take(name, request_id))
        self._taking.add_done_callback(_tell_nobody)  # its caller may be gone
        return await asyncio.shield(self._taking)

    async def _take(self, name: str, request_id: str) -> Manifest:
        try:
            self._shell.apply(self._checkpointer.order(name, self._folder, request_id))
            try:
                await self._shell.stable()
                answer = await asyncio.to_thread(self._checkpointer.answer)
            finally:
                with contextlib.suppress(Refusal):  # the log has ended, and the snapshot with it
                    self._shell.apply(EndSnapshot())
        except (OSError, EOFError) as error:
            raise Refusal(Reason.SNAPSHOT_FAILED, f"snapshot {name!r}: {error}") from error
        if "error" in answer:
            raise Refusal(Reason.SNAPSHOT_FAILED, f"snapshot {name!r}: {answer['error']}")
        get_log().info("snapshot_taken", snapshot=name, size_bytes=answer["values_bytes"])
        return Manifest(**answer)

    async def listed(self) -> list[Manifest]:
        """The last 1,000, the oldest first."""
        return await asyncio.to_thread(list_snapshots, self._folder)

    async def restore(self, name: str, request_id: str) -> tuple[Manifest, bool]:
        """Let the next life begin with a snapshot, and ask for the end of this one. Returns also whether this life
        began so, by the same request. Refusal SNAPSHOT_FAILED if it cannot, and DRAINING if another restore has ended
        it; then nothing has changed.
        """
        life = self._life
        check_name("request_id", request_id, self._shell.plane.limits)
        manifest = _manifest(self._checked(name))
        if life.recovery is not None and life.recovery.restored_by == request_id:
            return manifest, True
        async with self._restoring:
            if self.left.is_set():  # what is prepared in the folder is of the next life
                raise server_ended()
            try:
                source = Source(self._folder / name, request_id, life.arena.file_bytes)
                preparing = asyncio.to_thread(prepare, source, life.folder, self._shell.plane.limits)
                await life.leave_for(await to_its_end(preparing))
            except (OSError, SnapshotError, DamagedCheckpointError) as error:
                discard(life.folder)
                raise Refusal(Reason.SNAPSHOT_FAILED, f"snapshot {name!r}: {error}") from error
            except BaseException:
                discard(life.folder)
                raise
            get_log().warning("leaving_for_snapshot", snapshot=name)
            self.left.set()
        return manifest, False

    def _checked(self, name: str) -> Path:
        if NAME.fullmatch(name) is None:
            message = f"{name[:40]!r} is no name for a snapshot: 1 to 128 letters, digits, '.', '_' and '-'"
            raise Refusal(Reason.INVALID_REQUEST, message)
        return self._folder / name


def _tell_nobody(task: asyncio.Task[Manifest]) -> None:
    """Keep asyncio from logging a task's error that nobody asks for."""
    if not task.cancelled():
        task.exception()


def _manifest(folder: Path) -> Manifest:
    try:
        return read_manifest(folder)
    except (OSError, SnapshotError) as error:
        raise Refusal(Reason.SNAPSHOT_FAILED, str(error)) from error
