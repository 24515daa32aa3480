"""The whole path with real processes: rollouts are put on a server; ranks recompute log-probabilities, write them back,
and train on them. Every number is that of one process with a plain model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scripts.page_blocks import ADDRESS, ROOT, programs_of
from tests.rank_pool import RankPool
from tests.trainer_adapter.data_plane.replica_cases import counters
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.plain_policy import grpo_loss, logprobs_alone, model_alone
from tests.trainer_adapter.worker.worker_cases import LENGTHS, Layout, batch
from torch import Tensor

from dataplane_client import kv_first_write
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread, running_server
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker import AutomodelPolicyWorker
from trainer_adapter.worker_groups import RayGroupOptions, RayWorkerGroup, TorchrunWorkerGroup, WorkerGroup

pytestmark = pytest.mark.xdist_group("ranks")
ROLLOUT_FIELDS = ("input_ids", "input_lengths", "token_mask", "sample_mask", "generation_logprobs")
TRAIN_FIELDS = (*ROLLOUT_FIELDS, "prev_logprobs", "reference_policy_logprobs", "advantages")
PER_TOKEN = [name for name in TRAIN_FIELDS if name not in ("input_lengths", "sample_mask")]
IDS = [f"p{row // 2}_g{row % 2}" for row in range(len(LENGTHS))]
SHUFFLED = random.Random(3).sample(range(len(LENGTHS)), len(LENGTHS))


class Played(NamedTuple):
    """What one step left behind: the columns by id, the reports of two updates, and the counts of the server."""

    columns: dict[str, dict[str, Tensor]]
    reports: list[dict[str, Any]]
    counts: dict[tuple[str, str], int]
    consumed: dict[str, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end_to_end")
    worker_cases.save_model(folder / "model")
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("torchrun", Layout(tp=2)), id="replicas"),
        pytest.param(("torchrun", Layout(dp=2)), id="shards", marks=pytest.mark.long),
        pytest.param(("ray", Layout(tp=2)), id="actors", marks=pytest.mark.soak),
    ],
)
def played(request: pytest.FixtureRequest, folder: Path, rank_pool: RankPool) -> Iterator[Played]:
    """By processes that each run a script, and by actors, which take 6 s of a core each to start, and their driver."""
    launcher, layout = request.param
    server = ServerThread(ServerConfig(listen=(f"unix://{folder}/{launcher}_{layout}",), http="127.0.0.1:0"))
    script = Script(folder / "model", layout, server.addresses[0])
    try:
        with connect(script.address) as client:
            register_rollouts(client)
            put_rollouts(client)
            if launcher == "torchrun":
                reports, others = rank_pool.play(train_as_rank, script, ranks=layout.ranks)
                assert shown(others) == shown(reports)
            else:
                request.getfixturevalue("ray_cluster")
                reports = train_by_actors(script)
            counts = counters(server.http_address)
            consumed = {task.task: task.consumed_rows_total for task in client.partition("train").tasks}
            yield Played({sample_id: columns_of(client, sample_id) for sample_id in IDS}, reports, counts, consumed)
    finally:
        server.stop()


class Script(NamedTuple):
    """What a user writes once for any group of workers."""

    model: Path
    layout: Layout
    address: str

    @property
    def config(self) -> Any:
        return worker_cases.config(self.model, self.layout, "sequence")

    @property
    def arguments(self) -> dict[str, Any]:
        return {"config": self.config, "data_plane": self.address}

    def train(self, group: WorkerGroup) -> list[dict[str, Any]]:
        """Both log-probabilities, and two updates, of which it returns the reports."""
        policy = DataPlanePolicy(self.config, group)
        with connect(self.address) if group.is_driver else nullcontext() as client:

            @contextmanager
            def claimed(task: str, fields: Sequence[str]) -> Iterator[KVBatchMeta]:
                with client.claim("train", task, fields, len(IDS)) if client is not None else nullcontext() as claim:
                    meta = group.from_driver(None if claim is None else claim.meta)
                    assert meta is not None
                    yield meta

            try:
                with claimed("prev_lp", ROLLOUT_FIELDS) as meta:
                    policy.get_logprobs_from_meta(meta)
                with claimed("ref_lp", ROLLOUT_FIELDS) as meta:
                    policy.get_reference_policy_logprobs_from_meta(meta)
                with claimed("train", TRAIN_FIELDS) as meta:
                    return [policy.train_from_meta(meta, ClippedPolicyGradientLoss()) for _ in range(2)]
            finally:
                assert policy.shutdown()


def train_as_rank(_rank: int, script: Script) -> list[dict[str, Any]]:
    return script.train(TorchrunWorkerGroup(AutomodelPolicyWorker, script.arguments))


def train_by_actors(script: Script) -> list[dict[str, Any]]:
    options = RayGroupOptions(
        num_workers=script.layout.ranks, gpus_per_worker=0, start_timeout_s=300, call_timeout_s=300
    )
    return script.train(RayWorkerGroup(AutomodelPolicyWorker, script.arguments, options))


def shown(reports: list[dict[str, Any]]) -> list[Any]:
    return [(report["loss"].tolist(), float(report["grad_norm"]), report["all_mb_metrics"]) for report in reports]


def register_rollouts(client: DataPlaneClient) -> None:
    tasks = ["prev_lp", "ref_lp", "train"]
    client.register_partition("train", TRAIN_FIELDS, len(IDS), tasks, per_token_fields=PER_TOKEN)


def put_rollouts(client: DataPlaneClient) -> None:
    """In an order of their own, so that no position in a batch is by chance the row's own number."""
    rows = batch().select_indices(SHUFFLED)
    rows.truncate_tensors(dim=1, truncated_len=max(LENGTHS))
    kept = {name: rows[name] for name in (*ROLLOUT_FIELDS, "advantages")}
    kv_first_write(kept, sample_ids=[IDS[row] for row in SHUFFLED], dp_client=client, partition_id="train")


