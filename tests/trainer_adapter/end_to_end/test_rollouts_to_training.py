"""The whole path with real processes: rollouts are put on a server; Ray actors recompute log-probabilities, write them
back, and train on them. Every number is that of one process with a plain model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scripts.page_blocks import ADDRESS, ROOT, programs_of
from tests.trainer_adapter.data_plane.replica_cases import counters
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.plain_policy import grpo_loss, logits_alone, logprobs_of, model_alone
from tests.trainer_adapter.worker.worker_cases import LENGTHS, TEMPERATURE, Layout, batch
from torch import Tensor

from dataplane_client import kv_first_write
from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread, running_server
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker import AutomodelPolicyWorker
from trainer_adapter.worker_groups import RayGroupOptions, RayWorkerGroup

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(400)]  # two Ray workers import torch on busy cores
LAYOUT = Layout(tp=2)
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


@pytest.fixture(scope="module")
def played(folder: Path, ray_cluster: None) -> Iterator[Played]:
    server = ServerThread(ServerConfig(listen=(f"unix://{folder}/socket",), http="127.0.0.1:0"))
    try:
        with connect(server.addresses[0]) as client:
            yield play(folder, client, server)
    finally:
        server.stop()


def play(folder: Path, client: DataPlaneClient, server: ServerThread) -> Played:
    register_rollouts(client)
    put_rollouts(client)
    config = worker_cases.config(folder / "model", LAYOUT, "sequence")
    options = RayGroupOptions(num_workers=LAYOUT.ranks, gpus_per_worker=0, start_timeout_s=200, call_timeout_s=100)
    arguments = {"config": config, "data_plane": server.addresses[0]}
    policy = DataPlanePolicy(config, RayWorkerGroup(AutomodelPolicyWorker, arguments, options))
    try:
        with client.claim("train", "prev_lp", ROLLOUT_FIELDS, len(IDS)) as claim:
            policy.get_logprobs_from_meta(claim.meta)
        with client.claim("train", "ref_lp", ROLLOUT_FIELDS, len(IDS)) as claim:
            policy.get_reference_policy_logprobs_from_meta(claim.meta)
        reports = []
        with client.claim("train", "train", TRAIN_FIELDS, len(IDS)) as claim:
            reports = [policy.train_from_meta(claim.meta, ClippedPolicyGradientLoss()) for _ in range(2)]
    finally:
        assert policy.shutdown()
    counts = counters(server.http_address)
    consumed = {task.task: task.consumed_rows_total for task in client.partition("train").tasks}
    return Played({sample_id: columns_of(client, sample_id) for sample_id in IDS}, reports, counts, consumed)


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
    with torch.no_grad():
        expected = logprobs_of(logits_alone(model_alone(folder / "model"), TEMPERATURE))
    for row, sample_id in enumerate(IDS):
        found = played.columns[sample_id][name]
        torch.testing.assert_close(found, expected[row, : LENGTHS[row]], rtol=1e-5, atol=1e-5)


def test_leaders_alone_write_and_read(played: Played) -> None:
    """Of two ranks one: each row is written once by each stage, and read once by each of four."""
    assert played.counts["dataplane_put_rows_total", "train"] == 3 * len(IDS)
    assert played.counts["dataplane_read_rows_total", "train"] == 4 * len(IDS)


def test_each_stage_consumed_every_row(played: Played) -> None:
    assert played.consumed == dict.fromkeys(("prev_lp", "ref_lp", "train"), len(IDS))


def test_losses_are_those_of_one_process(folder: Path, played: Played) -> None:
    model = model_alone.__wrapped__(folder / "model")
    rows = batch()
    with torch.no_grad():
        rows["prev_logprobs"] = logprobs_of(logits_alone(model, TEMPERATURE))
    optimizer = torch.optim.SGD(model.parameters(), lr=worker_cases.LEARNING_RATE)
    for report in played.reports:
        loss = grpo_loss(logprobs_of(logits_alone(model, TEMPERATURE)), rows)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), worker_cases.MAX_GRAD_NORM)
        optimizer.step()
        assert report["loss"].tolist() == pytest.approx([loss.item()], rel=1e-4, abs=1e-6)
        assert float(report["grad_norm"]) == pytest.approx(norm.item(), rel=1e-4)


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
