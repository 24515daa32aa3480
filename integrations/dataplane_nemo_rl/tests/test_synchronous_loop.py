"""The calls of NeMo-RL's synchronous loop, step by step: rows of the step before are there while a step runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from dataplane_client.client import DataPlaneClient
from dataplane_nemo_rl import DataPlaneAdapter, KVBatchMeta

STEPS, PROMPTS, SAMPLES, RANKS = 3, 4, 2, 2
ROWS = PROMPTS * SAMPLES
FIELDS = ["input_ids", "input_lengths", "token_mask", "sample_mask", "generation_logprobs"]
SEEDS = ["input_ids", "input_lengths", "token_mask", "sample_mask"]


def ragged(lengths: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(length).to(dtype) for length in lengths], layout=torch.jagged)


def rollouts(lengths: list[int]) -> TensorDict:
    """What a generator puts for its prompts, with columns that are declared nowhere."""
    rows = len(lengths)
    return TensorDict(
        {
            "input_ids": ragged(lengths, torch.int64),
            "input_lengths": torch.tensor(lengths),
            "token_mask": ragged(lengths, torch.float32),
            "sample_mask": torch.ones(rows),
            "generation_logprobs": ragged(lengths, torch.float32),
            "turn_lengths": NonTensorStack(*([length] for length in lengths)),
            "content": NonTensorStack(*(f"{length} tokens" for length in lengths)),
        },
        batch_size=[rows],
    )


def generate(adapter: DataPlaneAdapter, step: int, prompt: int) -> KVBatchMeta:
    ids = [f"{step}-{prompt}-{sample}" for sample in range(SAMPLES)]
    lengths = [2 + prompt + sample for sample in range(SAMPLES)]
    return adapter.put_samples(ids, "train", rollouts(lengths), [{"prompt": prompt}] * SAMPLES)


def compute(adapter: DataPlaneAdapter, rank: int, task: str, column: str) -> KVBatchMeta:
    """A rank claims its rows for a task and writes a column of their shape back."""
    meta = adapter.claim_meta("train", task, SEEDS, ROWS // RANKS, dp_rank=rank)
    data = adapter.get_data(meta)
    lengths = data["input_lengths"].tolist()
    assert meta.sequence_lengths == lengths
    assert [len(row) for row in data["input_ids"].unbind()] == lengths
    return adapter.put_samples(
        meta.sample_ids, "train", TensorDict({column: ragged(lengths, torch.float32)}, batch_size=[meta.size])
    )


def train(adapter: DataPlaneAdapter, step: int) -> KVBatchMeta:
    """All ranks' rows as one meta, which the loop stamps and narrows in place; the advantages; the training batch."""
    metas = [
        adapter.claim_meta("train", "train", [*FIELDS, "prev_logprobs", "ref_logprobs"], ROWS // RANKS, rank)
        for rank in range(RANKS)
    ]
    meta = metas[0].concat(*metas[1:])
    meta.stamp_tags({"total_reward": [float(row % SAMPLES) for row in range(ROWS)]})
    meta.extra_info["pad_to"] = 16
    assert [tags["total_reward"] for tags in meta.tags or []] == [0.0, 1.0] * PROMPTS
    kept = meta.drop([0])
    assert kept is not None
    assert (kept.size, kept.extra_info["pad_to"]) == (ROWS - 1, 16)
    advantages = TensorDict({"advantages": torch.ones(kept.size)}, batch_size=[kept.size])
    adapter.put_samples(kept.sample_ids, "train", advantages, kept.tags)
    data = adapter.get_data(kept.with_fields(["advantages"]))
    assert list(data.keys()) == [*FIELDS, "prev_logprobs", "ref_logprobs", "advantages"]
    assert all(sample_id.startswith(f"{step}-") for sample_id in kept.sample_ids)
    return meta


def validate(adapter: DataPlaneAdapter, batch: int) -> None:
    """A batch of validation: a partition for as long as it takes."""
    ids = [f"val-{batch}-{row}" for row in range(3 + batch)]
    adapter.register_partition("val", FIELDS, len(ids), ["score"])
    adapter.put_samples(ids, "val", rollouts([5] * len(ids)))
    meta = adapter.claim_meta("val", "score", ["input_ids", "content"], len(ids))
    data = adapter.get_data(meta)
    assert data["input_ids"].shape == (len(ids), 5)
    assert data.get("content").tolist() == ["5 tokens"] * len(ids)
    assert adapter.check_consumption_status("val", ["score"])
    adapter.clear_samples(None, "val")
    with pytest.raises(KeyError):
        adapter.get_data(meta)


def test_every_step_trains_its_own_rows_while_those_of_the_step_before_are_there(
    adapter: DataPlaneAdapter, client: DataPlaneClient
) -> None:
    before: list[str] = []
    for step in range(STEPS):
        adapter.register_partition("train", FIELDS, ROWS, ["logprob", "ref", "train"], SAMPLES)
        with ThreadPoolExecutor(PROMPTS) as generators:
            written = list(generators.map(lambda prompt, step=step: generate(adapter, step, prompt), range(PROMPTS)))
        assert sorted(before + [sample_id for meta in written for sample_id in meta.sample_ids]) == (
            adapter.list_sample_ids("train")
        )
        assert not adapter.check_consumption_status("train", ["logprob", "ref", "train"])
        with ThreadPoolExecutor(RANKS) as ranks:
            for task, column in (("logprob", "prev_logprobs"), ("ref", "ref_logprobs")):
                done = list(ranks.map(lambda rank, t=task, c=column: compute(adapter, rank, t, c), range(RANKS)))
                assert len({sample_id for meta in done for sample_id in meta.sample_ids}) == ROWS
        meta = train(adapter, step)
        assert adapter.check_consumption_status("train", ["logprob", "ref", "train"])
        validate(adapter, step)
        adapter.clear_samples(before, "train")
        before = meta.sample_ids
    assert client.partition("train").rows == ROWS
    assert client.partition("train").rows_put_total == STEPS * ROWS
    assert [status.consumed_rows_total for status in client.partition("train").tasks] == [STEPS * ROWS] * 3
