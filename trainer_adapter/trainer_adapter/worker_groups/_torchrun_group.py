"""Workers as the processes of torchrun: each process runs the same script and holds its own worker.

The methods are collective: every process calls them with the same arguments (checked by a digest), works on its own
shard, and gets the whole result. What only one process may do, such as claiming rows, the process with `is_driver`
does, and the others get its value through `from_driver`:

    meta = group.from_driver(client.claim_meta(...) if group.is_driver else None)
    policy.train_from_meta(meta, loss_fn)

The same script runs on a RayWorkerGroup, whose only process is the driver.

A rank that fails waits a limited time for the others to leave the method as well, so that all can report the first
failure. If they do not, it raises its own error; torchrun ends the other processes when its process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter._exchange import broadcast_values, gather_values, meta_values
from trainer_adapter.worker_groups._digest import digest_of_call
from trainer_adapter.worker_groups._failures import Failure, Health, WorkerFailed, lost_rank_error
from trainer_adapter.worker_groups._interface import AgreedT
from trainer_adapter.worker_groups._portable import make_portable
from trainer_adapter.worker_groups._rank_outcomes import agree_on_outcome, check_same_call
from trainer_adapter.worker_groups._replicas import Replicas

_log = logging.getLogger("trainer_adapter")
_CPU = torch.device("cpu")
T = TypeVar("T")


class TorchrunWorkerGroup:
    """A WorkerGroup of which each process holds one worker, `worker(**arguments)`, which starts torch.distributed.

    The processes agree over their own gloo group, separate from the worker's.
    call_timeout_s: how long ranks wait for each other before and after a method, and for the value of `from_driver`; it
    must exceed the difference in the ranks' run times, and the time that the driver waits for rows. WorkerFailed
    afterwards.
    failure_grace_s: how long a failed rank waits for the others.
    """

    def __init__(
        self,
        worker: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        call_timeout_s: float = 1800.0,
        failure_grace_s: float = 30.0,
    ) -> None:
        self._worker: Any = worker(**arguments)
        self._health = Health()
        self._failure_grace_s = failure_grace_s
        self._group: torch.distributed.ProcessGroup | None = torch.distributed.new_group(
            backend="gloo", timeout=timedelta(seconds=call_timeout_s)
        )
        self._rank = torch.distributed.get_rank()
        self._replicas = Replicas.from_layouts(
            gather_values(self._worker.layout(), group=self._open_group(), device=_CPU)
        )

    @property
    def dp_size(self) -> int:
        return len(self._replicas.leaders)

    @property
    def is_driver(self) -> bool:
        """Whether this is rank 0."""
        return self._rank == 0

    def from_driver(self, value: AgreedT) -> AgreedT:
        """Return rank 0's value. A collective call: the others wait for rank 0 until the call's timeout.

        `_exchange` lists the supported values; TypeError on every rank for others. A BatchedDataDict stays one, without
        a plan of microbatches. WorkerFailed if rank 0 is gone or takes longer.
        """
        self._health.check("from_driver")

        def send(group: torch.distributed.ProcessGroup) -> dict[str, Any]:
            return broadcast_values(lambda: _encode_value(value), source=0, group=group, device=_CPU)

        return cast("AgreedT", _decode_value(self._exchange("from_driver", send)))

    def run_everywhere(self, method: str, **arguments: Any) -> Any:
        """See WorkerGroup; the result is this rank's own."""
        return self._run(method, arguments, arguments, lambda result: result)

    def run_on_shards(self, method: str, shards: Mapping[str, Sequence[Any]], **common: Any) -> list[Any]:
        """See WorkerGroup. Results are gathered, so every rank returns those of all leaders."""
        own = {name: shards[name][self._replicas.dp_rank_of[self._rank]] for name in shards}
        result = self._run(method, {**common, **own}, {**common, **shards}, make_portable)
        given = {"result": result} if self._rank in self._replicas.leaders else {}
        found = self._exchange(method, lambda group: gather_values(given, group=group, device=_CPU))
        return [found[leader]["result"] for leader in self._replicas.leaders]

    def start(self, method: str, **arguments: Any) -> list[Any]:
        """See WorkerGroup. Blocks like run_everywhere: the futures are done and hold this rank's result."""
        done: Future[Any] = Future()
        done.set_result(self.run_everywhere(method, **arguments))
        return [done] * len(self._replicas.dp_rank_of)

    def _run(
        self, method: str, own: Mapping[str, Any], shared: Mapping[str, Any], convert: Callable[[Any], Any]
    ) -> Any:
        """own: this rank's arguments.
        shared: the arguments that must be the same on all ranks.
        convert: applied to the result.
        """
        self._health.check(method)
        result, error = None, None
        try:
            check_same_call(digest_of_call(method, shared), method, self._open_group())
            try:
                result = convert(getattr(self._worker, method)(**own))
            except Exception as raised:  # noqa: BLE001  # the other ranks must get every error
                error = raised
            agree_on_outcome(error, method, self._open_group(), self._failure_grace_s)
        except WorkerFailed as failed:
            self._health.end(failed)
            raise
        return result

    def _exchange(self, method: str, exchange: Callable[[torch.distributed.ProcessGroup], T]) -> T:
        """Exchange values with the other ranks. WorkerFailed if one of them is gone or does not arrive in time."""
        try:
            return exchange(self._open_group())
        except RuntimeError as error:
            if not Failure.of(error).lost_a_rank:
                raise
            failed = lost_rank_error(method, error)
            self._health.end(failed)
            raise failed from error

    def _open_group(self) -> torch.distributed.ProcessGroup:
        if self._group is None:
            raise RuntimeError("this group of workers is shut down")
        return self._group

    def shutdown(self) -> bool:
        """See WorkerGroup. Ends this rank's worker. Ranks do not wait for each other, so a dead rank does no harm."""
        if self._group is None:
            return True
        self._health.end("it was shut down")
        group, self._group = self._group, None
        try:
            torch.distributed.destroy_process_group(group)
            return bool(self._worker.shutdown())
        except Exception:  # noqa: BLE001  # shutdown must not raise; the error is logged
            _log.exception("a worker did not shut down")
            return False


def _encode_value(value: Mapping[str, Any] | KVBatchMeta | None) -> dict[str, Any]:
    if isinstance(value, KVBatchMeta):
        return {"meta": meta_values(value)}
    if isinstance(value, BatchedDataDict):
        return {"batch": value.get_dict()}
    return {} if value is None else {"values": dict(value)}


def _decode_value(message: Mapping[str, Any]) -> Mapping[str, Any] | KVBatchMeta | None:
    if "meta" in message:
        return KVBatchMeta(**message["meta"])
    if "batch" in message:
        return BatchedDataDict(message["batch"])
    values: Mapping[str, Any] | None = message.get("values")
    return values
