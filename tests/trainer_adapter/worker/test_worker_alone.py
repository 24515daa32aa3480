"""A worker as the only rank: the state that it keeps, the calls that it refuses, and the parts of a step."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ranks import free_port
from tests.trainer_adapter.automodel.setup_cases import REWARD
from tests.trainer_adapter.refit.streams import take
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.conftest import MakeWorker
from tests.trainer_adapter.worker.worker_cases import ADAM, assert_equal, batch, weights
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dataplane_client import connect, kv_first_write, read_columns
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_server.testing import running_server
from trainer_adapter.losses import ClippedPolicyGradientLoss, LossResult, NLLLoss
from trainer_adapter.microbatch_args import microbatch_args
from trainer_adapter.refit import WeightCollective, receive_streamed_weights, stream_endpoint
from trainer_adapter.worker._inference import plan_batch
from trainer_adapter.worker._weights import swap_weights

HALVED = {"name": "torch.optim.lr_scheduler.ExponentialLR", "kwargs": {"gamma": 0.5}}


# --- reference weights ---


def test_reference_logprobs_stay_those_of_the_beginning(make_worker: MakeWorker) -> None:
    worker = make_worker()
    before = worker.get_logprobs(batch())["logprobs"]
    worker.train(batch(), ClippedPolicyGradientLoss())
    after = worker.get_logprobs(batch())["logprobs"]
    reference = worker.get_reference_policy_logprobs(data=batch())["reference_logprobs"]
    assert torch.equal(reference, before)
    assert not torch.allclose(after, before)
    assert torch.equal(worker.get_logprobs(batch())["logprobs"], after)


def test_an_exception_under_the_reference_weights_leaves_the_current_ones_in_place(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.train(batch(), ClippedPolicyGradientLoss())
    trained, logprobs = weights(worker), worker.get_logprobs(batch())["logprobs"]
    broken = batch()
    broken["input_ids"][3, 2] = 10**6  # the embedding has no such row: the forward pass fails on the way
    with pytest.raises(IndexError):
        worker.get_reference_policy_logprobs(data=broken)
    assert_equal(weights(worker), trained)
    assert torch.equal(worker.get_logprobs(batch())["logprobs"], logprobs)


def test_weights_are_swapped_back_though_the_device_has_no_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).state_dict()
    before = [value.tolist() for state in (model.state_dict(), reference) for value in state.values()]

    def no_memory(_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    with swap_weights(model, reference):
        monkeypatch.setattr(Tensor, "clone", no_memory)
    assert [value.tolist() for state in (model.state_dict(), reference) for value in state.values()] == before


def test_the_reference_keeps_the_temperature_and_drops_top_k(make_worker: MakeWorker) -> None:
    sampling = {"colocated": {"enabled": False}, "temperature": worker_cases.TEMPERATURE, "top_p": 1.0}
    unfiltered = make_worker(changes={"generation": {**sampling, "top_k": None}}).get_logprobs(batch())["logprobs"]
    worker = make_worker(changes={"generation": {**sampling, "top_k": 1}})
    reference = worker.get_reference_policy_logprobs(data=batch())["reference_logprobs"]
    assert torch.equal(reference, unfiltered)
    assert not torch.allclose(worker.get_logprobs(batch())["logprobs"], unfiltered)


def test_a_token_that_top_k_excludes_is_no_certain_one(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """0 would be the log-probability of a token that is always drawn, and losses would train on it."""
    sampling = {"colocated": {"enabled": False}, "temperature": worker_cases.TEMPERATURE, "top_p": 1.0, "top_k": 5}
    worker, rows = make_worker("sequence", {"generation": sampling}), batch()
    found = worker.get_logprobs(rows)["logprobs"]
    likeliest = worker.get_topk_logits(data=rows, k=5)["topk_indices"][:, :-1]
    is_predicted = torch.arange(1, worker_cases.WIDTH) < rows["input_lengths"][:, None]
    excluded = (likeliest != rows["input_ids"][:, 1:, None]).all(-1) & is_predicted
    assert torch.equal(found[:, 1:].isneginf(), excluded)
    assert "tokens of the batch are excluded by top_k or top_p" in caplog.text
    unfiltered = make_worker()  # excludes none now
    report = unfiltered.train(BatchedDataDict({**rows, "prev_logprobs": found}), ClippedPolicyGradientLoss())
    trained = rows["token_mask"][:, 1:] * rows["sample_mask"][:, None] * ~excluded
    assert sum(report["all_mb_metrics"]["num_unmasked_tokens"]) == trained.sum()


# --- training ---


@worker_cases.each_packing
def test_padding_counts_for_nothing_whatever_token_mask_says_of_it(make_worker: MakeWorker, packing: str) -> None:
    worker, rows = make_worker(packing), batch()
    reports = []
    for behind in (0.0, 1.0):
        is_token = torch.arange(worker_cases.WIDTH) < rows["input_lengths"][:, None]
        marked: BatchedDataDict[Any] = BatchedDataDict(
            {**rows, "token_mask": rows["token_mask"].where(is_token, behind)}
        )
        reports.append(worker.train(marked, ClippedPolicyGradientLoss(), eval_mode=True))
    without, having = reports
    assert torch.equal(having["global_loss"], without["global_loss"])
    assert having["all_mb_metrics"] == without["all_mb_metrics"]


def test_a_step_in_parts_with_inference_between_them_is_the_step_of_the_whole_batch(make_worker: MakeWorker) -> None:
    whole = make_worker()
    report = whole.train(batch(), ClippedPolicyGradientLoss())
    logprobs, expected = whole.get_logprobs(batch())["logprobs"], weights(whole)
    rows = batch()
    valid = rows["sample_mask"].sum(), (rows["token_mask"][:, 1:] * rows["sample_mask"][:, None]).sum()
    worker, modes = make_worker(), list[bool]()
    worker._policy.model.register_forward_pre_hook(lambda model, _: modes.append(model.training))
    worker.begin_train_step(ClippedPolicyGradientLoss(), float(valid[0]), float(valid[1]))
    for start in (0, 4):
        metrics = worker.train_microbatches(rows.slice(start, start + 4))
        assert [one["global_valid_toks"] for one in metrics] == [float(valid[1])] * 2
        worker.get_logprobs(rows)
    finished = worker.finish_train_step()
    assert modes == [True, True, False, False] * 2
    assert finished["global_loss"].tolist() == pytest.approx(report["global_loss"].tolist(), rel=1e-6)
    assert finished["grad_norm"].item() == pytest.approx(report["grad_norm"].item(), rel=1e-6)
    torch.testing.assert_close(worker.get_logprobs(rows)["logprobs"], logprobs, rtol=1e-5, atol=1e-5)
    for name, value in weights(worker).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)


def test_an_aborted_step_leaves_no_trace(make_worker: MakeWorker) -> None:
    worker = make_worker()
    before = weights(worker)
    worker.begin_train_step(ClippedPolicyGradientLoss(), 8.0, 50.0)
    worker.train_microbatches(batch())
    worker.abort_train_step()
    assert_equal(weights(worker), before)
    aborted = worker.train(batch(), ClippedPolicyGradientLoss())
    fresh = make_worker().train(batch(), ClippedPolicyGradientLoss())
    assert aborted["grad_norm"].item() == fresh["grad_norm"].item()


class FailsAtTheSecondMicrobatch(ClippedPolicyGradientLoss):
    calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> LossResult:
        self.calls += 1
        if self.calls == 2:
            raise ArithmeticError("the second microbatch")
        return super().__call__(*arguments, **keywords)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_that_fails_between_microbatches_leaves_no_trace(make_worker: MakeWorker, precision: str) -> None:
    """FSDP keeps gradients that it has not summed yet out of the optimizer's sight, in two places by precision."""
    worker = make_worker(changes={"precision": precision})
    with pytest.raises(ArithmeticError):
        worker.train(batch(), FailsAtTheSecondMicrobatch())
    failed = worker.train(batch(), ClippedPolicyGradientLoss())
    fresh = make_worker(changes={"precision": precision}).train(batch(), ClippedPolicyGradientLoss())
    assert failed["grad_norm"].item() == fresh["grad_norm"].item()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_that_fails_within_a_backward_pass_leaves_no_trace(make_worker: MakeWorker, precision: str) -> None:
    """The second one. FSDP takes part in the end of passes that succeed only."""
    worker, successes = make_worker(changes={"precision": precision}), [None]
    mlp = worker._policy.model.get_submodule("model.layers.0.mlp")
    with mlp.register_full_backward_pre_hook(lambda *_: successes.pop()), pytest.raises(IndexError):
        worker.train(batch(), ClippedPolicyGradientLoss())
    logprobs = worker.get_logprobs(batch())["logprobs"]
    failed = worker.train(batch(), ClippedPolicyGradientLoss())
    trained = weights(worker)
    fresh = make_worker(changes={"precision": precision})
    assert torch.equal(logprobs, fresh.get_logprobs(batch())["logprobs"])
    assert failed["grad_norm"].item() == fresh.train(batch(), ClippedPolicyGradientLoss())["grad_norm"].item()
    assert_equal(trained, weights(fresh))


