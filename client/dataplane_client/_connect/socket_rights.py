"""Explains why this process may not connect to a socket file; gRPC says only "Permission denied".

Users and groups are numbers, because their names differ between containers.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

RIGHTS_ADVICE = (
    "run the client as the server's user, or in its group with the server started with --socket-mode 0660 (in a pod: "
    "the same runAsGroup, or an fsGroup on the volume)"
)


def owner_text(path: Path) -> str:
    """Owner and rights of a file. Raises OSError."""
    found = path.stat()
    return f"owner {found.st_uid}:{found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}"


def process_text() -> str:
    groups = sorted({os.getegid(), *os.getgroups()})
    return f"this process is uid {os.geteuid()} in the groups {', '.join(map(str, groups))}"


def may_connect(path: Path) -> bool:
    """Whether this process may connect to a socket, which needs write permission on its file."""
    return os.access(path, os.W_OK, effective_ids=True)


def advice_on(target: str) -> str:
    """Why this process may not connect to `unix:///path`, and what must change; "" if it may connect, or the address is
    of another kind.
    """
    if not target.startswith("unix:"):
        return ""
    file = Path(target.removeprefix("unix:").removeprefix("//"))
    try:
        owner = owner_text(file)
    except PermissionError:
        return (
            f"; this process may not enter the folder {file.parent}: {process_text()}. Let its group enter the folder"
        )
    except OSError:
        return ""
    return "" if may_connect(file) else f"; the socket has {owner}, and {process_text()}: {RIGHTS_ADVICE}"
