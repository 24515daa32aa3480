"""An upgrade keeps rows: a snapshot of an earlier version is restored, and a directory of one is refused unchanged.

`earlier/make_directory.py` has made the directories, with the packages of the version that a file is named after.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.integration.histories.mortal_server import MortalServer
from tests.server.durability.test_graph import Given
from tests.server.durability.test_life import LIMITS, begin

from dataplane_client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError
from dataplane_server.core.calls.requests import ReserveGroup
from dataplane_server.durability import graph
from dataplane_server.durability.earlier_cores import EARLIER
from dataplane_server.durability.life import RecoveryError

ARCHIVES = sorted(Path(__file__).with_name("earlier").glob("*.tar.xz"))
MEMORY = 1 << 20


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.name.partition(".")[0])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The data directory of an earlier version."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "data"


@pytest.fixture
def upgraded(earlier: Path, tmp_path: Path) -> Iterator[MortalServer]:
    flags = ("--memory", str(MEMORY), "--snapshot-dir", str(earlier / "snapshots"))
    with MortalServer(tmp_path, tmp_path / "new", *flags) as server:
        yield server
        assert '"level": "error"' not in server.log


def taken(client: DataPlaneClient, task: str, rows: int) -> list[str]:
    """That many rows, which a task consumes, and with them all that there are."""
    claim = client.claim("train", task, ["reward"], rows)
    claim.commit()
    assert [each.untaken_rows for each in client.partition("train").tasks if each.task == task] == [0]
    return sorted(claim.meta.sample_ids)


def test_a_snapshot_of_an_earlier_version_keeps_rows_groups_and_cursors(upgraded: MortalServer) -> None:
    with connect(upgraded.address) as client:
        client.restore_snapshot("before-upgrade", timeout_s=600.0)
        check_values(client)
        upgraded.kill()  # this version's log goes on from it
        check_values(client)
        check_flow(client)
        client.put_samples(["s12"], "train", {"reward": [3.0]})
        assert taken(client, "train", 1) == ["s12"]
        client.reserve_group("train", "g2", ["g2-0", "g2-1"]).fail(["g2-1"], "the environment crashed")
        assert client.partition("train").removed_rows["failed"] == 1


def check_values(client: DataPlaneClient) -> None:
    ids = [f"s{number}" for number in range(12)]
    found = client.get_samples(ids, "train", ["input_ids", "reward", "pixels"], layout="jagged")
    assert [row.tolist() for row in found["input_ids"].unbind()] == [list(range(number + 1)) for number in range(12)]
    assert found["reward"].tolist() == [number / 4 for number in range(12)]
    assert torch.equal(found["pixels"].float(), torch.arange(48.0).reshape(12, 2, 2))
    assert list(client.get_samples(ids[:3], "train", ["note"])["note"]) == [{"turns": number} for number in range(3)]
    page = client.list_samples("train")
    tags = dict(zip(page.meta.sample_ids, page.meta.tags or (), strict=True))
    assert {key: tags[key] for key in ids} == {
        f"s{n}": {"weight_version": n // 4, "kind": f"k{n % 3}"} for n in range(12)
    }
    groups = {group.group_id: (group.rows, group.reserved) for group in page.groups if group is not None}
    assert groups == {"g0": (2, False), "g1": (2, False)}
    assert client.partition("train").weight_version == 3


def check_flow(client: DataPlaneClient) -> None:
    """What was consumed stays so; what was claimed comes back, and a step goes on."""
    assert {task.task: task.consumed_rows for task in client.partition("train").tasks} == {"logprobs": 0, "train": 4}
    assert not client.claims("train").open
    groups = [f"g{group}-{row}" for group in range(2) for row in range(2)]
    assert taken(client, "train", 12) == sorted([f"s{number}" for number in range(4, 12)] + groups)
    assert len(taken(client, "logprobs", 16)) == 16
    again = client.claim_shard("steps", "t", ["x"], 4, step=0, dp_rank=1, dp_world=2)
    assert len(again.meta.sample_ids) == 2
    with pytest.raises(DataPlaneError, match="committed"):
        client.claim_shard("steps", "t", ["x"], 4, step=0, dp_rank=0, dp_world=2)
    again.commit()
    assert client.partition("steps").tasks[0].next_step == 1


def test_a_group_that_waited_in_an_earlier_version_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a session is in the snapshot, too."""
    earlier, *others = (each.differences for each in EARLIER.values())
    assert not others
    names = ("request_id", "partition_id", "group_id", "sample_ids", "session_id", "weight_version")
    call = ReserveGroup("r", "p", "g", ("s",))
    with monkeypatch.context() as patched:
        patched.setattr(graph, "_slots", lambda kind: names)
        encoded = Given(graph.encode({"root": call}, {}))
    assert graph.decode(encoded, differences=earlier)["root"] == call


def test_the_directory_of_an_earlier_version_is_refused_and_stays_as_it_is(earlier: Path) -> None:
    before = contents(earlier)
    with pytest.raises(RecoveryError, match="build"):
        begin(earlier, "disk", replace(LIMITS, memory_bytes=MEMORY))
    assert contents(earlier) == before


def contents(folder: Path) -> dict[str, bytes]:
    """All files, without the number of starts, which the arena has behind its values."""
    found = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    arena = str(folder / "arena")
    return {**found, arena: found[arena][:MEMORY] + found[arena][MEMORY + 8 :]}
