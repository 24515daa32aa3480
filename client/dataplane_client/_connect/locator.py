"""Where a server is: at an address, or where an actor of the Ray cluster says.

A client is given a target. `unix:///path` and `host:port` are places themselves. `ray://NAME` names an actor, which
tells each node of the cluster where the server is and which memory to attach to. It is asked again once a call has
found no server there, because Ray may have started the actor again on another node. All clients of a process that name
one actor share its answer, and ask it at most twice a second.

Ray is used where the process has it already, and never imported here. Its waits are not ended by signals and block
event loops, so they are in a thread of their own.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dataplane_client._connect.channel import RAY_SCHEME, checked_target, grpc_target
from dataplane_client.errors import DataPlaneError, PreconditionError, UnavailableError

RAY_NAMESPACE = "rl-dataplane"
_ANSWER_S = 10.0
_ASK_AGAIN_S = 0.5


class NotSharedError(OSError):
    """The server has said that there is no such way."""


class RefusedError(ConnectionError):
    """The socket or port is that of another run of the server than the one that answered over gRPC."""


@dataclass(frozen=True)
class Place:
    """Where this process reaches a server. grpc_target: unix:///path or host:port."""

    grpc_target: str


@dataclass(frozen=True)
class NodePlace(Place):
    """The same for a process on a node of a cluster. socket: that of the node's memory, or "" while there is none."""

    socket: str
    nonce: bytes


class Locator:
    """The place of an address, which stays the same."""

    is_doubted = False
    """Whether `find` must be called before `place` is used."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.place = Place(target)
        self.no_answer = f"{target}: its actor in the Ray cluster did not say in time where the server is"

    def doubt(self) -> None:
        """Note that no server was found at the place."""

    def find(self) -> Future[Place]:
        """The place as it is now. Other threads complete it. Its error is UnavailableError, to be tried again, or what
        makes trying again useless. Raises PreconditionError outside of Ray's processes.
        """
        found: Future[Place] = new_future()
        found.set_result(self.place)
        return found

    def wait(self, timeout_s: float) -> Place:
        """The result of `find`; UnavailableError if there is none within timeout_s seconds."""
        try:
            return self.find().result(timeout_s)
        except concurrent.futures.TimeoutError:
            raise UnavailableError(self.no_answer) from None


class _RayLocator(Locator):
    """The place that an actor tells. Thread-safe."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.place = NodePlace("", "", b"")
        self.is_doubted = True
        self._name = target.removeprefix(RAY_SCHEME)
        self._lock = threading.Lock()
        self._answer: Future[Place] | None = None
        self._asked = 0.0

    def doubt(self) -> None:
        self.is_doubted = True

    def find(self) -> Future[Place]:
        ray = ray_of_process()
        if ray is None:
            raise PreconditionError(
                f"{self.target}: this process has not joined a Ray cluster: call ray.init(address=...) first, or "
                "connect to the coordinator's gRPC address, host:port"
            )
        with self._lock:
            now, answer = time.monotonic(), self._answer
            if answer is None or (answer.done() and self.is_doubted and now - self._asked >= _ASK_AGAIN_S):
                answer, self._asked = new_future(), now
                threading.Thread(target=self._ask, args=(ray, answer), name="dataplane-locator", daemon=True).start()
                self._answer = answer
            return answer

    def _ask(self, ray: Any, answer: Future[Place]) -> None:
        try:
            self.place = self._place(ray)
        except DataPlaneError as error:
            answer.set_exception(error)
        except Exception as error:  # noqa: BLE001  # Ray's errors, and whatever the actor raises
            cause = getattr(error, "cause", None) or error
            why = f"{type(cause).__name__}: {cause}".partition("\n")[0]
            self.no_answer = f"{self.target}: its actor in the Ray cluster does not say where the server is: {why}"
            answer.set_exception(UnavailableError(self.no_answer))
        else:
            self.is_doubted = False
            answer.set_result(self.place)

    def _place(self, ray: Any) -> Place:
        try:
            actor = ray.get_actor(self._name, namespace=RAY_NAMESPACE)
        except ValueError:
            raise UnavailableError(
                f"{self.target}: no data plane named {self._name} runs in this Ray cluster"
            ) from None
        node = ray.get_runtime_context().get_node_id()
        found = ray.get(actor.where.remote(node), timeout=_ANSWER_S)
        return NodePlace(grpc_target(found["grpc"]), found["socket"], found["nonce"])


_ray_locators: weakref.WeakValueDictionary[tuple[int, str], _RayLocator] = weakref.WeakValueDictionary()


def locator_of(target: str) -> Locator:
    """Raises what `checked_target` raises."""
    checked = checked_target(target)
    if not checked.startswith(RAY_SCHEME):
        return Locator(checked)
    return _ray_locators.setdefault((os.getpid(), target), _RayLocator(target))


def ray_of_process() -> Any:
    """Ray, if this process has joined a cluster; else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def new_future() -> Future[Any]:
    """A future that waiters cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
