"""TRL's trainers, as they are installed, on the data plane. They run on the CPU and train a model of 2 layers.

Two things of AsyncGRPOTrainer ask for CUDA, and are replaced: its attention kernel, by torch's attention over the same
packed rows, and the look-up of the GPU's speed. Its queue dataset, batchers, collator, loss, callbacks and checkpoints
are its own.

*Trained exactly once*, for a run that is killed and resumed: the history of the final model, which is what its
checkpoints say that their steps were trained on, has no sample twice, and every sample is either in it or still waits
in the data plane. The history is kept by the trainer, in the state that it saves with each checkpoint, and is read from
the labels of the loss, so the data plane has no part in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from dataplane_client.client import DataPlaneClient, connect
from dataplane_trl import (
    DataPlaneRolloutWorker,
    RolloutFunc,
    RolloutSample,
    answer_prompts,
    put_rollouts,
    register_prompts,
    register_rollouts,
)

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed"),
    pytest.mark.timeout(1800),
]

PRODUCERS, GROUPS, SAMPLES = 2, 6, 4
STEPS, SAVE_EVERY, MICRO_BATCH, ACCUMULATED = 6, 2, 2, 2
FIRST = 16
"""The token by which sample 0 is known; that of sample n is n greater. Below are those of prompts."""
LIMIT_S = 120.0


@pytest.fixture
def client(address: str) -> Iterator[DataPlaneClient]:
    """A client of it."""
    with connect(address, timeout_s=200.0) as client:
        yield client


@pytest.fixture
def start() -> Iterator[Callable[..., BaseProcess]]:
    """Start a process, which is killed at the end. The first one takes as long as the import of TRL."""
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")
    processes: list[BaseProcess] = []

    def run(play: Callable[..., None], *arguments: object) -> BaseProcess:
        processes.append(forking().Process(target=play, args=arguments, daemon=True))
        processes[-1].start()
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.join()


def forking() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trl", "trl.experimental.async_grpo.async_grpo_trainer", "dataplane_client.client"])
    return context


# -- the model ---------------------------------------------------------------------------------------------------------


def make_model(folder: str) -> None:
    """Write a model whose tokens are the words "0", "1", ..., and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = Tokenizer(models.WordLevel({str(number): number for number in range(128)}, "2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "0", "eos_token": "1", "unk_token": "2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def attend(module: Any, query: Any, key: Any, value: Any, _mask: Any, **packed: Any) -> Any:
    """What TRL's kernel computes: each segment of a packed row attends to the path from its root."""
    import torch

    begins, ends = packed["tree_cu_seqlens_q"].tolist(), packed["tree_cu_seqlens_k"].tolist()
    segments = []
    for start, stop, first, last in zip(begins, begins[1:], ends, ends[1:], strict=False):
        path = packed["tree_kv_index"][first:last]
        seen = torch.ones(stop - start, len(path), dtype=torch.bool).tril(len(path) - (stop - start))
        parts = query[:, :, start:stop], key[:, :, path], value[:, :, path]
        attention = torch.nn.functional.scaled_dot_product_attention
        segments.append(attention(*parts, attn_mask=seen, scale=packed["scaling"]))
    return torch.cat(segments, 2).transpose(1, 2), None


# -- the asynchronous trainer ------------------------------------------------------------------------------------------


def produce(address: str, producer: int) -> None:
    """Put groups of samples; each has a token that no other has."""
    import numpy as np

    with connect(address) as client:
        register_rollouts(client)
        for group in range(GROUPS):
            number = (producer * GROUPS + group) * SAMPLES
            samples = [sample_of(np, number + index) for index in range(SAMPLES)]
            put_rollouts(client, "rollouts", samples, group=str(number))


def sample_of(np: Any, number: int) -> RolloutSample:
    return RolloutSample(
        prompt=[{"role": "user", "content": "3 4"}],
        completion=[{"role": "assistant", "content": str(FIRST + number)}],
        input_ids=np.array([3, 4, FIRST + number, 1]),
        completion_mask=np.array([0, 0, 1, 1]),
        old_log_probs=np.array([0.0, 0.0, -4.8, -4.8]),
        advantage=(-1.0) ** number,
        model_version=1,
        metrics={"reward": float(number % 2)},
    )


def train(address: str, folder: str, token_budget: int, death: tuple[str, int] | None) -> None:
    """A life of the trainer: resumes from the last checkpoint if there is one, and kills itself at the given moment."""
    trl = importlib.import_module("trl.experimental.async_grpo.async_grpo_trainer")
    transformers: Any = importlib.import_module("transformers")
    trl.get_peak_flops_per_device = lambda *_: None  # type: ignore[attr-defined]

    def may_die(moment: str, step: int) -> None:
        if death == (moment, step):
            os.kill(os.getpid(), signal.SIGKILL)

    class Before(transformers.TrainerCallback):  # type: ignore[misc]
        """Writes the history of the model; is called before the worker's callback."""

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            may_die("the optimizer has stepped", state.global_step)
            state.log_history.append({"step": state.global_step, "samples": trainer.trained})
            trainer.trained = []

        def on_save(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            may_die("the step is saved", state.global_step)

    class After(transformers.TrainerCallback):  # type: ignore[misc]
        """Is called after the worker's callback."""

        def on_substep_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            may_die("half of the step is run", state.global_step + 1)

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            may_die("the rows are marked", state.global_step)

        def on_save(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            may_die("the rows are removed", state.global_step)

    class Trainer(trl.AsyncGRPOTrainer):  # type: ignore[misc, name-defined]
        """Notes which samples its losses are of."""

        trained: list[int]

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            labels = inputs["shift_labels"].flatten().tolist()
            self.trained.extend(label - FIRST for label in labels if label >= FIRST)
            return super().compute_loss(model, inputs, *args, **kwargs)

    class NoTransfer:
        def __getattr__(self, _name: str) -> Any:
            return lambda *_: None

    worker = DataPlaneRolloutWorker(address, max_staleness=STEPS, claim_rows=5)
    args = trl.AsyncGRPOConfig(
        output_dir=folder,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        token_budget=token_budget,
        max_staleness=STEPS,
        heartbeat_stale_after_s=20.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=f"{folder}/model",
        args=args,
        train_dataset=trl.Dataset.from_dict({"prompt": ["3 4"]}),
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
        callbacks=[Before(), worker.callback, After()],
    )
    trainer.trained = []
    transformers.AttentionInterface.register("tree_fa3", attend)
    trainer.train(resume_from_checkpoint=last_checkpoint(Path(folder)))


def last_checkpoint(folder: Path) -> str | None:
    """The last one that is complete."""
    saved = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(saved, key=lambda path: int(path.name.partition("-")[2]))) if saved else None


DEATHS = [  # a checkpoint is of an even step
    ("half of the step is run", 1),
    ("the rows are marked", 1),
    ("the step is saved", 2),
    ("half of the step is run", 3),
    ("the optimizer has stepped", 3),
    ("the rows are marked", 3),
    ("the rows are removed", 4),
    ("the rows are marked", 5),
]


@pytest.mark.parametrize("token_budget", [0, 11], ids=["fixed count", "token budget"])
def test_a_trainer_that_is_killed_at_any_moment_and_resumed_trains_on_every_sample_exactly_once(
    address: str, client: DataPlaneClient, start: Callable[..., BaseProcess], tmp_path: Path, token_budget: int
) -> None:
    run_to_end(start(make_model, f"{tmp_path}/model"))
    for producer in range(PRODUCERS):
        start(produce, address, producer)
    for death in [*DEATHS, None]:
        ended = start(train, address, str(tmp_path), token_budget, death)
        ended.join(LIMIT_S)
        assert ended.exitcode == (0 if death is None else -signal.SIGKILL)
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None
    history = json.loads((Path(checkpoint) / "trainer_state.json").read_text())["log_history"]
    steps = {entry["step"]: entry["samples"] for entry in history if "samples" in entry}
    trained = Counter(sample for samples in steps.values() for sample in samples)
    rows = client.list_samples("rollouts", task_name="train", states=["untaken"]).meta.sample_ids
    waiting = Counter(sum(map(int, row.split("/"))) for row in rows)
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert min(map(len, steps.values())) >= MICRO_BATCH * ACCUMULATED
    assert trained + waiting == Counter(range(PRODUCERS * GROUPS * SAMPLES))


def run_to_end(process: BaseProcess) -> None:
    process.join(LIMIT_S)
    assert process.exitcode == 0


# -- the synchronous trainer -------------------------------------------------------------------------------------------


def generate(prompts: list[str], _steps: list[int]) -> dict[str, Any]:
    """The completion of a prompt is its words, backwards."""
    ids = [[int(word) for word in prompt.split()] for prompt in prompts]
    return {"prompt_ids": ids, "completion_ids": [row[::-1] for row in ids], "logprobs": [[-4.8] * len(i) for i in ids]}


def answer(address: str, dies: bool) -> None:
    """A generator; one that dies does so with prompts in its hands."""

    def die(_prompts: list[str], _steps: list[int]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with connect(address, session_grace_s=0.5 if dies else 10.0) as client:
        while True:
            answer_prompts(client, die if dies else generate, batch_size=3)


def train_in_turns(address: str, folder: str) -> None:
    """Two steps of GRPOTrainer. Writes which completion was rewarded for which prompt."""
    trl: Any = importlib.import_module("trl.trainer.grpo_trainer")
    seen: list[tuple[str, list[int]]] = []

    def reward(prompts: list[str], completion_ids: list[list[int]], **_columns: object) -> list[float]:
        seen.extend(zip(prompts, completion_ids, strict=True))
        return [float(number % 2) for number in range(len(prompts))]

    args = trl.GRPOConfig(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=8,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = trl.GRPOTrainer(
        model=f"{folder}/model",
        args=args,
        reward_funcs=reward,
        train_dataset=trl.Dataset.from_dict({"prompt": [f"{number} {number + 1}" for number in range(20, 28)]}),
        rollout_func=RolloutFunc(address, timeout_s=30.0),
    )
    trainer.train()
    Path(folder, "seen.json").write_text(json.dumps(seen))


def test_the_synchronous_trainer_gets_each_prompt_its_completion_though_a_generator_is_killed(
    address: str, client: DataPlaneClient, start: Callable[..., BaseProcess], tmp_path: Path
) -> None:
    run_to_end(start(make_model, f"{tmp_path}/model"))
    register_prompts(client)
    dying = start(answer, address, True)
    training = start(train_in_turns, address, str(tmp_path))
    dying.join(LIMIT_S)
    start(answer, address, False)
    run_to_end(training)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert dying.exitcode == -signal.SIGKILL
    assert len(seen) == 8
    assert [ids[::-1] for _, ids in seen] == [[int(word) for word in prompt.split()] for prompt, _ in seen]
    assert client.partition("prompts").rows == 0
