"""A small flow of rollouts that goes on and on, with what an operator may find beside it: calls that wait for four
reasons, dead letters, a client that died.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError
from dataplane_client.records.flow import FlowPolicy
from dataplane_client.records.tasks import TaskPolicy

GROUP = 8
PER_TOKEN = ("input_ids", "loss_mask", "generation_logprobs", "prev_logprobs")
FIELDS = (*PER_TOKEN, "reward", "response")
TEXT = "Anna has 12 apples and gives 5 of them to Ben, so 12 - 5 = 7 are left. The answer is 7."


class LivelyFlow:
    """Runs until the block ends. pause_s: of each producer between two groups."""

    def __init__(self, address: str, pause_s: float = 0.25) -> None:
        self._address = address
        self._pause_s = pause_s
        self._over = threading.Event()
        self._version = 1

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        loops: list[Callable[[], None]] = [lambda n=n: self._generate(n) for n in range(3)]  # type: ignore[misc]
        loops += [self._score, self._train]
        with ThreadPoolExecutor(16) as threads, contextlib.ExitStack() as clients:
            self._clients = clients
            driver = self._client("driver")
            driver.register_partition(
                "rollouts",
                list(FIELDS),
                0,
                ["prev_logprobs", "train"],
                per_token_fields=PER_TOKEN,
                clear_when_consumed=True,
            )
            policy = TaskPolicy(max_staleness=3, when_stale="drop", order="oldest_version")
            driver.set_policies("rollouts", {"train": policy}, flow=FlowPolicy(max_rows=512))
            self._stall(driver, threads)
            running = [threads.submit(loop) for loop in loops]
            try:
                yield
            finally:
                self._over.set()
                clients.close()
                threads.shutdown(wait=True)
                for loop in running:
                    loop.result()

    def _client(self, name: str) -> DataPlaneClient:
        return self._clients.enter_context(connect(self._address, client_name=name, timeout_s=600.0))

    # -- what flows ----------------------------------------------------------------------------------------------------

    def _generate(self, number: int) -> None:
        client, chance = self._client(f"generator-{number}"), random.Random(number)
        for group in range(1_000_000):
            if self._over.wait(self._pause_s * chance.uniform(0.6, 1.4)):
                return
            ids = [f"p{number}-{group}-{row}" for row in range(GROUP)]
            with (
                contextlib.suppress(DataPlaneError),
                client.reserve_group("rollouts", f"p{number}-{group}", ids, weight_version=self._version) as made,
            ):
                made.put(ids, _columns(chance), [{"domain": "math"}] * GROUP)

    def _score(self) -> None:
        """The second field of log-probabilities."""
        client = self._client("prev-logprobs")
        while not self._over.is_set():
            with contextlib.suppress(DataPlaneError):
                claim = client.claim("rollouts", "prev_logprobs", ["input_ids"], GROUP, timeout_s=2.0)
                claim.commit({"prev_logprobs": [torch.randn(length) * 0.1 - 0.8 for length in claim.sequence_lengths]})

    def _train(self) -> None:
        client = self._client("trainer")
        while not self._over.is_set():
            with contextlib.suppress(DataPlaneError):
                claim = client.claim(
                    "rollouts", "train", ["input_ids", "prev_logprobs", "reward"], 5 * GROUP, timeout_s=5.0
                )
                self._over.wait(0.45)
                claim.commit()
                self._version += 1
                client.set_weight_version("rollouts", self._version)

    # -- what does not -------------------------------------------------------------------------------------------------

    def _stall(self, driver: DataPlaneClient, threads: ThreadPoolExecutor) -> None:
        driver.register_partition("judged", ["answer", "verdict"], 0, ["grade", "train"])
        driver.put_samples([f"j{row}" for row in range(64)], "judged", {"answer": torch.zeros(64)})
        with connect(self._address, client_name="judge-2") as judge:
            judge.claim("judged", "grade", ["answer"], 8).commit({"verdict": torch.zeros(8)})
        self._waits(
            threads, lambda: self._client("policy-trainer").claim("judged", "train", ["verdict"], 32, timeout_s=600.0)
        )

        driver.register_partition("tool-calls", ["call"], 0, ["run"], max_deliveries=1)
        driver.put_samples([f"t{row}" for row in range(24)], "tool-calls", {"call": torch.zeros(24)})
        worker = self._client("tool-runner")
        worker.claim("tool-calls", "run", ["call"], 3).release(reason="the sandbox did not start: out of memory")
        self._held = worker.claim("tool-calls", "run", ["call"], 16)
        self._waits(
            threads, lambda: self._client("tool-runner-2").claim("tool-calls", "run", ["call"], 16, timeout_s=600.0)
        )

        driver.register_partition("eval", ["x"], 200, ["score"])
        driver.set_policies("eval", flow=FlowPolicy(max_rows=64))
        driver.put_samples([f"e{row}" for row in range(64)], "eval", {"x": torch.zeros(64)})
        self._waits(threads, lambda: self._client("eval-producer").put_samples(["e64"], "eval", {"x": torch.zeros(1)}))

    def _waits(self, threads: ThreadPoolExecutor, call: Callable[[], object]) -> None:
        def wait() -> None:
            with contextlib.suppress(DataPlaneError):
                call()

        threads.submit(wait)


def _columns(chance: random.Random) -> dict[str, object]:
    lengths = [chance.randint(24, 120) for _ in range(GROUP)]
    texts = np.empty(GROUP, object)
    texts[:] = [TEXT] * GROUP
    return {
        "input_ids": [torch.randint(10, 32_000, (length,)) for length in lengths],
        "loss_mask": [(torch.arange(length) >= 16).to(torch.uint8) for length in lengths],
        "generation_logprobs": [torch.randn(length) * 0.1 - 0.8 for length in lengths],
        "reward": torch.tensor([float(chance.random() < 0.5) for _ in range(GROUP)]),
        "response": texts,
    }
