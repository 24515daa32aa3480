"""What a GPU's rank does in a job, on the pretended device: a process of its own, which prints what it saw as JSON.

    python -m tests.pretended_cuda.phases FOLDER (alone|between_ranks)

Each phase is played once before it is counted: what torch, FSDP and the optimizer do at their first step is no part
of it.
"""

from __future__ import annotations

import tests.pretended_cuda.device as cuda  # isort: skip  # before torch

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests.ranks import environment, free_port
from tests.trainer_adapter.worker.plain_policy import logprobs_alone
from tests.trainer_adapter.worker.worker_cases import Layout, batch, config, save_model, shard

from dataplane_client import ClaimLoader, DataPlaneClient, KVBatchMeta, connect, kv_first_write
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.codec import to_nested_by_length
from dataplane_server.testing import running_server
from trainer_adapter.data_plane import LOGPROB_FIELDS, TRAIN_FIELDS
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.refit import stream_endpoint
from trainer_adapter.worker import AutomodelPolicyWorker

_ADAM = {"name": "torch.optim.AdamW", "kwargs": {"lr": 1e-3}}
_ROW_FIELDS = ("input_lengths", "sample_mask")

Seen = dict[str, dict[str, Any]]


class _Ranks(NamedTuple):
    rank: int
    layout: Layout
    port: int


class Phases:
    """passes: forward passes of the model since it was counted last."""

    def __init__(self) -> None:
        self.seen: Seen = {}
        self.facts: dict[str, Any] = {}
        self.passes = 0

    def play(self, name: str, act: Callable[[], Any]) -> Any:
        """Count the waits of `act`, and return what it returns."""
        self.passes, copied = 0, len(cuda.copies)
        with cuda.counted() as waits:
            found = act()
        copies = cuda.copies[copied:]
        self.seen[name] = {
            "waits": dict(waits),
            "passes": self.passes,
            "copies": len(copies),
            "streams": sorted({copy.stream for copy in copies if copy.to == "cuda"}),
        }
        return found

    def _passed(self, *_: Any) -> None:
        self.passes += 1

    @contextmanager
    def worker(
        self, folder: Path, packing: str, precision: str, ranks: _Ranks | None = None, **arguments: Any
    ) -> Iterator[AutomodelPolicyWorker]:
        rank, layout, port = ranks or _Ranks(0, Layout(), free_port())
        given = config(folder / "model", layout, packing, precision=precision, optimizer=_ADAM)
        given["dtensor_cfg"]["device"] = "cuda"
        if packing == "sequence":
            given["sequence_packing"]["attention"] = "sdpa"
        os.environ.update(environment(rank, layout.ranks, port))
        made = AutomodelPolicyWorker(given, **arguments)
        made._policy.model.register_forward_hook(self._passed)
        yield made
        made.shutdown()


def play_between_ranks(phases: Phases, folder: Path, ranks: _Ranks) -> None:
    """Two data-parallel ranks that divide the rows: what they tell each other is on the device."""
    rows, loss = shard(ranks.rank, ranks.layout), ClippedPolicyGradientLoss()
    with phases.worker(folder, "sequence", "bfloat16", ranks) as worker:
        worker.train(rows, loss)
        report = phases.play("packed training on two ranks", lambda: worker.train(rows, loss))
        phases.facts["loss on two ranks"] = report["global_loss"].tolist()
        before = worker.get_logprobs(rows)["logprobs"]
        worker.offload_after_refit()
        worker.prepare_for_training()
        phases.facts["weights came back"] = torch.equal(worker.get_logprobs(rows)["logprobs"], before)


def _be_the_other_rank(folder: Path, ranks: _Ranks) -> None:
    """The forked process ends here."""
    try:
        cuda.start()
        play_between_ranks(Phases(), folder, ranks)
    except BaseException:  # noqa: BLE001  # the process ends with it
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def play_packed(phases: Phases, folder: Path) -> None:
    """Packed rows in bfloat16, and what a colocated job does between two steps."""
    with phases.worker(folder, "sequence", "bfloat16") as worker:
        rows, loss = batch(), ClippedPolicyGradientLoss()
        worker.train(rows, loss)
        phases.play("packed logprobs", lambda: worker.get_logprobs(rows))
        found = phases.play("reference logprobs", lambda: worker.get_reference_policy_logprobs(data=rows))
        phases.facts["reference logprobs"] = found["reference_logprobs"].tolist()
        phases.play("packed top-k", lambda: worker.get_topk_logits(data=rows, k=3))
        report = phases.play("packed training", lambda: worker.train(rows, loss))
        phases.facts["packed loss"] = report["global_loss"].tolist()
        phases.play("offload", worker.offload_after_refit)
        phases.facts["offloaded"] = sorted(devices_of(worker))
        phases.play("return", worker.prepare_for_training)
        phases.facts["returned"] = sorted(devices_of(worker))
        phases.facts["endpoint"] = stream_endpoint(torch.device("cuda", 0), 0)
        phases.facts["group"] = {name: str(value) for name, value in cuda.started_group.items()}


