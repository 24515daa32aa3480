"""Workers as Ray actors; the driver is a separate process and calls them anywhere in the cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_adapter.worker_groups._array_batches import from_arrays, to_arrays
from trainer_adapter.worker_groups._failures import Health, WorkerFailed
from trainer_adapter.worker_groups._interface import AgreedT
from trainer_adapter.worker_groups._ray_actor import RankActor
from trainer_adapter.worker_groups._ray_options import RayGroupOptions
from trainer_adapter.worker_groups._ray_placement import Seat, actor_options, require_ray, reserve
from trainer_adapter.worker_groups._ray_waiting import wait_for_results
from trainer_adapter.worker_groups._replicas import Replicas

_log = logging.getLogger("trainer_adapter")


class RayWorkerGroup:
    """A WorkerGroup of Ray actors, each of which makes `worker(**arguments)`.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set first; ranks meet on the node of rank 0. Blocks
    until all workers are made. Raises ImportError without ray, RuntimeError before ray.init(), TimeoutError if the
    cluster has no room, and, if workers cannot be made, what the methods of WorkerGroup raise. After an error nothing
    is left running.

    A batch is put into Ray's memory once for each shard, and each rank copies it once. Deadlines are those of
    RayGroupOptions. A method that misses its deadline raises WorkerFailed.
    """

    def __init__(self, worker: Callable[..., Any], arguments: Mapping[str, Any], options: RayGroupOptions) -> None:
        options.validate()
        self._ray = require_ray()
        self._options = options
        self._health = Health()
        self._actors: list[Any] = []
        self._placement, seats = reserve(options)
        try:
            actor = self._ray.remote(RankActor)
            for seat in seats:
                self._actors.append(actor.options(**actor_options(options, self._placement, seat)).remote())
            self._make_workers(worker, arguments, seats)
        except BaseException as error:
            self._health.end(error)
            self._give_back()  # workers that were never made cannot shut down
            raise

    def _make_workers(self, worker: Callable[..., Any], arguments: Mapping[str, Any], seats: Sequence[Seat]) -> None:
        deadline = time.monotonic() + self._options.start_timeout_s

        def wait(refs: Sequence[Any], method: str) -> list[Any]:
            return self._wait(refs, method, max(deadline - time.monotonic(), 0.0))

        address = wait([self._actors[0].rendezvous_address.remote()], "rendezvous_address")[0]
        given = [self._ray.put(worker), self._ray.put(dict(arguments))]
        started = [
            actor.start.remote(_environment(rank, len(seats), seats[rank], *address), *given)
            for rank, actor in enumerate(self._actors)
        ]
        wait(started, "start")
        self._replicas = Replicas.from_layouts(wait(self._start("layout", {}), "layout"))

    @property
    def dp_size(self) -> int:
        return len(self._replicas.leaders)

    @property
    def is_driver(self) -> bool:
        """Always true: only this process runs the script."""
        return True

    def from_driver(self, value: AgreedT) -> AgreedT:
        """Return the value itself."""
        return value

    def run_everywhere(self, method: str, **arguments: Any) -> Any:
        """See WorkerGroup; the result is rank 0's."""
        return self._wait(self.start(method, **arguments), method)[0]

    def run_on_shards(self, method: str, shards: Mapping[str, Sequence[Any]], **common: Any) -> list[Any]:
        self._health.check(method)
        shared = self._put(common)
        own = [self._put({name: shards[name][dp] for name in shards}) for dp in range(self.dp_size)]
        refs = [
            getattr(actor, "call_as_leader" if rank in self._replicas.leaders else "call_as_replica").remote(
                method, shared, own[self._replicas.dp_rank_of[rank]]
            )
            for rank, actor in enumerate(self._actors)
        ]
        results = self._wait(refs, method)
        return [from_arrays(results[leader]) for leader in self._replicas.leaders]

    def start(self, method: str, **arguments: Any) -> list[Any]:
        """See WorkerGroup. The futures are ray.ObjectRefs and raise as Ray does. The ranks run one method after the
        other.
        """
        self._health.check(method)
        return self._start(method, arguments)

    def _start(self, method: str, arguments: Mapping[str, Any]) -> list[Any]:
        common, nothing = self._put(arguments), self._put({})
        return [actor.call.remote(method, common, nothing) for actor in self._actors]

    def _put(self, arguments: Mapping[str, Any]) -> Any:
        return self._ray.put({name: to_arrays(value) for name, value in arguments.items()})

    def _wait(self, refs: Sequence[Any], method: str, timeout_s: float | None = None) -> list[Any]:
        limit = self._options.call_timeout_s if timeout_s is None else timeout_s
        try:
            return wait_for_results(refs, method, timeout_s=limit, grace_s=self._options.failure_grace_s)
        except WorkerFailed as error:
            self._health.end(error)
            raise

    def shutdown(self) -> bool:
        """See WorkerGroup. The workers shut down first; if the group is broken, those that are free to do so within
        failure_grace_s. Then all actors are killed and the placement group is removed.
        """
        went_well = not self._actors or self._shut_down_workers()
        self._give_back()
        self._health.end("it was shut down")
        return went_well

    def _give_back(self) -> None:
        actors, self._actors = self._actors, []
        placement, self._placement = self._placement, None
        if self._ray.is_initialized():  # ray.shutdown() has ended them otherwise
            for actor in actors:
                self._ray.kill(actor, no_restart=True)
            if placement is not None:
                self._ray.util.remove_placement_group(placement)

    def _shut_down_workers(self) -> bool:
        try:
            closing = self._start("shutdown", {})
            if not self._health.is_good:  # a rank that has answered completes its checkpoint in flight
                self._ray.wait(closing, num_returns=len(closing), timeout=self._options.failure_grace_s)
                return False
            return all(self._wait(closing, "shutdown", self._options.shutdown_timeout_s))
        except Exception:  # noqa: BLE001  # the actors are killed in any case; the error is logged
            _log.exception("the workers did not shut down")
            return False


def _environment(rank: int, world_size: int, seat: Seat, address: str, port: int) -> dict[str, str]:
    """The variables by which a rank finds the others. With GPUs the actor sets LOCAL_RANK to the number of its own."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(seat.local_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
