"""One sample of eight takes ten times as long: what a step waits for, and what its advantages are worth.

`python benchmarks/stragglers.py [steps]`. A real server; every prompt is a group of 8 samples, which a client generates
at the same time by sleeping. A trainer claims the step's 8 groups whole. Long answers are right less often (0.2) than
others (0.6), so it matters which samples are missing. The bias is the mean, over the samples in time, of the advantage
that the trainer computes minus the one with the mean reward of all 8 as the baseline.

    wait for all       no deadline
    late is 0          the producer puts reward 0 for a sample that is late
    deadline           the server commits what is complete, if that is at least half of the group
    deadline, tag      as before, and the baseline takes the rows that the tag missing_rows counts as late answers
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from dataplane_client import Claim, GroupFencedError, aio
from report import begin, table
from servers import server_process

GROUPS, SIZE, SECONDS, SLOWER, DEADLINE_S, LEAST = 8, 8, 0.5, 10, 1.5, 4
RIGHT, LATE_RIGHT = 0.6, 0.2
"""How often an answer is right; those of late samples."""
POLICIES = ("wait for all", "late is 0", "deadline", "deadline, tag")


class Step(NamedTuple):
    """took_s: from the begin of the generation to the trainer's batch. samples: how many it has."""

    took_s: float
    samples: int
    biases: list[float]


class Generator:
    """Prompts of one policy. `rewards`: of all samples that it would generate, by group."""

    def __init__(self, client: aio.AsyncDataPlaneClient, policy: str) -> None:
        self._client = client
        self.policy = policy
        self._random = random.Random(7)  # all policies get the same rewards
        self.rewards: dict[str, list[float]] = {}

    async def generate(self, group_id: str) -> None:
        """One group, again if the server removes it: on a busy machine all of its samples may be late."""
        while not await self._try(group_id):
            pass

    async def _try(self, group_id: str) -> bool:
        late = self._random.randrange(SIZE)
        chances = [LATE_RIGHT if sample == late else RIGHT for sample in range(SIZE)]
        self.rewards[group_id] = [float(self._random.random() < chance) for chance in chances]
        ids = [f"{group_id}/{sample}" for sample in range(SIZE)]
        terms = {"deadline_s": DEADLINE_S, "min_rows": LEAST} if self.policy.startswith("deadline") else {}
        group = await self._client.reserve_group(self.policy, group_id, ids, **terms)  # type: ignore[arg-type]
        try:
            await asyncio.gather(*(self._sample(group, sample, sample == late) for sample in range(SIZE)))
            await group.commit()
        except GroupFencedError:
            return False
        return True

    async def _sample(self, group: aio.AsyncGroup, number: int, is_late: bool) -> None:
        seconds, reward = SECONDS * (SLOWER if is_late else 1), self.rewards[group.group_id][number]
        if is_late and self.policy == "late is 0":
            seconds, reward = DEADLINE_S, 0.0
        if is_late and self.policy.startswith("deadline"):
            seconds = DEADLINE_S * 1.2  # stopped soon after the deadline, since nobody waits for it
        await asyncio.sleep(seconds)
        if seconds <= DEADLINE_S or not self.policy.startswith("deadline"):
            with contextlib.suppress(GroupFencedError):  # `commit` shows whether the others were enough
                await group.put([f"{group.group_id}/{number}"], {"reward": [reward]})


def biases_of(claim: Claim | aio.AsyncClaim, got: Sequence[float], generator: Generator) -> list[float]:
    """Advantage minus true advantage of each sample in time: by how much the baseline is too low."""
    found, tags = [], iter(claim.meta.tags or [{}] * len(got))
    rewards = iter(got)
    for part in claim.groups:
        rows, of_rows = [next(rewards) for _ in range(part.rows)], [next(tags) for _ in range(part.rows)]
        missing = int(of_rows[0].get("missing_rows") or 0) if generator.policy.endswith("tag") else 0
        baseline = (sum(rows) + missing * LATE_RIGHT) / (len(rows) + missing)
        found += [statistics.fmean(generator.rewards[part.group_id]) - baseline] * (SIZE - 1)
    return found


async def run(address: str, policy: str, steps: int) -> list[Step]:
    found = []
    async with aio.connect(address) as producer, aio.connect(address) as trainer:
        await trainer.register_partition(policy, ["reward"], 0, ["train"], clear_when_consumed=True)
        generator = Generator(producer, policy)
        for step in range(steps):
            began = time.perf_counter()
            names = [f"{step}-{prompt}" for prompt in range(GROUPS)]
            generation = asyncio.gather(*(generator.generate(name) for name in names))
            async with trainer.claim(policy, "train", ["reward"], GROUPS, whole_groups=True) as claim:
                took_s = time.perf_counter() - began
                rewards = (await trainer.read_columns(claim.meta, ["reward"]))["reward"].tolist()
                found.append(Step(took_s, len(rewards), biases_of(claim, rewards, generator)))
            await generation
    return found


def main(steps: int) -> None:
    console, rows = begin(), []
    with server_process("256MiB") as server:
        for policy in POLICIES:
            found = asyncio.run(run(server.unix, policy, steps))
            biases = [bias for step in found for bias in step.biases]
            took = sorted(step.took_s for step in found)
            groups = len(biases) / (SIZE - 1)  # independent of each other; their samples are not
            error = statistics.stdev(biases) / groups**0.5
            rows.append(
                (
                    policy,
                    f"{statistics.median(took):.3f}",
                    f"{took[-1]:.3f}",
                    f"{statistics.fmean(step.samples for step in found):.1f}",
                    f"{statistics.fmean(biases):+.3f} ± {error:.3f}",
                )
            )
    headings = ("policy", "step, median s", "most s", "samples a step", "bias of the mean advantage")
    console.print(table(f"{steps} steps of {GROUPS} groups of {SIZE}", headings, rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
