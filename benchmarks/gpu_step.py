"""Measure a whole GRPO step of one rank: rollouts come, log-probabilities of policy and reference go, a policy trains.

The model is a Llama with random weights, made here: 1.2 billion parameters in bfloat16 on a GPU, a tiny one on the CPU.
Rollouts are random tokens. Log-probabilities are written back as columns. The share of the step in the data plane is
that of `dataplane_training_figures`.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import dataplane_training_figures as training
from dataplane_client import DataPlaneClient, kv_first_write
from report import Session
from timing import Series, timed
from trainer_adapter.automodel.config import PolicyConfig
from trainer_adapter.data_plane import LOGPROB_FIELDS, TRAIN_FIELDS
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.policy import DataPlanePolicy
from trainer_adapter.worker import AutomodelPolicyWorker
from trainer_adapter.worker_groups import TorchrunWorkerGroup

_STEPS, _WARM = 5, 2
_ROWS = {"cuda": 64, "cpu": 8}
_TOKENS = {"cuda": 1024, "cpu": 64}  # of the longest row
_VOCABULARY = {"cuda": 32_000, "cpu": 256}
_MODELS = {
    "cuda": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32},
    "cpu": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
}


def measure(session: Session, client: DataPlaneClient, address: str, device: torch.device, folder: Path) -> None:
    """Print the time of each phase of a step, tokens a second, and the share of the step in the data plane."""
    _be_the_only_rank()
    _save_model(folder, device.type)
    per_token = [name for name in TRAIN_FIELDS if name not in ("input_lengths", "sample_mask")]
    client.register_partition("step", TRAIN_FIELDS, 0, ["prev_lp", "ref_lp", "train"], per_token_fields=per_token)
    config = _config(folder, device.type)
    policy = DataPlanePolicy(
        config, TorchrunWorkerGroup(AutomodelPolicyWorker, {"config": config, "data_plane": address})
    )
    try:
        with training.StepClock() as clock:
            steps = [_step(client, policy, device, number, clock) for number in range(_WARM + _STEPS)][_WARM:]
    finally:
        policy.shutdown()
    _report(session, device, steps)


def _step(
    client: DataPlaneClient, policy: DataPlanePolicy, device: torch.device, number: int, clock: training.StepClock
) -> dict[str, float]:
    rows = _ROWS[device.type]

    def logprobs_of_policy() -> None:
        with client.claim("step", "prev_lp", LOGPROB_FIELDS, rows) as claim:
            policy.get_logprobs_from_meta(claim.meta)

    def logprobs_of_reference() -> None:
        with client.claim("step", "ref_lp", LOGPROB_FIELDS, rows) as claim:
            policy.get_reference_policy_logprobs_from_meta(claim.meta)

    def train() -> None:
        with client.claim("step", "train", TRAIN_FIELDS, rows) as claim:
            policy.train_from_meta(claim.meta, ClippedPolicyGradientLoss())
        wait(device)

    clock.lap()
    took = timed(
        put=lambda: _put(client, device.type, number),
        policy_logprobs=logprobs_of_policy,
        reference_logprobs=logprobs_of_reference,
        train=train,
    )
    share = clock.lap().as_metrics()["dataplane/step/data_plane_share"]
    client.clear_samples(None, "step")
    return {**took, "share": float(share)}


def _put(client: DataPlaneClient, kind: str, number: int) -> None:
    """Rollouts as generators put them."""
    rows, tokens = _ROWS[kind], _TOKENS[kind]
    torch.manual_seed(number)
    lengths = torch.randint(tokens // 2, tokens + 1, (rows,))
    mask = (torch.arange(tokens) < lengths[:, None]).float()
    columns = {
        "input_ids": torch.randint(1, _VOCABULARY[kind], (rows, tokens)),
        "input_lengths": lengths,
        "token_mask": mask,
        "sample_mask": torch.ones(rows),
        "generation_logprobs": -torch.rand(rows, tokens),
        "advantages": torch.randn(rows, 1) * mask,
    }
    ids = [f"{number}-{row}" for row in range(rows)]
    kv_first_write(columns, sample_ids=ids, dp_client=client, partition_id="step")


def _report(session: Session, device: torch.device, steps: list[dict[str, float]]) -> None:
    series = {name: Series(tuple(step[name] for step in steps)) for name in steps[0]}
    share, tokens = series.pop("share").median, _ROWS[device.type] * _TOKENS[device.type] * 3 / 4
    session.compare("gpu.step", f"a step of {_ROWS[device.type]} rows on {device}", {"": series})
    took = sum(one.median for one in series.values())
    session.console.print(f"{tokens / took:,.0f} tokens/s; {share:.1%} of the step in the data plane")


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- the policy --------------------------------------------------------------------------------------------------------


def _be_the_only_rank() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in alone.items()}


def _save_model(folder: Path, kind: str) -> None:
    words = {f"w{number}": number for number in range(_VOCABULARY[kind])}
    special = {"pad_token": "w0", "eos_token": "w1"}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), **special).save_pretrained(folder)
    shape: dict[str, Any] = {**_MODELS[kind], "vocab_size": len(words), "max_position_embeddings": 2 * _TOKENS[kind]}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape, pad_token_id=0, dtype="bfloat16"))
    model.save_pretrained(folder)


def _config(folder: Path, kind: str) -> PolicyConfig:
    tokens = 8 * _TOKENS[kind]
    rounded = {"enabled": True, "sequence_length_round": 8, "train_mb_tokens": tokens, "logprob_mb_tokens": tokens}
    config: Any = {
        "model_name": str(folder),
        "tokenizer": {"name": str(folder)},
        "precision": "bfloat16",
        "max_grad_norm": 1.0,
        "train_global_batch_size": _ROWS[kind],
        "train_micro_batch_size": 8,
        "logprob_batch_size": 8,
        "make_sequence_length_divisible_by": 8,
        "dynamic_batching": rounded,
        "sequence_packing": {"enabled": False},
        "optimizer": {"name": "torch.optim.AdamW", "kwargs": {"lr": 1e-6}},
        "generation": {"colocated": {"enabled": False}, "temperature": 1.0, "top_p": 1.0, "top_k": None},
        "dtensor_cfg": {
            "device": kind,
            "cpu_offload": False,
            "sequence_parallel": False,
            "activation_checkpointing": False,
            "tensor_parallel_size": 1,
            "context_parallel_size": 1,
        },
    }
    policy: PolicyConfig = config
    return policy
