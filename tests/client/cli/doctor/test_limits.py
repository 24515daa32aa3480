"""The checks of limits, on files as the kernel writes them, in a temporary folder.

White-box: no machine has all of these limits.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane_client.cli._doctor_checks import (
    check_descriptors,
    check_host_memory,
    check_memory_limit,
    check_versions,
)
from dataplane_client.records.descriptions import ServerStatus
from rl_dataplane.group_memory import GroupMemory, read_group_memory

GIB = 1 << 30
V1_NONE = "9223372036854771712"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000\n", "memory.current": "400\n"}, GroupMemory(1000, 400)),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "400\n"}, GroupMemory(None, 400)),
        (
            "0::/pod/trainer\n",
            {"pod/trainer/memory.max": "max", "pod/trainer/memory.current": "7", "pod/memory.max": "900"},
            GroupMemory(900, 7),
        ),
        ("0::/of/the/host\n", {"memory.max": "1000", "memory.current": "400"}, GroupMemory(1000, 400)),
        (
            "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n",
            {"memory/x/memory.limit_in_bytes": "1000", "memory/x/memory.usage_in_bytes": "400"},
            GroupMemory(1000, 400),
        ),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": V1_NONE}, GroupMemory(None, None)),
        ("0::/\n", {}, GroupMemory(None, None)),
        (None, {"memory.max": "1000"}, GroupMemory(None, None)),
    ],
    ids=["v2", "v2-none", "v2-above", "v2-container", "v1", "v1-none", "no-files", "no-proc"],
)
def test_the_smallest_limit_on_the_path_to_the_root_counts(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: GroupMemory
) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert read_group_memory(tmp_path / "proc", tmp_path / "cgroup") == expected


@pytest.mark.parametrize(
    ("durability", "group", "outcome", "found"),
    [
        ("", GroupMemory(None, 3 * GIB), "ok", "none for this process (3.0 GiB in use)"),
        ("", GroupMemory(4 * GIB, None), "ok", "4.0 GiB for this process, an arena of 4.0 GiB"),
        ("memory", GroupMemory(2 * GIB, GIB), "warning", "2.0 GiB for this process (1.0 GiB in use), an arena of 4.0"),
        ("process", GroupMemory(2 * GIB, GIB), "ok", "2.0 GiB for this process (1.0 GiB in use), an arena of 4.0 GiB"),
    ],
)
def test_a_memory_limit_below_the_size_of_an_arena_that_clients_allocate_is_a_warning(
    durability: str, group: GroupMemory, outcome: str, found: str
) -> None:
    status = ServerStatus("1", 4 * GIB, GIB, 0, 0.0, 0, 0, 0, durability=durability)
    check = check_memory_limit(status, group)
    assert check.outcome == outcome
    assert check.found.startswith(found)
    assert bool(check.advice) == (outcome == "warning")


@pytest.mark.parametrize(
    ("meminfo", "outcome", "found"),
    [
        ("MemTotal: 9000000 kB\nMemAvailable: 4194304 kB\n", "ok", "4.0 GiB available, the arena may take another 3.0"),
        ("MemAvailable: 1048576 kB\n", "warning", "1.0 GiB available, the arena may take another 3.0 GiB"),
        ("MemTotal: 9000000 kB\n", "ok", "unknown"),
    ],
)
def test_a_host_with_less_memory_than_the_arena_may_take_is_a_warning(
    tmp_path: Path, meminfo: str, outcome: str, found: str
) -> None:
    (tmp_path / "meminfo").write_text(meminfo)
    status = ServerStatus("1", 4 * GIB, GIB, 0, 0.0, 0, 0, 0)
    check = check_host_memory(status, tmp_path / "meminfo")
    assert (check.outcome, check.found[: len(found)]) == (outcome, found)


def test_versions_that_differ_are_a_warning() -> None:
    check = check_versions("0.0.1")
    assert check.outcome == "warning"
    assert "server 0.0.1" in check.found


@pytest.fixture
def soft_limit() -> Iterator[Callable[[int], None]]:
    """Set the limit of file descriptors of this process until the end of the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("limit", "outcome"), [(512, "warning"), (1024, "ok")])
def test_few_file_descriptors_are_a_warning(soft_limit: Callable[[int], None], limit: int, outcome: str) -> None:
    soft_limit(limit)
    check = check_descriptors()
    assert check.outcome == outcome
    assert check.found.startswith(f"limit {limit:,} (can be raised to ")