def columns_of(client: DataPlaneClient, sample_id: str) -> dict[str, Tensor]:
    names = ["prev_logprobs", "reference_policy_logprobs"]
    data = client.get_samples([sample_id], "train", names)
    return {name: data[name].values() if data[name].is_nested else data[name][0] for name in names}


@pytest.mark.parametrize("name", ["prev_logprobs", "reference_policy_logprobs"])
def test_columns_read_back_are_those_of_a_plain_forward_row_by_row(folder: Path, played: Played, name: str) -> None:
    expected = logprobs_alone(folder / "model")
    for row, sample_id in enumerate(IDS):
        found = played.columns[sample_id][name]
        torch.testing.assert_close(found, expected[row, : LENGTHS[row]], rtol=1e-5, atol=1e-5)


def test_leaders_alone_write_and_read_and_each_stage_consumes_every_row(played: Played) -> None:
    """One rank for each row: it is written once by each stage, and read once by each of four."""
    assert played.counts["dataplane_put_rows_total", "train"] == 3 * len(IDS)
    assert played.counts["dataplane_read_rows_total", "train"] == 4 * len(IDS)

    assert played.consumed == dict.fromkeys(("prev_lp", "ref_lp", "train"), len(IDS))


def test_losses_are_those_of_one_process(folder: Path, played: Played) -> None:
    model = model_alone.__wrapped__(folder / "model")
    rows = batch()
    rows["prev_logprobs"] = logprobs_alone(folder / "model")
    optimizer = torch.optim.SGD(model.parameters(), lr=worker_cases.LEARNING_RATE)
    for report in played.reports:
        loss = grpo_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), worker_cases.MAX_GRAD_NORM)
        optimizer.step()
        assert report["loss"].tolist() == pytest.approx([loss.item()], rel=1e-4, abs=1e-6)
        assert float(report["grad_norm"]) == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.long
def test_the_program_of_the_guide_trains_as_it_stands_on_another_model(
    folder: Path, ray_cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "".join(code for code, _ in programs_of(ROOT / "docs" / "trainer.md")[0])
    with running_server() as address, connect(address) as client:
        names: dict[str, Any] = {"__name__": "page"}
        there = {ADDRESS: address, "Qwen/Qwen3-0.6B": str(folder / "model"), "    ray.init()\n": ""}  # ray runs already
        for told, here in there.items():
            assert told in program
            program = program.replace(told, here)
        exec(compile(program, "<docs/trainer.md>", "exec"), names)  # noqa: S102  # ours
        names["register_rollouts"](client)
        put_rollouts(client)
        names["main"]()
        assert client.partition("train").task("train").consumed_rows_total == len(IDS)
    assert len(re.findall(r"^loss -?\d\.\d{3}, gradient norm \d+\.\d{3}$", capsys.readouterr().out, re.MULTILINE)) == 2


def test_the_asynchronous_step_of_the_guide_trains_rows_without_a_reference_and_clears_them(
    folder: Path, rank_pool: RankPool
) -> None:
    blocks = [code for program in programs_of(ROOT / "docs" / "trainer.md") for code, _ in program]
    (code,) = (code for code in blocks if "def asynchronous_step" in code)
    names: dict[str, Any] = {"__name__": "page"}
    exec(code, names)  # noqa: S102  # ours
    with running_server() as address, connect(address) as client:
        names["register_flow"](client)
        rows = batch()
        for first in range(0, len(IDS), 2):
            with client.reserve_group("train", f"p{first // 2}", weight_version=0) as group:
                kept = {name: rows[name][first : first + 2] for name in (*ROLLOUT_FIELDS, "advantages")}
                group.add(IDS[first : first + 2], kept, [{"std": 0.5}] * 2)
        rank_pool.play(step_of_the_guide, code, Script(folder / "model", Layout(), address), ranks=1)
        trained = client.partition("train")
        assert (trained.task("train").consumed_rows_total, trained.rows, trained.weight_version) == (len(IDS), 0, 1)


def step_of_the_guide(_rank: int, code: str, script: Script) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(code, names)  # noqa: S102  # ours
    policy = DataPlanePolicy(script.config, TorchrunWorkerGroup(AutomodelPolicyWorker, script.arguments))
    try:
        with connect(script.address) as client:
            names["asynchronous_step"](client, policy, 1, len(IDS) // 2)
    finally:
        assert policy.shutdown()
