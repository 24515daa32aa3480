"""A client of a real server, on any of its ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from tests.semantics.callers import Begun, Caller, Group, Refused, Rows, Tags, each
from torch.nested import nested_tensor

import dataplane_client
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import DataPlaneError, NotFoundError
from dataplane_client.records.flow import DrawBand, FlowPolicy
from dataplane_client.records.tasks import TaskPolicy

HANG_S = 200.0
A = TypeVar("A")


def refused(error: DataPlaneError) -> Refused:
    return Refused(error.reason, error.message, error.details)


def did(act: Callable[[], A]) -> A:
    try:
        return act()
    except DataPlaneError as error:
        raise refused(error) from error


class ClientBegun(Begun[A]):
    def __init__(self, future: Future[A]) -> None:
        self._future = future

    def answer(self) -> A:
        return did(lambda: self._future.result(HANG_S))

    def in_vain(self) -> Refused:
        error = self._future.exception(HANG_S)
        assert isinstance(error, DataPlaneError)
        return refused(error)


class ClientCaller(Caller):
    """values: what each row should hold of each field, as it was put."""

    def __init__(self, client: DataPlaneClient, threads: ThreadPoolExecutor) -> None:
        self.client = client
        self.values: dict[tuple[str, str], bytes] = {}
        self._threads = threads
        self._kept: list[object] = []  # claims and groups that are dropped are given back
        self._written = 0

    def _begin(self, act: Callable[[], A]) -> Begun[A]:
        """Make the call, and wait until it is answered or waits in the server."""
        before, future = self.waiting(), self._threads.submit(act)
        deadline = time.monotonic() + HANG_S
        while not future.done() and self.waiting() == before:
            assert time.monotonic() < deadline, "the call neither waits nor is it answered"
            time.sleep(0.002)
        return ClientBegun(future)

    def columns(self, ids: str, fields: Sequence[str], size: int) -> dict[str, torch.Tensor] | None:
        """Jagged columns of bytes, others in each."""
        columns = {}
        for name in fields:
            rows = []
            for _ in ids:
                self._written += 1
                rows.append((torch.arange(size) + self._written).to(torch.uint8))
            columns[name] = nested_tensor(rows, layout=torch.jagged)
        return columns or None

    def wrote(self, ids: str, columns: dict[str, torch.Tensor] | None, *, after: bool = False) -> None:
        for name, column in (columns or {}).items():
            for row, value in zip(ids, column.unbind(), strict=True):
                before = self.values.get((row, name), b"") if after else b""
                self.values[row, name] = before + value.numpy().tobytes()

    def register(self, fields: str = "ab", tasks: Sequence[str] = ("train", "score"), **more: Any) -> None:
        num_samples = more.pop("num_samples", 0)
        self.client.register_partition("p", list(fields), num_samples, list(tasks), replace=True, **more)

    def begin_put(self, ids: str, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[list[int]]:
        columns = self.columns(ids, fields, more.pop("size", 1))
        tags = each(ids, more.pop("tags", None), more.pop("version", None))

        def put() -> list[int]:
            meta = self.client.put_samples(list(ids), "p", columns, tags, timeout_s=timeout_s, **more)
            self.wrote(ids, columns)
            return list(meta.generations or [])

        return self._begin(put)

    def append(self, ids: str, size: int = 1, *, field: str = "a", claim: Rows | None = None) -> None:
        columns = self.columns(ids, [field], size)
        if claim is None:
            did(lambda: self.client.append_tokens(list(ids), "p", columns))  # type: ignore[arg-type]
        else:
            did(lambda: claim.held.append_tokens(list(ids), columns))
        self.wrote(ids, columns, after=True)

    def begin_claim(self, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[Rows]:
        size, task = more.pop("size", 1), more.pop("task", "train")
        timeout = HANG_S if timeout_s is None else timeout_s

        def claim() -> Rows:
            held = self.client.claim(
                "p", task, list(fields), size, min_size=more.pop("least", None), timeout_s=timeout, **more
            )
            self._kept.append(held)
            meta = held.meta
            groups = [(one.group_id, one.rows, one.start_weight_version, one.end_weight_version) for one in held.groups]
            return Rows(
                "".join(meta.sample_ids),
                held.claim_id,
                list(meta.tags or []),
                list(meta.generations or []),
                list(meta.sequence_lengths or [-1] * meta.size),
                list(held.deliveries),
                list(held.staleness),
                groups,
                held=held,
            )

        return self._begin(claim)

    def begin_draw(self, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[Rows]:
        size, least, task = more.pop("size", 1), more.pop("least", None), more.pop("task", None)

        def draw() -> Rows:
            drawn = self.client.draw_samples(
                "p", list(fields), size, min_size=least, task_name=task, timeout_s=timeout_s, **more
            )
            meta = drawn.meta
            return Rows(
                "".join(meta.sample_ids),
                tags=list(meta.tags or []),
                generations=list(meta.generations or []),
                sequence_lengths=list(meta.sequence_lengths or [-1] * meta.size),
                staleness=drawn.staleness,
                draws=drawn.draws,
                probabilities=drawn.probabilities,
            )

        return self._begin(draw)

    def begin_reserve(
        self, group: str, ids: str = "", *, version: int | None = None, timeout_s: float | None = None
    ) -> Begun[Group]:
        def reserve() -> Group:
            held = self.client.reserve_group("p", group, list(ids), weight_version=version, timeout_s=timeout_s)
            self._kept.append(held)
            return ClientGroup(self, held)

        return self._begin(reserve)

    def commit(self, claim: Rows, **sizes: int) -> int:
        columns = self._columns_of(claim, sizes)
        consumed: int = did(lambda: claim.held.commit(columns))
        self.wrote(claim.ids, columns)
        return consumed

    def _columns_of(self, claim: Rows, sizes: dict[str, int]) -> dict[str, torch.Tensor] | None:
        columns: dict[str, torch.Tensor] = {}
        for name, size in sizes.items():
            columns |= self.columns(claim.ids, [name], size) or {}
        return columns or None

    def release(self, claim: Rows, *, delay_s: float = 0.0, reason: str = "") -> int:
        released: int = did(lambda: claim.held.release(delay_s=delay_s, reason=reason))
        return released

    def reset(self, ids: str | None = None) -> int:
        return did(lambda: self.client.reset("p", "train", None if ids is None else list(ids)))

    def clear(
        self, ids: str | None = None, *, where: str | None = None, generations: Sequence[int] | None = None
    ) -> int:
        named = None if ids is None else list(ids)
        return did(lambda: self.client.clear_samples(named, "p", where=where, generations=generations))

    def set_policy(self, task: str = "train", **policy: Any) -> None:
        did(lambda: self.client.set_policies("p", {task: TaskPolicy(**policy)}))

    def set_flow(self, **flow: Any) -> None:
        if "band" in flow:
            flow["band"] = DrawBand(*flow["band"])
        did(lambda: self.client.set_policies("p", flow=FlowPolicy(**flow)))

    def set_version(self, version: int, retire_below: int | None = None) -> int:
        return did(lambda: self.client.set_weight_version("p", version, retire_below=retire_below))

    def close(self) -> int:
        return did(lambda: self.client.close_partition("p"))

    def drop(self) -> None:
        self.client.drop_partition("p")

    def listed(self, where: str | None = None) -> str:
        return "".join(did(lambda: self.client.list_samples("p", where=where)).meta.sample_ids)

    def sizes(self, ids: str, field: str) -> Sequence[int]:
        rows = did(lambda: self.client.get_samples(list(ids), "p", [field]))[field].unbind()
        for name, value in zip(ids, rows, strict=True):
            assert value.numpy().tobytes() == self.values[name, field]
        return [len(value) for value in rows]

    def partition(self) -> Any:
        return self.client.partition("p")

    def used(self) -> int:
        return self.client.server_status().memory_used_bytes

    def waiting(self) -> int:
        status = self.client.server_status()
        try:
            at_entrance = self.client.partition("p").waiting_calls
        except NotFoundError:
            at_entrance = 0
        return status.waiting_claims + status.waiting_puts + at_entrance


class ClientGroup(Group):
    def __init__(self, caller: ClientCaller, held: dataplane_client.client.Group) -> None:
        self._caller = caller
        self._held = held

    def put(self, ids: str, *fields: str, add: bool = False, **more: Any) -> str:
        columns = self._caller.columns(ids, fields, more.pop("size", 1))
        tags = each(ids, more.pop("tags", None), more.pop("version", None))
        call = self._held.add if add else self._held.put
        did(lambda: call(list(ids), columns, tags, **more))
        self._caller.wrote(ids, columns)
        return self._held.abort_hint

    def append(self, ids: str, size: int = 1, *, field: str = "a", tags: Tags | None = None) -> None:
        columns = self._caller.columns(ids, [field], size)
        did(lambda: self._held.append_tokens(list(ids), columns, each(ids, tags, None)))  # type: ignore[arg-type]
        self._caller.wrote(ids, columns, after=True)

    def share(self, field: str, size: int) -> None:
        columns = self._caller.columns("s", [field], size)
        did(lambda: self._held.put_shared(columns))  # type: ignore[arg-type]
        for row in self._held.meta.sample_ids:
            self._caller.values[row, field] = (columns or {})[field].values().numpy().tobytes()

    def finish(self, version: int | None = None) -> int:
        return did(lambda: self._held.commit(version))

    def abort(self) -> int:
        return did(self._held.abort)
