"""verl V1's replay buffer, waiting at the server instead of listing all keys every two seconds.

    trainer.v1.sampler.custom_sampler.path=pkg://dataplane_transfer_queue.verl
    trainer.v1.sampler.custom_sampler.name=DataPlaneReplayBuffer

A prompt is a row `{uid}` with the tag is_prompt, and its trajectories are rows `{uid}_{session}_{index}`. A prompt can
be sampled when its tag status says that all its sessions have ended. A claim whose filter says that waits in the
server, which serves it as soon as the tags are there. The claim is kept until the next batch is sampled: if the trainer
dies in between, its prompts can be sampled again.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError
from dataplane_client.observe import log_event
from dataplane_transfer_queue._connection import attached
from dataplane_transfer_queue._metas import KVBatchMeta
from dataplane_transfer_queue._rows import TASK, Rows

_Base: Any = object
with contextlib.suppress(ImportError):
    _Base = importlib.import_module("verl.trainer.ppo.v1.replay_buffer").ReplayBuffer


class DataPlaneReplayBuffer(_Base):  # type: ignore[misc]  # verl's class, where verl is installed
    """Prompts that can be sampled, each once. For one thread of the trainer.

    Takes what verl's class takes, and uses none of it: that class begins to list keys when it is made. statuses: of
    prompts that can be sampled; a prompt of status "failure" has those trajectories that did not fail. wait_s: the
    seconds of waiting after which the log says what is missing.
    """

    statuses: ClassVar[Sequence[str]] = ("finished", "failure")
    wait_s: ClassVar[float] = 60.0

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._held: dict[str, Any] = {}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """The trajectories of batch_size prompts, in the order in which these could be sampled, then by session and
        index; and figures: prompts, failed ones, trajectories, and by how many steps the oldest lags global_steps.

        Blocks until that many can be sampled; the log says every wait_s seconds what is missing. The prompts of the
        last batch of the partition are consumed now.
        """
        if (last := self._held.pop(partition_id, None)) is not None:
            last.commit()
        claim = self._held[partition_id] = self._claim(partition_id, batch_size, None)
        rows = attached().rows
        found = dict(_trajectories(rows, partition_id, claim.meta.sample_ids, min(claim.meta.generations)))
        fields = rows.fields(list(found), partition_id) if found else []
        steps = [int(tags["min_global_steps"]) for tags in found.values() if "min_global_steps" in tags]
        return KVBatchMeta(list(found), list(found.values()), partition_id, fields), {
            "replay_buffer/prompts": claim.meta.size,
            "replay_buffer/failed_prompts": [tags["status"] for tags in claim.tags].count("failure"),
            "replay_buffer/trajectories": len(found),
            "replay_buffer/staleness_max": global_steps - min(steps, default=global_steps),
        }

    def wait_for_sampleable(
        self, global_steps: int = 0, partition_id: str = "train", batch_size: int = 1, timeout_s: float | None = None
    ) -> bool:
        """Block until batch_size prompts can be sampled, at most timeout_s seconds (None: for ever), and tell whether
        they can.
        """
        claim = self._claim(partition_id, batch_size, timeout_s)
        if claim is not None:
            claim.release()
        return claim is not None

    def get_sampleable_count(self, global_steps: int = 0, partition_id: str = "train") -> int:
        """The number of prompts that can be sampled now."""
        _client_with_task(partition_id)
        which: dict[str, Any] = {"task_name": TASK, "states": ["untaken"], "where": self._where()}
        return sum(page.meta.size for page in attached().rows.pages(partition_id, **which))

    def _claim(self, partition_id: str, batch_size: int, timeout_s: float | None) -> Any:
        client = _client_with_task(partition_id)
        end = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = max(min(self.wait_s, end - time.monotonic()), 0.0)
            try:
                return client.claim(partition_id, TASK, [], batch_size, where=self._where(), timeout_s=wait_s)
            except ClaimTimeoutError as error:
                if time.monotonic() >= end:
                    return None
                log_event(logging.WARNING, "prompts_missing", partition=partition_id, why=error)

    def _where(self) -> str:
        return f"is_prompt == True and status in {tuple(self.statuses)!r}"


def _client_with_task(partition_id: str) -> DataPlaneClient:
    rows = attached().rows
    rows.ensure_task(partition_id, TASK)
    return rows.client


def _trajectories(
    rows: Rows, partition_id: str, uids: Sequence[str], first: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys and tags of the prompts' trajectories in order. first: the generation of the first prompt; a trajectory is
    put after its prompt, so it is greater.
    """
    place = {uid: number for number, uid in enumerate(uids)}
    found: list[tuple[Any, ...]] = []
    for _, key, tags in rows.listed(partition_id, first):
        uid, *numbers = key.rsplit("_", 2)
        if uid in place and len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            found.append((place[uid], *map(int, numbers), key, tags))
    found.sort(key=lambda row: row[:3])
    return ((key, tags) for *_, key, tags in found)
