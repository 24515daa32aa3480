"""What doctor makes of limits: files as the kernel writes them, in a folder of the test's own."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane_client.cli.doctor._cgroup import GroupMemory, memory_of_group
from dataplane_client.cli.doctor._descriptors import descriptor_check
from dataplane_client.cli.doctor._memory_limits import host_memory_check, memory_limit_check
from dataplane_client.cli.doctor._versions import version_check
from dataplane_client.descriptions import ServerStatus

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
def test_the_least_limit_on_the_way_to_the_root_counts(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: GroupMemory
) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_of_group(tmp_path / "proc", tmp_path / "cgroup") == expected


@pytest.mark.parametrize(
    ("group", "outcome", "found"),
    [
        (GroupMemory(None, 3 * GIB), "ok", "none for this process (3.0 GiB in use)"),
        (GroupMemory(4 * GIB, None), "ok", "4.0 GiB for this process, an arena of 4.0 GiB"),
        (GroupMemory(2 * GIB, GIB), "warning", "2.0 GiB for this process (1.0 GiB in use), an arena of 4.0 GiB"),
    ],
)
def test_a_client_whose_limit_is_smaller_than_the_arena_is_warned(group: GroupMemory, outcome: str, found: str) -> None:
    check = memory_limit_check(4 * GIB, group)
    assert check.outcome == outcome
    assert check.found.startswith(found)
    assert bool(check.advice) == (outcome == "warning")


@pytest.mark.parametrize(
    ("meminfo", "outcome", "found"),
    [
        ("MemTotal: 9000000 kB\nMemAvailable: 4194304 kB\n", "ok", "4.0 GiB available, the arena may take another 3.0"),
        ("MemAvailable: 1048576 kB\n", "warning", "1.0 GiB available, the arena may take another 3.0 GiB"),
        ("MemTotal: 9000000 kB\n", "ok", "not known"),
    ],
)
def test_a_host_that_has_less_than_the_arena_may_take_is_told(
    tmp_path: Path, meminfo: str, outcome: str, found: str
) -> None:
    (tmp_path / "meminfo").write_text(meminfo)
    status = ServerStatus("1", 4 * GIB, GIB, 0, 0.0, 0, 0, 0)
    check = host_memory_check(status, tmp_path / "meminfo")
    assert (check.outcome, check.found[: len(found)]) == (outcome, found)


def test_versions_that_differ_are_a_warning() -> None:
    check = version_check("0.0.1")
    assert check.outcome == "warning"
    assert "server 0.0.1" in check.found


@pytest.fixture
def soft_limit() -> Iterator[Callable[[int], None]]:
    """Sets how many descriptors this process may have, until the test is over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("limit", "outcome"), [(512, "warning"), (1024, "ok")])
def test_few_file_descriptors_are_a_warning(soft_limit: Callable[[int], None], limit: int, outcome: str) -> None:
    soft_limit(limit)
    check = descriptor_check()
    assert check.outcome == outcome
    assert check.found.startswith(f"at most {limit:,} (may be raised to ")