def test_steps_do_not_overlap(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with pytest.raises(RuntimeError, match="no training step"):
        worker.train_microbatches(batch())
    worker.begin_train_step(NLLLoss(), 8.0, 50.0)
    with pytest.raises(RuntimeError, match="train: "):
        worker.train(batch(), NLLLoss())
    worker.abort_train_step()
    worker.abort_train_step()
    with pytest.raises(RuntimeError, match="no training step"):
        worker.finish_train_step()


@worker_cases.each_packing
def test_every_global_batch_is_a_step_and_every_call_one_of_the_schedule(make_worker: MakeWorker, packing: str) -> None:
    worker = make_worker(packing, changes={"scheduler": HALVED})
    report = worker.train(batch(), ClippedPolicyGradientLoss(), gbs=4)
    assert report["global_loss"].shape == (2,)
    assert set(report["all_mb_metrics"]["lr"]) == {worker_cases.LEARNING_RATE}
    again = worker.train(batch(), ClippedPolicyGradientLoss(), gbs=8)
    assert set(again["all_mb_metrics"]["lr"]) == {worker_cases.LEARNING_RATE / 2}


@worker_cases.each_packing
def test_several_global_batches_are_as_many_calls(make_worker: MakeWorker, packing: str) -> None:
    together = make_worker(packing)
    report = together.train(batch(), ClippedPolicyGradientLoss(), gbs=4)
    expected = weights(together)
    worker = make_worker(packing)
    halves = [worker.train(batch().slice(start, start + 4), ClippedPolicyGradientLoss(), gbs=4) for start in (0, 4)]
    assert report["global_loss"].tolist() == pytest.approx([half["global_loss"].item() for half in halves], rel=1e-6)
    for name, value in weights(worker).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)


