"""A training script that a user writes once for any group of workers, and its expected results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.worker_cases import Layout, batch

from dataplane_client import connect
from dataplane_client.columns import kv_first_write, read_columns
from dataplane_client.meta import KVBatchMeta
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker_groups import WorkerGroup

ROWS = batch().size
PARTITION = "step0"
WRITTEN = ("prev_logprobs", "reference_policy_logprobs")
FIELDS = [*batch(), "reference_policy_logprobs"]


def config(folder: Path, packing: str) -> Any:
    return worker_cases.config(folder / "model", Layout(dp=2), packing)


def trained(group: WorkerGroup, config: Any, address: str) -> dict[str, torch.Tensor]:
    """One step on rows of the data plane, answers before and after it, and what was written to the rows."""
    policy = DataPlanePolicy(config, group)
    rows = batch()
    found = {
        "before": policy.get_logprobs(rows)["logprobs"],
        "of_six_rows": policy.get_logprobs(rows.select_indices(range(6)))["logprobs"],
    }
    meta = group.from_driver(claimed(address) if group.is_driver else None)
    assert meta is not None
    report = policy.train_from_meta(meta, ClippedPolicyGradientLoss())
    policy.get_logprobs_from_meta(meta)
    policy.get_reference_policy_logprobs_from_meta(meta)
    if group.is_driver:
        found |= written(address, meta)
    found |= {"loss": report["loss"], "grad_norm": report["grad_norm"]}
    found["rows_counted"] = torch.tensor(report["all_mb_metrics"]["num_valid_samples"]).sum()
    found["after"] = policy.get_logprobs(rows)["logprobs"]
    assert policy.shutdown()
    return found


def claimed(address: str) -> KVBatchMeta:
    """All rows of a rollout that was put just now."""
    with connect(address) as client:
        client.register_partition(PARTITION, FIELDS, ROWS, ["train"])
        ids = [f"row{row}" for row in range(ROWS)]
        kv_first_write(batch(), sample_ids=ids, dp_client=client, partition_id=PARTITION)
        return client.claim_meta(PARTITION, "train", list(batch()), ROWS, timeout_s=10)


def written(address: str, meta: KVBatchMeta) -> dict[str, torch.Tensor]:
    with connect(address) as client:
        return dict(read_columns(client, meta, WRITTEN, pad_to_seqlen=worker_cases.WIDTH))


def check(ranks: list[dict[str, torch.Tensor]], folder: Path, packing: str) -> None:
    """That every rank that runs the script has found what one worker does alone. In a process that is the only rank."""
    alone = trained_alone(folder, packing)
    expected = alone | {"prev_logprobs": alone["after"], "reference_policy_logprobs": alone["before"]}
    for found in ranks:
        for name in expected.keys() & found.keys():
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)
        assert found["rows_counted"].item() == batch()["sample_mask"].sum()


def trained_alone(folder: Path, packing: str) -> dict[str, torch.Tensor]:
    """The same by one worker that is asked directly, without groups, metas and a data plane."""
    with worker_cases.worker(config(folder, packing)) as worker:
        before = worker.get_logprobs(batch())["logprobs"]
        report = worker.train(batch(), ClippedPolicyGradientLoss())
        found = {"before": before, "of_six_rows": before[:6], "after": worker.get_logprobs(batch())["logprobs"]}
        return {**found, "loss": report["global_loss"], "grad_norm": report["grad_norm"]}
