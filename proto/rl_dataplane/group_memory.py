"""The memory limit of this process's control group, as containers have one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class GroupMemory:
    """The memory of a control group. limit_bytes: None without a limit. used_bytes: None if unknown."""

    limit_bytes: int | None
    used_bytes: int | None


def read_group_memory(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> GroupMemory:
    """The memory of this process's control group: the smallest limit on the path to the root.

    Version 2 has "max" for no limit, version 1 a number near 2**63. In a container the path in /proc/self/cgroup may be
    that of the host, of which the container sees only its own group, as the root. Files that do not exist are skipped.
    """
    for root, path, limit_file, usage_file in _hierarchies(proc, mounts):
        folders = [root.joinpath(*part.parts[1:]) for part in (path, *path.parents)]
        limits = [limit for folder in folders if (limit := _read_number(folder / limit_file)) is not None]
        usages = [usage for folder in folders if (usage := _read_number(folder / usage_file)) is not None]
        if limits or usages:
            smallest = min((limit for limit in limits if limit < _NO_LIMIT), default=None)
            return GroupMemory(smallest, usages[0] if usages else None)
    return GroupMemory(None, None)


def _hierarchies(proc: Path, mounts: Path) -> list[tuple[Path, PurePosixPath, str, str]]:
    """The hierarchies that may have a limit: mount, path of our group below it, names of the files."""
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


def _read_number(file: Path) -> int | None:
    """The number in a file; None if the file does not exist or contains "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
