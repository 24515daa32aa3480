"""The wings of client, core, service and cluster: each imports only what stands on floors below its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.repository.test_imports import PACKAGES, imported

CLIENT, SERVER = PACKAGES["dataplane_client"], PACKAGES["dataplane_server"]
FLOORS: dict[str, tuple[Path, list[str]]] = {
    "dataplane_client": (
        CLIENT,
        [
            "errors packing",
            "_common _connect",
            "_values records",
            "batched_data_dict",
            "_memory _requests observe codec options",
            "_verbs",
            "aio client loader",
            "checkpoint_files cli __init__",
        ],
    ),
    "dataplane_server.core": (
        SERVER / "core",
        ["calls", "rows", "tasks", "state", "verbs", "stats", "turn", "plane", "__init__"],
    ),
    "dataplane_server.service": (
        SERVER / "service",
        [
            "binding endless lives messages recent socket_files ticker turns waiters",
            "error_table session_streams sidecar translate",
            "call_scope shell",
            "snapshots values",
            "grpc",
            "local",
            "server",
            "__init__",
        ],
    ),
    "dataplane_server.cluster": (
        SERVER / "cluster",
        [
            "asking messages ray_nodes",
            "node",
            "coordinator",
            "command __init__",
        ],
    ),
}
"""Of each package its folder, and its modules and wings from the ground up."""


def rooms(folder: Path) -> dict[str, list[Path]]:
    """The sources of each module and each wing."""
    return {
        path.stem: [path] if path.is_file() else sorted(path.rglob("*.py"))
        for path in folder.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }


def neighbours(source: str, package: str) -> Iterator[str]:
    """Modules and wings of a package that a module imports."""
    names = (name for name in imported(source) if name.startswith(f"{package}."))
    yield from (name.removeprefix(f"{package}.").split(".")[0] for name in names)


@pytest.mark.parametrize("package", FLOORS)
def test_a_wing_imports_only_from_the_floors_below(package: str) -> None:
    folder, floors = FLOORS[package]
    sources = rooms(folder)
    floor_of = {room: number for number, row in enumerate(floors) for room in row.split()}
    assert sorted(floor_of) == sorted(sources)
    against = {
        f"{path.relative_to(folder)} imports {name}"
        for room, paths in sources.items()
        for path in paths
        for name in neighbours(path.read_text(), package)
        if name in floor_of and name != room and floor_of[name] >= floor_of[room]
    }
    assert against == set()


@pytest.mark.parametrize(
    "source",
    ["import a.b.c", "from a.b import c", "from a import b", "def late():\n    from a.b.c import d"],
)
def test_the_search_finds(source: str) -> None:
    assert list(neighbours(source, "a")) == ["b"]
