"""A checkpoint of the trainer and a snapshot of the server are saved and loaded together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.histories.mortal_server import MortalServer
from tests.rank_pool import RankPool
from tests.trainer_adapter.policy.serial_group import SerialGroup, config_of
from tests.trainer_adapter.worker_groups.gloo_worker import GlooWorker

from dataplane_client import DataPlaneError, connect
from dataplane_client.loader import ClaimLoader
from dataplane_server.testing import running_server
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker_groups import TorchrunWorkerGroup

pytestmark = pytest.mark.xdist_group("ranks")

NAMES = [f"r{row:02}" for row in range(12)]


class SavingWorker(GlooWorker):
    """Its checkpoint is a file with its rank, which may come later."""

    def save_checkpoint(self, weights_path: str, checkpointing_cfg: Mapping[str, Any] | None, **_: Any) -> None:
        Path(weights_path).mkdir(parents=True, exist_ok=True)
        self._late = Path(weights_path, f"rank{self.rank}")
        if not checkpointing_cfg:
            self._late.touch()

    def finish_checkpoint(self) -> None:
        self._late.touch()

    def load_checkpoint(self, weights_path: str, **_: Any) -> None:
        assert Path(weights_path, f"rank{self.rank}").exists()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MortalServer]:
    """With partition p, which has no rows yet, and snapshots."""
    with MortalServer(tmp_path, tmp_path / "data") as server:
        with connect(server.address, timeout_s=600.0) as client:
            client.register_partition("p", ["x"], 0, ["train"])
        yield server


def test_the_driver_alone_saves_and_restores_while_the_others_wait(
    tmp_path: Path, server: MortalServer, rank_pool: RankPool
) -> None:
    with running_server() as forgetful:
        rank_pool.play(be_a_rank, tmp_path, server.address, forgetful)
    (snapshot,) = (tmp_path / "data" / "snapshots").glob("step-7-*")
    saved = json.loads((tmp_path / "step-7" / "weights" / "data_plane.json").read_text())
    assert saved["snapshot"] == snapshot.name


def be_a_rank(rank: int, folder: Path, address: str, forgetful: str) -> None:
    policy = DataPlanePolicy(config_of(), TorchrunWorkerGroup(SavingWorker, {}))
    names = ("step-7", "beside", "without", "failed")
    good, beside, without, failed = (str(folder / name / "weights") for name in names)
    with connect(address, timeout_s=600.0) if rank == 0 else nullcontext() as client:
        if client is not None:
            client.put_samples(["a"], "p", {"x": torch.zeros(1, 4)})
        policy.save_checkpoint(good, data_plane=client)
        assert sorted(path.name for path in Path(good).iterdir()) == ["data_plane.json", "rank0", "rank1"]
        if client is not None:
            client.put_samples(["b"], "p", {"x": torch.zeros(1, 4)})
        policy.save_checkpoint(beside, None, None, {"is_async": True}, data_plane=client)
        assert client is None or not any(Path(beside).glob("data_plane.json"))
        policy.save_checkpoint(without)
        assert sorted(path.name for path in Path(beside).iterdir()) == ["data_plane.json", "rank0", "rank1"]
        with pytest.raises(FileNotFoundError if rank == 0 else RuntimeError, match=r"has no data_plane\.json"):
            policy.load_checkpoint(without, data_plane=client)
        assert client is None or client.server_status().rows == 2
        policy.load_checkpoint(good, data_plane=client)
        assert client is None or client.list_samples("p").meta.sample_ids == ["a"]
    refused = pytest.raises(DataPlaneError if rank == 0 else RuntimeError, match="--data-dir")
    with connect(forgetful) if rank == 0 else nullcontext() as client, refused:
        policy.save_checkpoint(failed, data_plane=client)
    assert sorted(path.name for path in Path(failed).iterdir()) == ["rank0", "rank1"]
    policy.shutdown()


def interrupt(_method: str) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_lost", [False, True])
def test_shutdown_names_the_snapshot_after_an_interrupted_wait_and_tells_whether_it_could(
    tmp_path: Path, server: MortalServer, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    group, weights = SerialGroup(1), tmp_path / "step-7"
    policy = DataPlanePolicy(config_of(), group)
    with connect(server.address, timeout_s=600.0) as client:
        policy.save_checkpoint(str(weights), None, None, {"is_async": True}, data_plane=client)
    monkeypatch.setattr(group, "run_everywhere", interrupt)
    with pytest.raises(KeyboardInterrupt):
        policy.finish_checkpoint()
    if is_lost:
        weights.rmdir()
    assert policy.shutdown() != is_lost
    assert (weights / "data_plane.json").exists() != is_lost


def test_a_loader_that_prefetches_gives_each_row_once_to_the_timeline_that_survives(
    tmp_path: Path, server: MortalServer
) -> None:
    policy, weights = DataPlanePolicy(config_of(), SerialGroup(2)), tmp_path / "step-3"
    weights.mkdir()
    trained: list[str] = []
    saved: list[str] = []
    with connect(server.address, timeout_s=600.0) as client:
        client.put_samples(NAMES, "p", {"x": torch.zeros(12, 4)})
        with ClaimLoader(server.address, "p", "train", ["x"], 2, prefetch=2) as loader:
            for step, batch in enumerate(loader, 1):
                trained += batch.meta.sample_ids
                batch.commit()
                if step == 3:
                    policy.save_checkpoint(str(weights), data_plane=client)
                    saved = list(trained)
                if step == 4:
                    break
        policy.load_checkpoint(str(weights), data_plane=client)
        assert (len(saved), client.partition("p").task("train").untaken_rows) == (6, 6)
        with ClaimLoader(server.address, "p", "train", ["x"], 2, prefetch=2) as loader:
            for batch in loader:
                saved += batch.meta.sample_ids
    assert sorted(saved) == NAMES