def test_evaluation_needs_no_optimizer_and_changes_nothing(make_worker: MakeWorker) -> None:
    trained = make_worker().train(batch(), ClippedPolicyGradientLoss())
    worker = make_worker(init_optimizer=False)
    before = weights(worker)
    report = worker.train(batch(), ClippedPolicyGradientLoss(), eval_mode=True)
    assert report["global_loss"].tolist() == pytest.approx(trained["global_loss"].tolist(), rel=1e-6)
    assert report["grad_norm"] is None
    assert "lr" not in report["all_mb_metrics"]
    assert_equal(weights(worker), before)
    with pytest.raises(RuntimeError, match="optimizer"):
        worker.train(batch(), ClippedPolicyGradientLoss())


@pytest.mark.parametrize("limit", [0.05, None])
def test_a_gradient_that_is_not_finite_is_not_applied(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture, limit: float | None
) -> None:
    """Nor does it reach the optimizer's state or the schedule."""
    changes = {"max_grad_norm": limit, "optimizer": ADAM, "scheduler": HALVED}
    worker = make_worker(changes=changes)
    before = weights(worker)
    rows = batch()
    rows["advantages"][0, 1] = float("nan")
    report = worker.train(rows, ClippedPolicyGradientLoss())
    assert not report["grad_norm"].isfinite()
    assert "this optimizer step is skipped" in caplog.text
    assert_equal(weights(worker), before)
    after = worker.train(batch(), ClippedPolicyGradientLoss())
    assert set(after["all_mb_metrics"]["lr"]) == {0.01}
    trained = weights(worker)
    fresh = make_worker(changes=changes)
    fresh.train(batch(), ClippedPolicyGradientLoss())
    assert_equal(weights(fresh), trained)


def test_microbatches_without_a_valid_sample_add_no_metrics(make_worker: MakeWorker) -> None:
    rows = batch()
    rows["sample_mask"][:2] = 0.0
    report = make_worker().train(rows, ClippedPolicyGradientLoss())
    assert len(report["all_mb_metrics"]["loss"]) == 3


class OverPairs(NLLLoss):
    rows_together = 2


