"""The memory that the control group of this process may use, and uses: the least limit on the way up to the root.

Version 2 says "max" for none, version 1 a number near 2**63. In a container the path in /proc/self/cgroup may be that
of the host, of which the container sees its own group only, as the root: what does not exist is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class GroupMemory:
    """limit_bytes is None without a limit, used_bytes where nothing tells."""

    limit_bytes: int | None
    used_bytes: int | None


def memory_of_group(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> GroupMemory:
    for root, path, limit_file, usage_file in _hierarchies(proc, mounts):
        folders = [root.joinpath(*part.parts[1:]) for part in (path, *path.parents)]
        limits = [limit for folder in folders if (limit := _number(folder / limit_file)) is not None]
        usages = [usage for folder in folders if (usage := _number(folder / usage_file)) is not None]
        if limits or usages:
            least = min((limit for limit in limits if limit < _NO_LIMIT), default=None)
            return GroupMemory(least, usages[0] if usages else None)
    return GroupMemory(None, None)


def _hierarchies(proc: Path, mounts: Path) -> list[tuple[Path, PurePosixPath, str, str]]:
    """Where a limit may stand: mount, path of our group below it, names of the files."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            v1 = mounts / "memory"
            found.append((v1, PurePosixPath(path), "memory.limit_in_bytes", "memory.usage_in_bytes"))
        elif not controllers:
            found.append((mounts, PurePosixPath(path), "memory.max", "memory.current"))
    return found


def _number(file: Path) -> int | None:
    """None for a file that is not there, or says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
