"""Steps as verl's V1 trainer makes them: agent loops put trajectories, and each role of the
trainer reads rows, adds columns to them, and tags them, all by keys and numbers, in event loops of their own threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import TensorDict

import dataplane_transfer_queue as tq

pytestmark = pytest.mark.usefixtures("started")

Columns = Callable[..., TensorDict]
PROMPTS, SESSIONS, STEPS = 3, 2, 2


def jagged(*lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(length) for length in lengths], layout=torch.jagged)


async def issue(uids: list[str], step: int) -> None:
    tags = [{"is_prompt": True, "status": "pending", "global_steps": step}] * len(uids)
    await tq.async_kv_batch_put(uids, "train", tags=tags)


async def agent(uid: str, step: int, columns: Columns) -> None:
    """Generates all trajectories of a prompt."""
    await tq.async_kv_put(uid, "train", tag={"status": "running"})
    for session in range(SESSIONS):
        fields = columns(1, input_ids=jagged(3 + session), response_mask=jagged(3 + session))
        tags = [{"min_global_steps": step, "max_global_steps": step, "seq_len": 3 + session}]
        await tq.async_kv_batch_put([f"{uid}_{session}_0"], "train", fields, tags)
    await tq.async_kv_put(uid, "train", tag={"status": "finished"})


async def role(keys: list[str], field: str, compute: Callable[[TensorDict], torch.Tensor]) -> list[str]:
    """A worker method: rows by their keys in, a column out. Returns the keys of the rows that it wrote."""
    client = tq.get_client()
    meta = await client.async_kv_retrieve_meta(keys, "train", False)
    data = await client.async_get_data(meta)
    written = await client.async_put(TensorDict({field: compute(data)}, batch_size=[meta.size]), meta)
    found: list[str] = await client.async_kv_retrieve_keys(written.global_indexes, "train")
    return found


async def test_prompts_become_trajectories_that_each_role_reads_and_adds_to(columns: Columns) -> None:
    for step in range(STEPS):
        uids = [f"u{step}-{number}" for number in range(PROMPTS)]
        await issue(uids, step)
        with ThreadPoolExecutor(PROMPTS) as agents:
            list(agents.map(asyncio.run, [agent(uid, step, columns) for uid in uids]))
        listed = {key: tags for key, tags in tq.kv_list("train")["train"].items() if "is_prompt" not in tags}
        meta = tq.KVBatchMeta(list(listed), list(listed.values()), "train")
        assert sorted(meta.keys) == sorted(f"{uid}_{session}_0" for uid in uids for session in range(SESSIONS))
        for field in ("old_log_probs", "ref_log_prob", "values"):
            assert await role(meta.keys, field, lambda data: data["input_ids"] * 0.5) == meta.keys
        assert await role(meta.keys, "advantages", lambda data: data["values"] + data["old_log_probs"]) == meta.keys
        batch = await tq.async_kv_batch_get(meta.keys, "train", ["advantages", "input_ids"])
        for advantages, tokens in zip(batch["advantages"].unbind(), batch["input_ids"].unbind(), strict=True):
            assert torch.equal(advantages, tokens * 1.0)
        await tq.async_kv_batch_put(meta.keys, "train", tags=[{"trained": step}] * len(meta.keys))
        assert {tags["trained"] for key, tags in tq.kv_list("train")["train"].items() if key in meta.keys} == {step}
        await tq.async_kv_clear([*meta.keys, *uids], "train")
    assert tq.kv_list("train") == {"train": {}}
