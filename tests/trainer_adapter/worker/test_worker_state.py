"""What a worker's calls set: precision, the mode of the model, and where its tensors lie."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.conftest import MakeWorker
from tests.trainer_adapter.worker.plain_policy import logprobs_alone
from tests.trainer_adapter.worker.worker_cases import ADAM, batch, weights

from trainer_adapter.automodel.setup import STRING_TO_DTYPE
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.worker import AutomodelPolicyWorker

# --- where things lie ---


def test_offloaded_and_brought_back_it_goes_on_as_before(make_worker: MakeWorker) -> None:
    expected = steps(make_worker(changes={"optimizer": ADAM}), 3)
    worker = make_worker(changes={"optimizer": ADAM, "offload_optimizer_for_logprob": True})
    losses = []
    for _ in range(3):
        worker.prepare_for_lp_inference()
        worker.get_logprobs(batch())
        worker.prepare_for_training()
        losses += steps(worker, 1)
        worker.finish_training()
        worker.offload_before_refit()
        worker.offload_after_refit()
    assert losses == expected


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@NEEDS_GPU
def test_on_a_gpu_an_offloaded_worker_frees_the_device(make_worker: MakeWorker) -> None:
    worker = make_worker(changes={"optimizer": ADAM}, device="cuda")
    worker.train(batch(), ClippedPolicyGradientLoss())
    held = torch.cuda.memory_allocated()
    worker.offload_after_refit()
    assert torch.cuda.memory_allocated() < held / 4
    worker.prepare_for_training()
    assert worker.train(batch(), ClippedPolicyGradientLoss())["grad_norm"].isfinite()


# --- precision ---


@pytest.mark.parametrize(("precision", "least", "most"), [("float32", 0.0, 1e-5), ("bfloat16", 1e-3, 0.25)])
@worker_cases.each_packing
def test_a_policy_computes_in_its_precision_and_keeps_weights_in_float32(
    make_worker: MakeWorker, model: Path, packing: str, precision: str, least: float, most: float
) -> None:
    worker = make_worker(packing, {"precision": precision})
    under: set[torch.dtype | None] = set()
    worker._policy.model.register_forward_pre_hook(lambda *_: under.add(autocast_dtype()))
    error = (worker.get_logprobs(batch())["logprobs"] - logprobs_alone(model)).abs()
    assert least <= error.max().item() <= most
    assert error.mean().item() <= most / 10
    report = worker.train(batch(), ClippedPolicyGradientLoss())
    assert report["model_dtype"] == STRING_TO_DTYPE[precision]
    assert under == {None if precision == "float32" else torch.bfloat16}
    assert {value.dtype for value in weights(worker).values()} == {torch.float32}


NEEDS_FLASH = pytest.mark.skipif(not any(map(find_spec, ("flash_attn", "kernels"))), reason="needs FlashAttention")
ON_GPU = [
    pytest.param("cuda", kind, marks=[pytest.mark.gpu, NEEDS_GPU, *others])
    for kind, *others in (["sdpa"], ["flash", NEEDS_FLASH], ["flex"])
]


@pytest.mark.parametrize(("device", "attention"), [("cpu", "sdpa"), *ON_GPU])
def test_packed_rows_are_rows_by_themselves_whatever_keeps_them_apart(
    make_worker: MakeWorker, tmp_path: Path, device: str, attention: str
) -> None:
    worker_cases.save_model(tmp_path, head_dim=16)  # the least that kernels on GPUs take
    changes = {"model_name": str(tmp_path), "tokenizer": {"name": str(tmp_path)}, "precision": "bfloat16"}
    alone = make_worker(changes=changes, device=device)
    expected = alone.get_logprobs(batch(), micro_batch_size=1)["logprobs"]
    loss = alone.train(batch(), ClippedPolicyGradientLoss())["global_loss"]
    packing = worker_cases.config(tmp_path, worker_cases.Layout(), "sequence")["sequence_packing"]
    packed = make_worker(changes={**changes, "sequence_packing": {**packing, "attention": attention}}, device=device)
    assert (packed.get_logprobs(batch())["logprobs"] - expected).abs().mean().item() < 0.025
    trained = packed.train(batch(), ClippedPolicyGradientLoss())
    torch.testing.assert_close(trained["global_loss"], loss, rtol=0.05, atol=0)


def autocast_dtype() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


# --- modes ---


def test_only_training_drops_out(make_worker: MakeWorker, model: Path) -> None:
    worker = make_worker(changes={"hf_config_overrides": {"attention_dropout": 0.5}})
    worker.prepare_for_training()
    losses = [worker.train(batch(), ClippedPolicyGradientLoss(), eval_mode=True)["global_loss"] for _ in range(2)]
    assert torch.equal(*losses)
    worker.prepare_for_training()
    torch.testing.assert_close(worker.get_logprobs(batch())["logprobs"], logprobs_alone(model), rtol=1e-5, atol=1e-5)
    trained = worker.train(batch(), ClippedPolicyGradientLoss())["global_loss"]
    assert not torch.allclose(trained, losses[0], rtol=1e-3)


def steps(worker: AutomodelPolicyWorker, count: int = 2) -> list[float]:
    """The losses of so many steps."""
    return [worker.train(batch(), ClippedPolicyGradientLoss())["global_loss"].item() for _ in range(count)]


def test_a_resumed_run_drops_out_and_warms_up_as_the_first_one_did(
    make_worker: MakeWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warm_up = {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"start_factor": 0.25, "total_iters": 4}}
    changes = {"hf_config_overrides": {"attention_dropout": 0.5}, "optimizer": ADAM, "scheduler": warm_up}
    paths = {f"{part}_path": str(tmp_path / part) for part in ("weights", "optimizer")}
    worker = make_worker(changes=changes)
    steps(worker)
    worker.get_logprobs(batch())  # leaves weights that FSDP holds whole
    worker.save_checkpoint(**paths, tokenizer_path=str(tmp_path / "tokenizer"), checkpointing_cfg={})
    assert (tmp_path / "tokenizer" / "tokenizer.json").exists()
    expected = steps(worker)
    torch.manual_seed(99)
    assert steps(make_worker(changes=changes, **paths)) == expected
    assert caplog.text.count("the reference weights are those of the checkpoint") == 1
    loaded = make_worker(changes=changes)
    loaded.load_checkpoint(**paths)
    assert steps(loaded) == expected
    assert caplog.text.count("the reference weights are those of the checkpoint") == 1


def test_a_save_before_the_first_step_changes_nothing(make_worker: MakeWorker, tmp_path: Path) -> None:
    """Neither in this run nor in one that resumes from it: Adam's steps depend on how many came before."""
    paths = {f"{part}_path": str(tmp_path / part) for part in ("weights", "optimizer")}
    expected = steps(make_worker(changes={"optimizer": ADAM}))
    saving = make_worker(changes={"optimizer": ADAM})
    saving.save_checkpoint(**paths, checkpointing_cfg={})
    assert steps(saving) == expected
    assert steps(make_worker(changes={"optimizer": ADAM}, **paths)) == expected


# --- clipping ---


def test_a_step_is_as_long_as_its_limit_allows(make_worker: MakeWorker) -> None:
    worker = make_worker()
    before = weights(worker)
    report = worker.train(batch(), ClippedPolicyGradientLoss())
    assert report["grad_norm"] > 2 * worker_cases.MAX_GRAD_NORM
    after = weights(worker)
    del after["lm_head.weight"]  # tied
    moved = [(value - before[name]).norm() for name, value in after.items()]
    limit = worker_cases.LEARNING_RATE * worker_cases.MAX_GRAD_NORM
    assert torch.stack(moved).norm().item() == pytest.approx(limit, rel=1e-5)