@pytest.mark.parametrize("packing", ["dynamic", "sequence"])
def test_microbatches_planned_by_tokens_are_refused_to_a_loss_over_pairs(make_worker: MakeWorker, packing: str) -> None:
    with pytest.raises(ValueError, match="OverPairs needs each 2 rows together"):
        make_worker(packing).train(batch(), OverPairs())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"gbs": 16}, "8 samples, .*16"),
        ({"gbs": 3, "mbs": 1}, "8 samples, .*3"),
        ({"gbs": 0}, "gbs .*got 0"),
        ({"mbs": 0}, "mbs .*got 0"),
    ],
)
def test_sizes_that_divide_no_rows_are_refused(make_worker: MakeWorker, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_worker().train(batch(), NLLLoss(), **sizes)


def test_a_plan_of_other_global_batches_is_refused(make_worker: MakeWorker) -> None:
    worker = make_worker("sequence")
    (planned,), _ = microbatch_args(worker._policy.config, "train").shard(batch(), 1, 4)
    with pytest.raises(ValueError, match="for 2 global batches, but with gbs=8 the 8 samples of all ranks are 1"):
        worker.train(planned, NLLLoss())


# --- packed rows ---


MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("afmoe", {"num_dense_layers": 2}), ("falcon_h1", MAMBA)],
    ids=["attention without bounds", "a recurrent state"],
)
def test_a_model_whose_packed_sequences_see_each_other_is_refused(
    make_worker: MakeWorker, tmp_path: Path, kind: str, settings: dict[str, int]
) -> None:
    worker_cases.save_model(tmp_path, kind, **settings)
    changes = {"model_name": str(tmp_path), "tokenizer": {"name": str(tmp_path)}}
    message = r"sequence_packing.enabled: \w+ForCausalLM does not keep the sequences of a packed row apart"
    try:
        with pytest.raises(NotImplementedError, match=message):
            make_worker("sequence", changes)
    finally:
        torch.distributed.destroy_process_group()


# --- batches ---


def test_microbatches_need_not_divide_the_rows_of_inference(make_worker: MakeWorker) -> None:
    worker = make_worker()
    expected = worker.get_logprobs(batch(), micro_batch_size=1)["logprobs"]
    for mbs in (3, 5, 7, 8, 100):
        torch.testing.assert_close(worker.get_logprobs(batch(), micro_batch_size=mbs)["logprobs"], expected)
    with pytest.raises(ValueError, match="at least 1 sample, got 0"):
        worker.get_logprobs(batch(), micro_batch_size=0)


def test_planning_leaves_the_images_of_a_batch_where_they_are(make_worker: MakeWorker) -> None:
    policy = replace(make_worker()._policy, device=torch.device("meta"))
    rows: BatchedDataDict[Any] = BatchedDataDict(images=PackedTensor([torch.ones(2, 3)], 0))
    planned, _ = plan_batch(policy, rows, "train")
    assert [one["images"].as_tensor().device.type for one in (rows, planned)] == ["cpu", "meta"]


@pytest.mark.parametrize(("packing", "pad"), [("sequence", "<pad>"), ("none", "<beyond the vocabulary>")])
def test_a_worker_claims_its_own_shard_where_there_is_no_driver(
    make_worker: MakeWorker, model: Path, tmp_path: Path, packing: str, pad: str
) -> None:
    AutoTokenizer.from_pretrained(model, pad_token=pad).save_pretrained(tmp_path)
    rows = batch()
    rows.truncate_tensors(dim=1, truncated_len=30)
    kept = {name: rows[name] for name in ("input_ids", "input_lengths", "sample_mask")}
    per_token, ids = ["input_ids", "prev_logprobs"], [f"s{row}" for row in range(8)]
    with running_server() as address, connect(address) as client:
        client.register_partition("train", [*kept, "prev_logprobs"], 8, ["prev_lp"], per_token_fields=per_token)
        meta = kv_first_write(kept, sample_ids=ids, dp_client=client, partition_id="train")
        worker = make_worker(packing, {"tokenizer": {"name": str(tmp_path)}}, data_plane=address)
        with worker.claim_shard("train", "prev_lp", ["input_ids", "input_lengths"], 8, step=0) as claim:
            worker.get_logprobs_from_meta(claim.meta)
        found = read_columns(client, meta, ["prev_logprobs"])["prev_logprobs"]
        assert client.partition("train").task("prev_lp").consumed_rows_total == 8
    torch.testing.assert_close(found, make_worker().get_logprobs(batch())["logprobs"][:, :30])


