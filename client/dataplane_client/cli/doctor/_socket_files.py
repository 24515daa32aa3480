"""The files of a server's Unix sockets: the one for gRPC, and beside it FILE.local, over which its memory is passed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dataplane_client._channel import checked_target
from dataplane_client._socket_rights import RIGHTS_ADVICE, may_connect, owner_text, process_text
from dataplane_client.cli.doctor._check import Check, Outcome
from rl_dataplane.v1.local_frames import FILE_SUFFIX


def socket_checks(address: str) -> Iterator[Check]:
    """None for an address that is no socket file. Without FILE.local a client works, over gRPC."""
    target = checked_target(address)
    if target.startswith("unix:"):
        path = target.removeprefix("unix://")
        yield _socket_check("socket file", Path(path), "problem")
        yield _socket_check("memory socket", Path(path + FILE_SUFFIX), "warning")


def _socket_check(name: str, path: Path, otherwise: Outcome) -> Check:
    try:
        if not path.is_socket():
            return Check(name, otherwise, *_missing(path))
        found = f"{path}: {owner_text(path)}"
        allowed = may_connect(path)
    except PermissionError:
        found = f"{path}: {_closed_folder(path)} may not be searched"
        allowed = False
    if allowed:
        return Check(name, "ok", found)
    return Check(name, otherwise, f"permission denied on {found}; {process_text()}", RIGHTS_ADVICE)


def _missing(path: Path) -> tuple[str, str]:
    """What was found instead of a socket, and what to do."""
    if path.exists():
        return f"{path} is no socket", "give the path that the server listens at"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}", "see that the server's volume is mounted here, at the same path"
    advice = "see that the server runs, that it listens at this path, and that both mount the same volume"
    if path.name.endswith(FILE_SUFFIX):
        advice += "; a server with --no-share-memory has no such socket"
    return f"there is no {path}", advice


def _closed_folder(path: Path) -> Path:
    """The first folder on the way that this user may not search."""
    closed = (folder for folder in reversed(path.parents) if not os.access(folder, os.X_OK, effective_ids=True))
    return next(closed, path.parent)