def devices_of(worker: AutomodelPolicyWorker) -> set[str]:
    """Where weights and the optimizer's state are."""
    optimizer = worker._policy.state.optimizer
    assert optimizer is not None
    kept = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    return {tensor.device.type for tensor in (*worker._policy.model.parameters(), *kept)}


def play_with_a_server(phases: Phases, folder: Path) -> None:
    """Padded rows in float32, which come from a server and go back to it; and a loader on the same device."""
    with (
        running_server() as address,
        connect(address) as client,
        phases.worker(folder, "none", "float32", data_plane=address) as worker,
    ):
        _put_rows(client)
        meta = client.claim_meta("t", "lp", LOGPROB_FIELDS, 8)
        worker.get_logprobs_from_meta(meta)
        phases.play("logprobs from the data plane", lambda: worker.get_logprobs_from_meta(meta))
        phases.facts["written back"] = client.read_columns(meta, ["prev_logprobs"])["prev_logprobs"].tolist()
        worker.get_reference_policy_logprobs_from_meta(meta)
        _put_from_device(phases, client)
        train = client.claim_meta("t", "train", TRAIN_FIELDS, 8)
        phases.play("training from the data plane", lambda: worker.train_from_meta(train, ClippedPolicyGradientLoss()))
        phases.facts["loaded on"] = phases.play("loader", lambda: _load(address))
        phases.facts["recorded"] = phases.play("jagged loader", lambda: _load_jagged(address))


def _put_rows(client: DataPlaneClient) -> KVBatchMeta:
    per_token = [name for name in TRAIN_FIELDS if name not in _ROW_FIELDS]
    client.register_partition("t", TRAIN_FIELDS, 8, ["lp", "train", "load", "jagged"], per_token_fields=per_token)
    rows: BatchedDataDict[Any] = BatchedDataDict({k: v for k, v in batch().items() if k != "prev_logprobs"})
    return kv_first_write(rows, sample_ids=[f"r{n}" for n in range(8)], dp_client=client, partition_id="t")


def _put_from_device(phases: Phases, client: DataPlaneClient) -> None:
    names = [name for name in TRAIN_FIELDS if name != "reference_policy_logprobs"]
    per_token = [name for name in names if name not in _ROW_FIELDS]
    client.register_partition("put", names, 8, ["train"], per_token_fields=per_token)
    rows, ids = batch(), [f"r{n}" for n in range(8)]
    on_device: BatchedDataDict[Any] = BatchedDataDict(
        {name: rows[name] if name == "input_lengths" else rows[name].to("cuda") for name in names}
    )
    on_device["advantages"] = to_nested_by_length(on_device["advantages"], rows["input_lengths"])
    on_device["token_mask"] = to_nested_by_length(on_device["token_mask"], rows["input_lengths"])
    meta = phases.play(
        "put from the device",
        lambda: kv_first_write(on_device, sample_ids=ids, dp_client=client, partition_id="put"),
    )
    found = client.read_columns(meta, names, layout="jagged")
    lengths = rows["input_lengths"].tolist()
    phases.facts["put from the device"] = [
        torch.equal(row, rows[name][number][: lengths[number]] if name in per_token else rows[name][number])
        for name in names
        for number, row in enumerate(found[name].unbind())
    ]


def _load(address: str) -> list[str]:
    fields = ["input_ids", "advantages"]
    with ClaimLoader(address, "t", "load", fields, 4, max_batches=2, device="cuda") as loader:
        return sorted(
            {value.device.type for loaded in loader for value in loaded.data.values() if torch.is_tensor(value)}
        )


def _load_jagged(address: str) -> list[bool]:
    """Whether the allocator knows that the training loop's stream uses values and bounds of rows."""
    found = []
    with ClaimLoader(address, "t", "jagged", ["input_ids"], 4, layout="jagged", max_batches=1, device="cuda") as loader:
        for loaded in loader:
            rows = loaded.data["input_ids"]
            found += [part.untyped_storage().data_ptr() in cuda.recorded for part in (rows.values(), rows.offsets())]
    return found


def main(folder: Path, which: str) -> None:
    torch.set_num_threads(1)
    save_model(folder / "model", intermediate_size=49)  # which two ranks cannot divide evenly
    phases = Phases()
    if which == "alone":
        _play_alone(phases, folder)
    else:
        _play_on_two_ranks(phases, folder)
    (folder / "seen.json").write_text(json.dumps({"phases": phases.seen, "facts": phases.facts}))


def _play_alone(phases: Phases, folder: Path) -> None:
    phases.facts["plain logprobs"] = logprobs_alone(folder / "model").tolist()
    cuda.start()
    play_with_a_server(phases, folder)
    play_packed(phases, folder)


def _play_on_two_ranks(phases: Phases, folder: Path) -> None:
    port, layout = free_port(), Layout(dp=2)
    other = os.fork()
    if other == 0:
        _be_the_other_rank(folder, _Ranks(1, layout, port))
    cuda.start()
    play_between_ranks(phases, folder, _Ranks(0, layout, port))
    assert os.waitpid(other, 0)[1] == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