def test_rows_whose_lengths_a_meta_lacks_get_their_logprobs_too(make_worker: MakeWorker) -> None:
    rows, written = batch(), ["prev_logprobs", "reference_policy_logprobs"]
    kept = {name: rows[name] for name in ("input_ids", "input_lengths", "sample_mask")}
    ids = [f"s{row}" for row in range(8)]
    with running_server() as address, connect(address) as client:
        client.register_partition("train", [*kept, *written], 8, ["lp"], per_token_fields=["input_ids", *written])
        meta = kv_first_write(kept, sample_ids=ids, dp_client=client, partition_id="train")
        worker = make_worker(data_plane=address)
        worker.get_logprobs_from_meta(replace(meta, sequence_lengths=None))
        worker.get_reference_policy_logprobs_from_meta(replace(meta, sequence_lengths=None))
        found = read_columns(client, meta, written)
    expected = make_worker().get_logprobs(rows)["logprobs"]
    for name in written:
        torch.testing.assert_close(found[name], expected[:, : found[name].shape[1]])


# --- shutdown ---


def test_a_checkpoint_in_flight_is_completed_whatever_else_does_not_close(
    make_worker: MakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise ConnectionError("the engines are gone")

    worker = make_worker()
    worker.save_checkpoint(str(tmp_path), checkpointing_cfg={"is_async": True})
    with monkeypatch.context() as patch:
        patch.setattr(worker._weights, "close", gone)
        assert not worker.shutdown()
    assert (tmp_path / "model").is_dir()
    assert not torch.distributed.is_initialized()


# --- engines ---


def test_engines_get_the_trained_weights_bit_by_bit(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, cpu = make_worker(), torch.device("cpu")
    worker.train(batch(), ClippedPolicyGradientLoss())
    info = worker.prepare_refit_info()
    streamed: dict[str, Tensor] = {}
    broadcast: dict[str, Tensor] = {}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="refit") as folder, ThreadPoolExecutor(1) as pool:  # short, for the socket
        monkeypatch.setattr(tempfile, "tempdir", folder)
        engine = pool.submit(take, receive_streamed_weights(stream_endpoint(cpu, 0), info, cpu), streamed)
        worker.stream_weights_via_ipc_zmq(buffer_size_bytes=20_000)
        engine.result()
        group = "127.0.0.1", free_port(), 2
        engine = pool.submit(lambda: take(WeightCollective(*group, rank=1, device=cpu).receive(info), broadcast))
        worker.init_collective(*group, train_world_size=1)
        worker.broadcast_weights_for_collective()
        engine.result()
    trained = weights(worker)
    expected = {**trained, "lm_head.weight": trained["model.embed_tokens.weight"]}  # tied, and sent under both names
    assert_equal(streamed, expected)
    assert_equal(broadcast, expected)


# --- reward models ---


def mean_score(scores: Tensor, data: Any, seqs: Tensor, _toks: Tensor) -> LossResult:
    """A loss over what a reward model returns."""
    valid = data["sample_mask"]
    return (scores.squeeze(-1) * valid).sum() / seqs, {"num_valid_samples": valid.sum()}


def test_scores_and_losses_over_them_are_those_of_the_reward_model_alone(make_worker: MakeWorker, model: Path) -> None:
    """The temperature of generation, which the configuration has, does not scale them."""
    torch.manual_seed(3)
    reward = model.parent / "reward"
    plain = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
    plain.config.pad_token_id = worker_cases.PAD
    plain.save_pretrained(reward)
    worker = make_worker(changes={"model_name": str(reward), "batch_size": 4, **REWARD}, init_optimizer=False)
    rows = batch()
    with torch.no_grad():
        one_by_one = zip(rows["input_ids"], rows["input_lengths"], strict=True)
        alone = [plain(input_ids=ids[None, :length]).logits[0, 0] for ids, length in one_by_one]
    scores, valid = torch.stack(alone), rows["sample_mask"]
    torch.testing.assert_close(worker.score(data=rows)["scores"], scores, rtol=1e-5, atol=1e-5)
    loss = worker.train(rows, mean_score, eval_mode=True, gbs=rows.size, mbs=1)["global_loss"]
    torch.testing.assert_close(loss, (scores * valid).sum()[None] / valid.sum(), rtol=1e-5, atol=1e-5)
