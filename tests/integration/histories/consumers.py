"""Consumers: they claim, work a little, write back, commit, release; or forget what they hold."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator

import torch
from tests.integration.histories.producers import tokens_of
from tests.integration.histories.recorder import Recorder, outcome_of
from tests.integration.histories.settings import DP_WORLD, PARTITION, SHARED_TASKS, STOP_FILE, Settings
from tests.integration.histories.steps import StepBook

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, DataPlaneError, NotFoundError

_TRIES = 20
_BATCH = 6
_STEP_BATCH = 12
_WORK_S = (0.0, 0.01, 0.03, 0.5)


class Consumer:
    """Claims rows of a task, whatever their group."""

    task = "rows"
    whole = False

    def __init__(self, settings: Settings, connect: Callable[[], DataPlaneClient], record: Recorder, slot: int) -> None:
        self._stop = settings.folder / STOP_FILE
        self._connect = connect
        self._client = connect()
        self._record = record
        self._chance = random.Random(f"{settings.seed} {record.process}")
        self._book = StepBook(settings.folder, slot // 4 % DP_WORLD)
        self._careless = True
        self._rows_vanish = settings.rows_vanish

    def consume(self, until: float) -> None:
        """Until the campaign is over. until: when faults end; from then on every claim is committed."""
        while not self._stop.exists():
            self._careless = time.monotonic() < until
            with contextlib.suppress(DataPlaneError):  # it stands in the record
                self._turn()
        self._client.close()

    def _turn(self) -> None:
        claim = self._claim()
        try:
            self._work(claim)
        except NotFoundError as error:
            if type(error) is NotFoundError:  # rows of the claim have vanished
                self._release(claim)
            raise

    def _work(self, claim: Claim) -> None:
        self._check_values(claim)
        if self._careless and self.task not in SHARED_TASKS and self._chance.random() < 0.04:
            claim = self._hand_on(claim)
        time.sleep(self._chance.uniform(0.0, self._chance.choice(_WORK_S)))
        if self._chance.random() < 0.4:
            self._write(claim)
        end = self._chance.random() if self._careless else 1.0
        if end < 0.02:
            self._leave(claim)
        elif end < 0.2:
            self._release(claim)
        else:
            self._commit(claim, columns=self._chance.random() < 0.6)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claim(self) -> Claim:
        return self._claimed(self._claim_some, self.whole, _BATCH)

    def _claimed(self, claim_some: Callable[[float], Claim], whole: bool, most: int) -> Claim:
        timeout_s = self._chance.choice((0.005, 0.2, 1.0)) if self._careless else 1.0
        with self._record.call("claim", task=self.task, whole=whole, most=most) as answer:
            claim = claim_some(timeout_s)
            answer.update(
                claim_id=claim.claim_id,
                fence=claim.fence,
                rows=claim.meta.sample_ids,
                generations=claim.meta.generations,
            )
        return claim

    def _claim_some(self, timeout_s: float) -> Claim:
        return self._client.claim(PARTITION, self.task, ["tokens"], _BATCH, min_size=1, timeout_s=timeout_s)

    def _check_values(self, claim: Claim) -> None:
        if not claim.meta.sample_ids or self._chance.random() < 0.5:
            return
        with self._dropped_on_error(claim):
            found = self._client.get_data(claim.meta, ["tokens"])["tokens"]
        for row, tokens in zip(claim.meta.sample_ids, found.unbind(), strict=True):
            if tokens.tolist() != tokens_of(row):
                self._record.note("complaint", text=f"{row} holds {tokens.tolist()} instead of {tokens_of(row)}")

    @contextlib.contextmanager
    def _dropped_on_error(self, claim: Claim) -> Iterator[None]:
        """A call that is not in the record. If it fails, the claim is dropped, and its rows return."""
        try:
            yield
        except DataPlaneError:
            self._record.begin("release", fence=claim.fence)
            raise

    # -- write back, and end -------------------------------------------------------------------------------------------

    def _fences(self, claim: Claim, column: str) -> dict[str, torch.Tensor]:
        return {f"{self.task}_{column}": torch.full((claim.meta.size,), claim.fence)}

    def _write(self, claim: Claim) -> None:
        if claim.meta.sample_ids:
            with self._record.call("write", fence=claim.fence):
                claim.write(self._fences(claim, "draft"))

    def _commit(self, claim: Claim, *, columns: bool) -> None:
        fields = self._fences(claim, "result") if columns and claim.meta.sample_ids else None
        request_id = str(uuid.uuid4())

        def commit() -> None:
            with self._record.call("commit", fence=claim.fence, columns=fields is not None):
                rows = claim.commit(fields, request_id=request_id)
            if rows != claim.meta.size and not (self._rows_vanish and rows < claim.meta.size):
                text = f"a commit of {claim.claim_id} with {claim.meta.size} rows consumed {rows}"
                self._record.note("complaint", text=text)

        self._until_known(commit)

    def _release(self, claim: Claim) -> None:
        delay_s, reason = self._chance.choice(((0.0, ""), (0.0, "ill"), (0.1, ""), (0.3, "ill")))
        with self._record.call("release", fence=claim.fence):
            claim.release(delay_s=delay_s, reason=reason)

    def _hand_on(self, claim: Claim) -> Claim:
        """Let another client have the claim, and close the one that had it."""
        with self._dropped_on_error(claim):
            new = self._connect()
        old, self._client = self._client, new
        try:
            with self._record.call("adopt", fence=claim.fence):
                return self._client.adopt_claim(claim.claim_id, claim.meta)
        except DataPlaneError:
            self._record.begin("release", fence=claim.fence)
            raise
        finally:
            old.close()

    def _leave(self, claim: Claim) -> None:
        """Close the client with what it holds, and come back as another one."""
        self._record.begin("release", fence=claim.fence)
        self._client.close()
        self._client = self._connect()

    def _until_known(self, end: Callable[[], None]) -> None:
        """Repeat a call until its answer has come."""
        for _ in range(_TRIES):
            try:
                return end()
            except DataPlaneError as error:  # noqa: PERF203  # rare
                if outcome_of(error) != "unknown":
                    raise
        return None


class GroupConsumer(Consumer):
    """Claims whole groups."""

    task = "groups"
    whole = True

    def _claim(self) -> Claim:
        return self._claimed(self._claim_some, whole=True, most=3 * _BATCH)

    def _claim_some(self, timeout_s: float) -> Claim:
        return self._client.claim(
            PARTITION, self.task, ["tokens", "prompt"], 3, min_size=1, whole_groups=True, timeout_s=timeout_s
        )


class ShardConsumer(Consumer):
    """Claims its rank's shard, step by step, as do others of its rank. Every third step is of whole groups."""

    task = "shards"

    def _claim(self) -> Claim:
        while self._book.is_far_ahead and not self._stop.exists():
            time.sleep(0.02)
        self._step: int | None = self._book.step
        try:
            return self._claimed(self._claim_shard, self._step % 3 == 0, _STEP_BATCH * 6)
        except ClaimTimeoutError:
            if self._careless:
                raise
        self._step = None  # fewer rows are left than a step takes
        return self._claimed(self._claim_some, whole=False, most=_BATCH)

    def _claim_shard(self, timeout_s: float) -> Claim:
        step = self._step or 0
        whole = step % 3 == 0
        return self._client.claim_shard(
            PARTITION,
            self.task,
            ["tokens"],
            4 if whole else _STEP_BATCH,
            step=step,
            dp_rank=self._book.rank,
            dp_world=DP_WORLD,
            min_size=DP_WORLD,
            balance="tokens" if step % 2 else "rows",
            max_tokens=400 if step % 5 == 0 else None,
            whole_groups=whole,
            again=True,  # the one before may have been killed between its commit and its note of it
            timeout_s=timeout_s if self._careless else 0.02,
        )

    def _commit(self, claim: Claim, *, columns: bool) -> None:
        super()._commit(claim, columns=columns)
        if self._step is not None:
            self._book.finish(self._step)
